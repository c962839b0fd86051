//! Tests of reports about the machine.

use super::{bundled, run, store};
use serde_json::Value;

/// Given speeds, so that nothing needs to be measured.
const SPEEDS: [&str; 6] = ["--memory-speed", "20GB", "--disk-speed", "1GB", "--threads", "1"];

#[test]
fn the_doctor_says_what_limits_the_machine() {
    let with = |more: &[&str]| run(&[&["doctor", store()], &SPEEDS[..], more].concat()).ok();
    let text = with(&[]);
    for word in ["processor", "memory", "disk", "limit"] {
        assert!(text.lines().any(|line| line.starts_with(word)), "{word}: {text}");
    }
    let json: Value = serde_json::from_str(&with(&["--json"])).unwrap();
    assert_eq!(json["machine"]["memory_bytes_per_s"], 20e9);
    assert!(json["cores"].as_u64() >= Some(1), "{json}");
    let findings = json["findings"].as_array().unwrap();
    assert!(findings.iter().any(|finding| finding["about"] == "limit"), "{json}");
    if cfg!(target_os = "linux") {
        let memory = &json["memory"];
        let budget = memory["default_budget_bytes"].as_u64().unwrap();
        assert!(budget > 0 && budget < memory["free_bytes"].as_u64().unwrap(), "{memory}");
    }
}

#[test]
fn a_variable_selects_the_instruction_set() {
    let with = |set: &str, arguments: &[&str]| {
        super::program().args(arguments).env("NESTLING_CPU", set).output().unwrap()
    };
    let doctor = [&["doctor", store()], &SPEEDS[..]].concat();
    let text = String::from_utf8(with("portable", &doctor).stdout).unwrap();
    assert!(text.contains("portable kernels"), "{text}");
    let run = ["run", "-m", store(), "-p", "Once", "-n", "4", "--temp", "0", "--device", "cpu"];
    let [expected, found] = ["", "portable"].map(|set| with(set, &run));
    assert!(found.status.success(), "{found:?}");
    assert_eq!(found.stdout, expected.stdout);
    for arguments in [&run[..], &doctor, &["devices"]] {
        let refused = with("avx3", arguments);
        let error = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && error.contains("NESTLING_CPU"), "{error}");
    }
}

#[test]
fn a_planned_store_has_the_size_of_the_converted_one() {
    let folder = super::checkpoint().display().to_string();
    let planned = run(&[&["plan", &folder, "--json", "--memory", "4GiB"], &SPEEDS[..]].concat());
    let planned: Value = serde_json::from_str(&planned.ok()).unwrap();
    let held: Value = serde_json::from_str(&run(&["inspect", store(), "--json"]).ok()).unwrap();
    let alignment = held["alignment"].as_u64().unwrap();
    let sizes = planned["levels"].as_array().unwrap().iter();
    let sizes: Vec<_> = sizes.zip(held["levels"].as_array().unwrap()).collect();
    assert_eq!(sizes.len(), 5);
    for (planned, held) in sizes {
        let [planned, held] = [planned, held].map(|size| size["bytes"].as_u64().unwrap());
        assert!(planned.abs_diff(held) <= alignment, "{planned} for {held}");
    }
    let text = run(&[&["plan", &folder, "--memory", "4GiB"], &SPEEDS[..]].concat()).ok();
    for words in ["k weights", "once converted", "of experts: 100 % from memory"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let wanted = ["plan", &folder, "--memory", "4GiB", "--wanted-speed", "100000000"];
    let wanted = run(&[&wanted[..], &SPEEDS].concat()).ok();
    assert!(wanted.contains("this machine cannot reach 100000000 tokens/s"), "{wanted}");
}

fn plan(more: &[&str]) -> Value {
    let json = run(&[&["plan", bundled(), "--json"], &SPEEDS[..], more].concat()).ok();
    serde_json::from_str(&json).unwrap()
}

#[test]
fn a_plan_adds_up_and_says_what_a_speed_needs() {
    let whole = plan(&["--memory", "4GiB"]);
    assert_eq!(whole["placement"]["streamed"], false);
    assert_eq!(whole["forecast"]["hit_rate"], 1.0);
    let least = whole["least_memory_bytes"].as_u64().unwrap();
    let experts = whole["placement"]["expert_bytes_total"].as_u64().unwrap();
    let budget = (least + experts / 4).to_string();
    let small = plan(&["--memory", &budget, "--wanted-speed", "0.5"]);
    let bytes = |name: &str| small["placement"][name].as_u64().unwrap();
    assert_eq!(small["placement"]["streamed"], true);
    let parts = ["dense_bytes", "expert_bytes", "kv_bytes", "scratch_bytes", "program_bytes"];
    let parts = parts.map(bytes);
    assert_eq!(parts.iter().sum::<u64>(), bytes("total_bytes"));
    assert!(bytes("total_bytes") <= small["memory_bytes"].as_u64().unwrap(), "{small}");
    assert!(bytes("disk_expert_bytes") > 0);
    let speed = |plan: &Value| plan["forecast"]["tokens_per_s"].as_f64().unwrap();
    assert!(speed(&small) < speed(&whole));
    assert_eq!(small["wanted"]["reached"], true);
    let wanted = ((speed(&small) + speed(&whole)) / 2.0).to_string();
    let more = plan(&["--memory", &budget, "--wanted-speed", &wanted]);
    assert_eq!(more["wanted"]["reached"], false);
    assert!(more["wanted"]["memory_bytes"].as_u64() > small["memory_bytes"].as_u64(), "{more}");
    let levels = small["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 5);
    let text = run(&[&["plan", bundled()], &SPEEDS[..], &["--memory", &budget]].concat()).ok();
    for words in ["experts", "in memory", "tokens/s", "is the minimum"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn a_plan_over_ranks_divides_keys_and_values_by_heads() {
    let planned = plan(&["--memory", "4GiB", "--ranks", "4"]);
    let heads = plan(&["--memory", "4GiB", "--ranks", "4", "--kv-over-ranks", "heads"]);
    assert_eq!([&planned, &heads].map(|of| &of["kv_over_ranks"]), ["replicated", "heads"]);
    let layers = ["layers_by_heads", "layers_with_all_heads"].map(|key| heads[key].as_u64());
    assert_eq!(layers, [Some(4), Some(0)]);
    let kv = ["one_rank_bytes", "each_rank_bytes"].map(|of| heads["memory"][2][of].as_u64());
    assert_eq!(kv[1].map(|bytes| 4 * bytes), kv[0], "{heads}");
    let received = |plan: &Value| plan["received_bytes_per_token"].as_f64();
    assert!(received(&heads) < received(&planned), "{heads}");
    let text = ["plan", bundled(), "--ranks", "4", "--kv-over-ranks", "heads"];
    let text = run(&[&text[..], &SPEEDS[..]].concat()).ok();
    assert!(text.contains("4 layers are divided by heads\n"), "{text}");
}

#[test]
fn a_plan_over_ranks_divides_memory_and_names_what_limits() {
    let planned = plan(&["--memory", "4GiB", "--ranks", "4"]);
    let part = |name: &str, of: &str| {
        let parts = planned["memory"].as_array().unwrap();
        let part = parts.iter().find(|part| part["name"] == name).unwrap();
        part[of].as_u64().unwrap()
    };
    let experts = [part("experts", "one_rank_bytes"), part("experts", "each_rank_bytes")];
    assert_eq!((experts[1] * 4, part("experts", "on_every_rank_bytes")), (experts[0], 0));
    let kv = "keys and values";
    assert!(part(kv, "on_every_rank_bytes") <= part(kv, "one_rank_bytes"));
    let links = planned["topologies"].as_array().unwrap();
    assert_eq!(links.len(), 4);
    for steps in links.iter().map(|links| links["steps"].as_array().unwrap()) {
        let speed = |at: usize| steps[at]["tokens_per_s"].as_f64().unwrap();
        assert!(steps.len() == 4 && speed(0) < speed(1) && speed(1) < speed(2), "{steps:?}");
        assert!(steps[0]["limited_by"].is_string());
    }
    // 18 exchanges and a report, with three others.
    let counts = ["exchanges_per_step", "messages_per_step"].map(|name| planned[name].as_u64());
    assert_eq!(counts, [Some(19), Some(57)]);
    let sliced = ["--memory", "4GiB", "--ranks", "4", "--experts-over-ranks", "sliced"];
    let sliced = plan(&sliced);
    assert_eq!(sliced["experts_over_ranks"], "sliced");
    assert_eq!(sliced["received_bytes_per_token"], planned["sliced_received_bytes_per_token"]);
    let memory = |planned: &Value| planned["memory"][1]["each_rank_bytes"].as_u64().unwrap();
    assert!(memory(&sliced).abs_diff(memory(&planned)) * 50 < memory(&planned), "{sliced}");

    let file = super::scratch().join("links.json");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    let path = file.display().to_string();
    let of_file = ["--memory", "4GiB", "--ranks", "4", "--topology", &path];
    write(r#"{"latency_s": 1, "bytes_per_s": 1e9, "memory_bytes_per_s": 1e12}"#);
    let far = plan(&of_file);
    assert_eq!(far["topologies"][0]["steps"][0]["limited_by"], "exchange latency");
    assert!(far["topologies"][0]["steps"][0]["tokens_per_s"].as_f64().unwrap() < 0.1);
    let text = run(&[&["plan", bundled()], &SPEEDS[..], &of_file].concat()).ok();
    for words in
        ["each rank", "on every one", "messages", "exchange latency", "--experts-over-ranks sliced"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    let line = |more: &[&str]| {
        run(&[&["plan", bundled(), "--memory", "4GiB"], &SPEEDS[..], more].concat())
    };
    for (wrong, words) in [
        (r#"{"latency_s": -1, "bytes_per_s": 1e9}"#, "0 or more"),
        (r#"{"latency_s": 0, "bytes_per_s": 0}"#, "above 0"),
        (r#"{"latency": 0}"#, "unknown field"),
        (
            r#"{"latency_s": 0, "bytes_per_s": 1, "measured": [{"operation": "sum", "bytes": 1, "ranks": 2, "seconds": 1}]}"#,
            "expected all_gather or exchange",
        ),
    ] {
        write(wrong);
        line(&["--ranks", "2", "--topology", &path]).fails(1, words, "docs/ranks.md");
    }
    let little = ["--ranks", "2", "--experts-over-ranks", "sliced", "--memory", "20MB"];
    let little = run(&[&["plan", bundled()], &SPEEDS[..], &little].concat());
    little.fails(1, "sliced over ranks", "--experts-over-ranks whole");
    line(&["--ranks", "2", "--topology", "none.json"]).fails(1, "none.json", "10gbe");
    line(&["--topology", "10gbe"]).fails(2, "links between ranks", "--ranks");
    line(&["--ranks", "2", "--wanted-speed", "5"]).fails(2, "one rank", "--wanted-speed");
}

#[test]
fn the_least_that_a_refusal_names_does() {
    let flags = ["run", "-m", bundled(), "-p", "the ship", "-n", "24", "--temp", "0"];
    let with = |memory: &str| run(&[&flags[..], &["--memory", memory]].concat());
    let refused = with("1MB");
    refused.fails(1, "the least is", "--memory");
    let advice = refused.err.split("--memory ").nth(1).unwrap();
    let least: u64 = advice.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(Some(least), plan(&["--memory", "4GiB"])["least_memory_bytes"].as_u64());
    let streamed = with(&least.to_string());
    assert!(streamed.err.contains("Hits:"), "{}", streamed.err);
    assert_eq!(streamed.ok(), with("4GiB").ok());
    with(&(least - 1).to_string()).fails(1, "the least is", "--memory");
}

#[test]
fn a_mean_level_outside_of_the_levels_is_refused() {
    let line = ["plan", bundled(), "--mean-level", "9", "--memory", "4GiB"];
    run(&[&line[..], &SPEEDS].concat()).fails(2, "9 bits", "from 2 to 8");
}

#[test]
fn a_run_is_observed_and_its_trace_replayed() {
    let file = |name: &str| super::scratch().join(name).display().to_string();
    let [timeline, trace, stats] = ["line.json", "run.trace", "stats.json"].map(file);
    let flags = ["run", "-m", bundled(), "-p", "the ship", "-n", "12", "--memory", "18MB"];
    let kept = ["--stats", "--timeline", &timeline, "--record-trace", &trace];
    let ran = run(&[&flags[..], &kept, &["--stats-json", &stats, "--temp", "0"]].concat());
    for words in ["forecast", "fact", "bytes found in memory", "stalled per token"] {
        assert!(ran.err.contains(words), "{words}: {}", ran.err);
    }
    let text = ran.ok();
    assert_eq!(run(&[&flags[..], &["--temp", "0", "-q"]].concat()).ok(), text);
    let read = |path: &str| -> Value {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let events = read(&timeline)["traceEvents"].as_array().unwrap().clone();
    for category in ["step", "compute", "read"] {
        assert!(events.iter().any(|event| event["cat"] == category), "{category}");
    }
    let stats = read(&stats);
    let steps = stats["steps"].as_array().unwrap();
    assert_eq!((steps.len(), &steps[0]["rows"]), (12, &2.into()), "{stats}");
    assert!(stats["fact"]["tokens_per_s"].as_f64() > Some(0.0));
    let replayed = plan(&["--memory", "18MB", "--trace", &trace]);
    let hits = replayed["trace"]["hit_rate"].as_f64().unwrap();
    assert!(hits > 0.0 && hits < 1.0, "{}", replayed["trace"]);
    let line = ["plan", bundled(), "--memory", "18MB", "--level", "2", "--trace", &trace];
    run(&[&line[..], &SPEEDS].concat()).fails(1, "above 2", "--level");
}

//! Tests of the commands' results.

use super::{checkpoint, program, run, run_with, store};
use serde_json::Value;
use std::process::Stdio;

#[test]
fn tokens_and_nothing_else_go_to_standard_output() {
    let ran = run(&["run", "-m", store(), "-p", "the ship", "-n", "12", "--temp", "0"]);
    assert!(ran.err.contains("Generation:") && ran.err.contains("t/s"), "{}", ran.err);
    let text = ran.ok();
    assert!(!text.contains("t/s") && !text.trim().is_empty(), "{text}");
    let quiet = run(&["run", "-m", store(), "-p", "the ship", "-n", "12", "--temp", "0", "-q"]);
    assert_eq!(quiet.err, "");
    assert_eq!(quiet.ok(), text);
}

#[test]
fn the_prompt_comes_from_a_flag_a_file_or_a_pipe() {
    let flags = ["run", "-m", store(), "-n", "12", "--temp", "0"];
    let with = |more: &[&str], input: &str| run_with(&[&flags[..], more].concat(), input).ok();
    let expected = with(&["-p", "the ship"], "");
    assert_eq!(with(&[], "the ship\n"), expected);
    assert_eq!(with(&["-f", "-"], "the ship\n"), expected);
    let path = super::scratch().join("prompt.txt");
    std::fs::write(&path, "the ship\n").unwrap();
    assert_eq!(with(&["-f", &path.display().to_string()], ""), expected);
}

#[test]
fn threads_and_load_modes_change_nothing() {
    let flags = ["run", "-m", store(), "-p", "the ship", "-n", "40", "--temp", "0"];
    let with = |more: &[&str]| run(&[&flags[..], more].concat()).ok();
    let expected = with(&["-t", "1"]);
    assert_eq!(with(&["-t", "2"]), expected);
    assert_eq!(with(&["--load-mode", "mmap"]), expected);
    assert_eq!(with(&["-lm", "owned", "--memory", "1G"]), expected);
    let float = with(&["--kv-type", "f32"]);
    assert!(!float.is_empty());
}

#[test]
fn a_seed_repeats_and_another_does_not() {
    let text = |seed| run(&["run", "-m", store(), "-p", "a", "-n", "30", "-s", seed]).ok();
    assert_eq!(text("1"), text("1"));
    assert_ne!(text("1"), text("2"));
}

#[test]
fn every_level_runs() {
    for level in ["2", "3", "4", "6", "8"] {
        let ran = run(&["run", "-m", store(), "-p", "a", "-n", "4", "--level", level]);
        assert!(ran.err.contains(&format!("Bits: {level} ")), "{}", ran.err);
        ran.ok();
    }
}

#[test]
fn a_checkpoint_runs_unquantized() {
    let path = checkpoint().display().to_string();
    run(&["run", "-m", &path, "-p", "a", "-n", "4"]).ok();
}

#[test]
fn environment_variables_stand_for_flags() {
    let flags = ["run", "-p", "the ship", "--temp", "0"];
    let with_env = |arguments: &[&str], n: &str| {
        let mut command = program();
        command.env("NESTLING_MODEL", store()).env("NESTLING_PREDICT", n);
        super::ProcessOutput::from(command.args(arguments).output().unwrap()).ok()
    };
    let expected = run(&[&flags[..], &["-m", store(), "-n", "8"]].concat()).ok();
    assert_eq!(with_env(&flags, "8"), expected);
    // Arguments override the variable, in every spelling of a model.
    assert_eq!(with_env(&[&flags[..], &["-n", "8"]].concat(), "3"), expected);
    let mut command = program();
    command.env("NESTLING_MODEL", "/no/such").args([&flags[..], &[store(), "-n", "8"]].concat());
    assert_eq!(super::ProcessOutput::from(command.output().unwrap()).ok(), expected);
}

#[test]
fn chat_answers_a_pipe_once() {
    let flags = ["chat", "-m", store(), "-n", "12", "--temp", "0"];
    let answer = run_with(&flags, "hello").ok();
    assert_eq!(run(&[&flags[..], &["-p", "hello"]].concat()).ok(), answer);
    let applied = ["run", "--chat", "-m", store(), "-n", "12", "--temp", "0", "-p", "hello"];
    assert_eq!(run(&applied).ok(), answer);
    let told = run(&[&applied[..], &["-sys", "Be brief."]].concat()).ok();
    assert_ne!(told, answer);
}

#[test]
fn verbose_gives_eight_lines() {
    let ran = run(&["run", "-m", store(), "-p", "a", "-n", "4", "-v"]);
    for name in [
        "total duration:",
        "load duration:",
        "prompt eval count:",
        "prompt eval duration:",
        "prompt eval rate:",
        "eval count:",
        "eval duration:",
        "eval rate:",
    ] {
        assert!(ran.err.lines().any(|line| line.starts_with(name)), "{name}: {}", ran.err);
    }
}

#[test]
fn colours_only_where_they_are_wanted() {
    let arguments = ["verify", "/no/such.nest"];
    assert!(!run(&arguments).err.contains('\x1b'));
    assert!(run(&["--color", "always", "verify", "/no/such.nest"]).err.contains("\x1b["));
    let never = program().args(arguments).env("NESTLING_COLOR", "never").output().unwrap();
    assert!(!String::from_utf8_lossy(&never.stderr).contains('\x1b'));
}

#[test]
fn inspect_shows_the_store() {
    let text = run(&["inspect", store()]).ok();
    for words in ["qwen3_moe", "3 layers", "bits/weight", "tokenizer.json", "5 experts of 40"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let json: Value = serde_json::from_str(&run(&["inspect", store(), "--json"]).ok()).unwrap();
    assert_eq!(json["bytes"], std::fs::metadata(store()).unwrap().len());
    assert_eq!(json["level"], 8);
    assert_eq!(json["model"]["hidden_size"], 72);
    let levels = json["levels"].as_array().unwrap();
    assert_eq!(levels.len(), 5);
    let bits: Vec<f64> = levels.iter().map(|l| l["bits_per_weight"].as_f64().unwrap()).collect();
    assert!(bits.windows(2).all(|pair| pair[0] < pair[1]), "{bits:?}");
    assert_eq!(json["sections"].as_array().unwrap().last().unwrap()["end"], json["bytes"]);
    assert!(json["parameters"].is_object());
    assert_eq!((&json["path"], &json["store_path"]), (&store().into(), &store().into()));
    // One line for each setting, with numbers as they were given.
    let made = format!("made with quantizer: {}", nestling::engine::convert::QUANTIZER_VERSION);
    for line in [&*made, "level: 8", "level weights: 2, 3, 1.5, 0.9, 0.7"] {
        assert!(text.lines().any(|found| found.ends_with(line)), "{line}: {text}");
    }
    assert!(!text.contains('{') && !text.contains("0.8999"), "{text}");
}

#[test]
fn perplexity_has_the_keys_that_scripts_read() {
    let reference = checkpoint().display().to_string();
    let text = super::scratch().join("text.txt");
    std::fs::write(&text, "The ship left the harbour at dawn, and the wind was calm. ".repeat(20))
        .unwrap();
    let text = text.display().to_string();
    let flags = ["perplexity", "-m", store(), "--reference", &reference, "-f", &text, "-c", "64"];
    let json = run(&[&flags[..], &["--levels", "2,8", "--json"]].concat()).ok();
    let report: Value = serde_json::from_str(&json).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&report), ["reference_perplexity", "sequences", "tokens", "rows"]);
    let rows = report["rows"].as_array().unwrap();
    let findings = [
        "perplexity",
        "ln_perplexity_ratio",
        "kl",
        "kl_median",
        "kl_p99",
        "top1",
        "expert_bytes_per_token",
        "expert_mean_level",
    ];
    let of_row =
        ["name", "level", "mean_level", "threshold", "allocation", "bytes", "bits_per_weight"];
    for row in rows {
        assert_eq!(keys(row), [&of_row[..], &findings, &["shipped"]].concat());
        assert_eq!(keys(&row["shipped"]), findings);
        assert_eq!(keys(&row["kl"]), ["mean", "standard_error"]);
        assert!(row["kl"]["standard_error"].as_f64() > Some(0.0), "{row}");
    }
    assert_eq!((rows[0]["level"].as_u64(), rows[1]["level"].as_u64()), (Some(2), Some(8)));
    assert!(rows[0]["kl"]["mean"].as_f64() > rows[1]["kl"]["mean"].as_f64());
    let table = run(&[&flags[..], &["--tokens", "64"]].concat()).ok();
    assert_eq!(table.lines().filter(|line| line.contains('%')).count(), 6, "{table}");
}

/// The perplexity without a reference equals that of the store as it runs, evaluated with one.
#[test]
fn perplexity_needs_no_checkpoint() {
    let reference = checkpoint().display().to_string();
    let text = super::scratch().join("alone.txt");
    std::fs::write(&text, "The captain looked at the chart and said nothing. ".repeat(12)).unwrap();
    let text = text.display().to_string();
    let flags = ["perplexity", "-m", store(), "-f", &text, "-c", "32", "--levels", "2,8"];
    let with = |more: &[&str]| run(&[&flags[..], more].concat());
    let read = |more: &[&str]| serde_json::from_str::<Value>(&with(more).ok()).unwrap();
    let (alone, beside) = (read(&["--json"]), read(&["--json", "--reference", &reference]));
    assert_eq!(alone["tokens"], beside["tokens"]);
    for (alone, beside) in [0, 1].map(|row| (&alone["rows"][row], &beside["rows"][row])) {
        assert_eq!(alone["perplexity"]["mean"], beside["shipped"]["perplexity"]);
        assert!(alone["perplexity"]["standard_error"].as_f64() > Some(0.0), "{alone}");
        assert_eq!(alone["bits_per_weight"], beside["bits_per_weight"]);
    }
    let table = with(&["--tokens", "32"]).ok();
    assert!(table.starts_with("32 tokens in 1 piece;"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("level")).count(), 2, "{table}");
    let all = run(&["perplexity", "-m", store(), "-f", &text, "--tokens", "32"]).ok();
    assert_eq!(all.lines().filter(|line| line.contains("level")).count(), 5, "{all}");
    let svg = with(&["--svg", "x.svg"]);
    svg.fails(2, "--svg compares, and needs --reference", "--reference");
}

#[test]
fn perplexity_of_allocations_with_a_plot() {
    let reference = checkpoint().display().to_string();
    let text = super::scratch().join("words.txt");
    std::fs::write(&text, "Two ships met at sea and sailed on together. ".repeat(8)).unwrap();
    let (text, svg) = (text.display().to_string(), super::scratch().join("curve.svg"));
    let svg_path = svg.display().to_string();
    let peers = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/records/peers-quality.json");
    let flags = ["perplexity", "-m", store(), "--reference", &reference, "-f", &text, "-c", "32"];
    let flags = [&flags[..], &["--levels", "4", "--weights-only", "--tokens", "64"]].concat();
    let more = ["--bits", "6.5,5.6", "--attention-level", "4", "--peers", peers];
    let shown = ["--format", "md", "--svg", &svg_path, "--peer-set", "alike"];
    let markdown = run(&[&flags[..], &more, &shown].concat()).ok();
    for words in ["**level 4**", "**6.5 bits**", "Q4_K imatrix", "±"] {
        assert!(markdown.contains(words), "{words}: {markdown}");
    }
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(svg.contains("tiny: divergence") && svg.contains("64 tokens in 2 pieces"), "{svg}");
    assert!(svg.contains("<polyline") && svg.contains("IQ2_XS"), "{svg}");

    let set = run(&[&flags[..], &["--peers", peers, "--peer-set", "none"]].concat());
    set.fails(1, "there are: attention-6, alike", "peers-quality.json");
    let least = run(&[&flags[..], &["--budgets", "1000"]].concat());
    least.fails(1, "the weights need at least", "bytes or more");
    let broken = run(&[&flags[..], &["--peers", &text]].concat());
    broken.fails(1, "expected value", "peers-quality.json");
}

/// The reported error covers the written matrices and the measured activations.
#[test]
fn a_conversion_says_what_its_error_is_of() {
    let checkpoint = checkpoint().display().to_string();
    let path = |name: &str| super::scratch().join(name).display().to_string();
    let convert = |name: &str, more: &[&str]| {
        let ran = run(&[&["convert", &checkpoint, "-o", &path(name)], more].concat());
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        ran.err
    };
    let percent = |text: &str, of: &str| -> f64 {
        let rest = text.split(of).nth(1).unwrap_or_else(|| panic!("no `{of}` in {text}"));
        rest.trim_start_matches(": ").split(' ').next().unwrap().parse().unwrap()
    };
    let of_weights = "weight error against the source";
    let plain = convert("plain.nest", &["--calibration", "none"]);
    assert!(plain.contains("nestling perplexity"), "{plain}");
    let whole = std::fs::metadata(path("plain.nest")).unwrap().len();
    let budget = (whole * 3 / 4).to_string();
    let cut = convert("cut.nest", &["--calibration", "none", "--budget", &budget]);
    assert_eq!(cut.matches(of_weights).count(), 1, "{cut}");
    assert!(percent(&cut, of_weights) > 1.5 * percent(&plain, of_weights), "{plain}{cut}");
    let low = convert("low.nest", &["--calibration", "none", "--level", "4"]);
    assert!(percent(&low, of_weights) > 3.0 * percent(&plain, of_weights), "{plain}{low}");
    let calibrated = convert("calibrated.nest", &["--calibration-tokens", "2000"]);
    let of_outputs = "output error on the calibration text";
    assert!(percent(&calibrated, of_outputs) < percent(&calibrated, of_weights), "{calibrated}");
}

/// A resumed conversion reports finished bytes in the units of its bar and ends with the same message.
#[test]
fn a_killed_conversion_says_where_it_goes_on() {
    let checkpoint = checkpoint().display().to_string();
    let folder = super::scratch().join("killed");
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).display().to_string();
    let flags = ["convert", &checkpoint, "--calibration-tokens", "2000", "-t", "1", "-o"];
    let whole = run(&[&flags[..], &[&path("whole.nest")]].concat());
    let of_errors = |text: &str| {
        let lines = text.lines().filter(|line| line.starts_with("error of"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = of_errors(&whole.err);
    let files = std::fs::read_dir(&checkpoint).unwrap().map(Result::unwrap);
    let is_weights = |path: &std::path::Path| path.extension().is_some_and(|e| e == "safetensors");
    let weights = files.filter(|file| is_weights(&file.path()));
    let weights: u64 = weights.map(|file| file.metadata().unwrap().len()).sum();
    whole.ok();
    for attempt in 0.. {
        let out = path(&format!("{attempt}.nest"));
        let mut child = program().args(flags).arg(&out).stderr(Stdio::null()).spawn().unwrap();
        // The activations are saved after each layer.
        let kept = folder.join(format!("{attempt}.nest.hidden"));
        while !kept.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        if std::path::Path::new(&out).exists() {
            assert!(attempt < 5, "it is always done before it can be killed");
            continue;
        }
        let ran = run(&[&flags[..], &[&out]].concat());
        let start = "going on where an earlier conversion stopped: ";
        let line = ran.err.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
        let (done, rest) = line.split_once(" of ").unwrap_or_else(|| panic!("{}", ran.err));
        let number = |text: &str| text.split(' ').next().unwrap().parse::<f64>().unwrap();
        let (done, total) = (number(done), number(rest));
        assert!(done < total && total * 1e3 <= 1.001 * weights as f64, "{line}");
        assert_eq!(of_errors(&ran.err), expected);
        return ran.ok().clear();
    }
}

#[test]
fn completions_and_help() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(run(&["completions", shell]).ok().contains("nestling"), "{shell}");
    }
    let folder = super::scratch().join("man");
    std::fs::create_dir(&folder).unwrap();
    let pages = folder.to_str().unwrap();
    run(&["man", pages]).ok();
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
    assert!(page("nestling.1").contains("nestling\\-serve(1)"), "{}", page("nestling.1"));
    assert!(page("nestling-serve.1").contains("\\-\\-host"));
    run(&["man", &format!("{pages}/none")]).fails(1, "/none: No such file", "a folder that exists");
    let help = run(&["--help"]).ok();
    for words in ["chat", "perplexity", "-hf", "Exit codes"] {
        assert!(help.contains(words), "{words}");
    }
    // Help texts name environment variables without their values.
    let mut synth = program();
    let synth = synth.args(["bench", "synth", "--help"]).env("NESTLING_SHAPE", "tiny");
    let synth = super::ProcessOutput::from(synth.output().unwrap()).ok();
    assert!(
        synth.contains("[env: NESTLING_SHAPE]") && !synth.contains("NESTLING_SHAPE="),
        "{synth}"
    );
    for command in
        ["chat", "run", "convert", "inspect", "verify", "perplexity", "bench", "completions"]
    {
        let help = run(&[command, "--help"]).ok();
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command}: {help}");
    }
}

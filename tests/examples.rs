//! Runs the examples on the tiny model.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]
#![expect(clippy::print_stdout, reason = "a skipped test says so")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Returns the path of an example. Cargo builds examples into a folder next to this test's.
fn example(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let name = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    let path = test.parent()?.parent()?.join("examples").join(name);
    path.is_file().then_some(path)
}

/// Returns the output of an example. Returns `None`, with a message, if cargo did not build the examples.
fn run(name: &str, input: &str) -> Option<String> {
    let Some(program) = example(name) else {
        println!("SKIPPED: the example `{name}` was not built; `cargo test --workspace` builds it");
        return None;
    };
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("engine/runtime/tests/data/tiny-qwen3-moe");
    let mut child = Command::new(program)
        .arg(model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    Some(String::from_utf8(output.stdout).unwrap())
}

#[test]
fn chat_answers_every_line() {
    if let Some(printed) = run("chat", "hello\nand then?\n") {
        assert_eq!(printed.matches("tokens per second").count(), 2, "{printed}");
    }
}

#[test]
fn cancel_stops() {
    if let Some(printed) = run("cancel", "") {
        assert!(printed.contains("after it was asked"), "{printed}");
        assert!(printed.contains("the session holds"), "{printed}");
    }
}

#[test]
fn two_models_share_a_budget() {
    if let Some(printed) = run("two_models", "") {
        let said = |start: &str| printed.lines().any(|line| line.starts_with(start));
        assert!(said("whole: ") && said("small: "), "{printed}");
        assert!(said("no room for a third: weights need"), "{printed}");
    }
}

#[test]
fn raw_tokens_come_with_log_probabilities() {
    if let Some(printed) = run("raw_tokens", "") {
        assert!(printed.contains("Some(-") && printed.contains("history: ["), "{printed}");
    }
}

#[test]
fn fork_session_computes_the_beginning_once() {
    if let Some(printed) = run("fork_session", "") {
        assert_eq!(printed.matches("(1 of its prompt was computed)").count(), 3, "{printed}");
        assert!(printed.contains("a snapshot of"), "{printed}");
    }
}

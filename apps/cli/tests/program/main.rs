//! Tests of the built program, run as a user or a script would run it.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may fail where it stands")]

mod bench;
mod cache;
#[cfg(unix)]
mod chat;
mod commands;
#[cfg(unix)]
mod cut;
mod demo;
mod dense;
mod devices;
mod download;
mod errors;
mod form;
mod gguf;
mod gguf_repository;
mod in_place;
#[cfg(unix)]
mod load;
mod machine;
mod options;
mod sections;
#[cfg(unix)]
mod serve;
mod survey;
#[cfg(unix)]
mod terminal;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

struct ProcessOutput {
    code: Option<i32>,
    out: String,
    err: String,
}

impl From<Output> for ProcessOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl ProcessOutput {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "stderr: {}", self.err);
        self.out
    }

    /// Asserts an exit code, an `error:` sentence and a `try:` sentence with these words.
    #[track_caller]
    fn fails(&self, code: i32, error: &str, advice: &str) {
        assert_eq!(self.code, Some(code), "stderr: {}", self.err);
        let line = |start: &str| {
            let found = self.err.lines().find(|line| line.trim_start().starts_with(start));
            found.unwrap_or_else(|| panic!("no `{start}` in: {}", self.err)).to_owned()
        };
        assert!(line("error:").contains(error), "`{error}` is not in: {}", self.err);
        assert!(line("try:").contains(advice), "`{advice}` is not in: {}", self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }
}

/// Returns the program without the tester's environment variables.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nestling"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["NESTLING_", "HF_", "HUGGINGFACE_"].iter().any(|start| text.starts_with(start)) {
            command.env_remove(&name);
        }
    }
    command.env("NESTLING_CACHE", scratch().join("cache")).env("HF_HOME", scratch().join("hf"));
    // Results of a GPU equal those of the CPU only up to rounding.
    command.env("NESTLING_DEVICE", "cpu");
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> ProcessOutput {
    program().args(arguments).output().unwrap().into()
}

fn run_with(arguments: &[&str], input: &str) -> ProcessOutput {
    let mut command = program();
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap().into()
}

/// Returns the temporary folder of this test run.
fn scratch() -> &'static Path {
    static SCRATCH: OnceLock<tempfile::TempDir> = OnceLock::new();
    let make = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    SCRATCH.get_or_init(make).path()
}

fn crate_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the small random checkpoint with odd sizes.
fn checkpoint() -> PathBuf {
    crate_path("../../engine/runtime/tests/data/tiny-qwen3-moe")
}

/// Returns the bundled store, whose model is large enough to be streamed.
fn bundled() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest")
}

/// Returns a store of the checkpoint, converted once.
fn store() -> &'static str {
    static STORE: OnceLock<String> = OnceLock::new();
    STORE.get_or_init(|| {
        let path = scratch().join("tiny.nest").display().to_string();
        let checkpoint = checkpoint().display().to_string();
        run(&["convert", &checkpoint, "-o", &path, "--calibration", "none"]).ok();
        path
    })
}

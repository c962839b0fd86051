//! Records the commit that the program is built from, for the results of `nestling bench`.

use std::path::Path;
use std::process::Command;

/// Returns the output of a git command, or `None` if it fails or this is not a clone.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.trim().to_owned()).filter(|text| output.status.success() && !text.is_empty())
}

fn main() {
    let commit = git(&["rev-parse", "--short=9", "HEAD"]);
    println!("cargo:rustc-env=NESTLING_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rerun-if-changed=build.rs");
    // Git appends to this file whenever HEAD moves.
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]);
    if let Some(log) = log.filter(|log| Path::new(log).exists()) {
        println!("cargo:rerun-if-changed={log}");
    }
}

//! Tests of the program on a full disk, where one can be mounted without privileges.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use nestling_testkit::{Suite, Test, run, tests};
use std::path::Path;
use std::process::{Command, ExitCode, Output};

/// Exit code of `sh` if the disk could not be mounted.
const NOT_MOUNTED: i32 = 99;

/// Runs a command in a folder with a disk of 400 kB, which `DISK` in the command stands for.
fn on_a_small_disk(command: &str) -> std::io::Result<Output> {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let disk = folder.path().display().to_string();
    let command = command.replace("DISK", &disk);
    let script = format!(
        "mount -t tmpfs -o size=400k tmpfs {disk} || exit {NOT_MOUNTED}; {command}; \
         code=$?; ls -A {disk}; umount {disk}; exit $code",
    );
    Command::new("unshare").args(["--map-root-user", "--mount", "sh", "-c", &script]).output()
}

/// Returns the reason why no disk can be mounted.
fn lacks_disks() -> Option<String> {
    match on_a_small_disk("true") {
        Err(error) => Some(format!("`unshare`, which mounts a small disk, does not run: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            Some(format!("a small disk cannot be mounted: {}", error.trim()))
        }
    }
}

/// Checks that an output that does not fit is refused before any work, with both sizes.
fn is_refused(arguments: &str) {
    let program = env!("CARGO_BIN_EXE_nestling");
    let output = on_a_small_disk(&format!("{program} {arguments}")).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("needed, 410 kB free"), "{error}");
    assert!(error.contains("or write to another disk"), "{error}");
    assert!(output.stdout.is_empty(), "something was written");
}

fn a_conversion_without_room_is_refused() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data");
    is_refused(&format!("convert {} -o DISK/x.nest", data.join("tiny-qwen3-moe").display()));
}

fn a_gguf_file_without_room_is_refused() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/gguf");
    for how in ["--exact", "--calibration none"] {
        let file = data.join("k-quants.gguf");
        is_refused(&format!("convert {how} {} -o DISK/x.nest", file.display()));
    }
}

fn a_synthetic_store_without_room_is_refused() {
    is_refused("bench synth --shape tiny -o DISK/x.nest");
}

fn main() -> ExitCode {
    let suite: Vec<Test> = tests![
        a_conversion_without_room_is_refused,
        a_gguf_file_without_room_is_refused,
        a_synthetic_store_without_room_is_refused,
    ];
    run(&[Suite::new(suite).unless(lacks_disks)])
}

//! Tests of `-hf` with a local replacement for the Hub and a checkpoint in the published layout of
//! Qwen3-30B-A3B.

use super::{ProcessOutput, crate_path, program};
use nestling_testkit::hub_server::{HubFault, Standin};
use std::collections::BTreeMap;
use std::path::Path;

const COMMIT: &str = "ad44e777bcd18fa416d9da3bd8f70d33ebb85d39";
const REPOSITORY: &str = "Nobody/Tiny-30B-A3B";

fn files() -> BTreeMap<String, Vec<u8>> {
    let folder = std::fs::read_dir(crate_path("tests/data/published-layout")).unwrap();
    let paths = folder.map(|entry| entry.unwrap().path());
    let named = paths.map(|path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        (name, std::fs::read(path).unwrap())
    });
    let mut files: BTreeMap<_, _> = named.collect();
    files.insert("README.md".into(), b"# A model".to_vec());
    files
}

fn run_at(server: &Standin, home: &Path, arguments: &[&str]) -> ProcessOutput {
    let mut command = program();
    command.env("HF_ENDPOINT", &server.address);
    command.env("HF_HOME", home.join("hf")).env("NESTLING_CACHE", home.join("nestling"));
    command.args(["run", "-hf", REPOSITORY, "-p", "hello", "-n", "8", "--temp", "0"]);
    command.args(arguments).output().unwrap().into()
}

#[test]
fn from_a_name_to_text() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = Standin::start(REPOSITORY, COMMIT, files());
    // Two transfers are interrupted.
    let shard = "model-00002-of-00004.safetensors".to_owned();
    server.state.lock().unwrap().cuts = vec![(shard.clone(), 30_000), (shard, 1_000)];
    let first = run_at(&server, home.path(), &[]);
    for words in ["download: 518 kB in 4 files", "store:    about", "disk:     needs", "free at"] {
        assert!(first.err.contains(words), "{words}: {}", first.err);
    }
    let text = first.ok();
    let version = nestling::engine::convert::QUANTIZER_VERSION;
    let name = format!("{COMMIT}-q{version}-prose1.nest");
    let store = home.path().join("nestling/stores/Nobody--Tiny-30B-A3B").join(name);
    assert!(store.is_file());
    let snapshot = format!("hf/hub/models--Nobody--Tiny-30B-A3B/snapshots/{COMMIT}");
    assert!(home.path().join(&snapshot).join("config.json").is_file());

    // Another calibration makes another store from the same download.
    let before = server.requests().len();
    run_at(&server, home.path(), &["--calibration", "none"]).ok();
    assert_eq!(server.requests().len(), before + 1);
    assert!(store.with_file_name(format!("{COMMIT}-q{version}-none.nest")).is_file());

    // A second run requests only the listing; an offline run requests nothing.
    let before = server.requests().len();
    assert_eq!(run_at(&server, home.path(), &[]).ok(), text);
    assert_eq!(server.requests().len(), before + 1);
    assert_eq!(run_at(&server, home.path(), &["--offline"]).ok(), text);
    assert_eq!(server.requests().len(), before + 1);

    // The store alone is sufficient; its source may be deleted.
    std::fs::remove_dir_all(home.path().join(snapshot)).unwrap();
    assert_eq!(run_at(&server, home.path(), &["--offline"]).ok(), text);
    let direct = program()
        .args(["run", "-m", &store.display().to_string(), "-p", "hello", "-n", "8", "--temp", "0"])
        .output()
        .unwrap();
    assert_eq!(ProcessOutput::from(direct).ok(), text);
}

#[test]
fn what_goes_wrong_is_said() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let server = Standin::start(REPOSITORY, COMMIT, files());
    run_at(&server, home.path(), &["--offline"]).fails(1, "not complete in the cache", "--offline");
    server.state.lock().unwrap().token = Some("hf_secret".into());
    run_at(&server, home.path(), &[]).fails(1, "needs an access token", "HF_TOKEN");
    let refused = run_at(&server, home.path(), &["-hft", "wrong"]);
    refused.fails(1, "refuses this access token", "accept the model's terms");
    // Damage in the length of a header, and in a weight.
    let shard = "model-00003-of-00004.safetensors".to_owned();
    server.state.lock().unwrap().flips = vec![(shard.clone(), 0)];
    let damaged = run_at(&server, home.path(), &["-hft", "hf_secret"]);
    damaged.fails(1, "model-00003-of-00004.safetensors", "again");
    server.state.lock().unwrap().flips = vec![(shard, 100_000)];
    let damaged = run_at(&server, home.path(), &["-hft", "hf_secret"]);
    damaged.fails(1, "model-00003-of-00004.safetensors arrived damaged", "again");
    server.state.lock().unwrap().flips.clear();
    run_at(&server, home.path(), &["-hft", "hf_secret", "--calibration", "none"]).ok();
}

#[test]
fn nobody_at_the_other_end() {
    let home = tempfile::tempdir_in(super::scratch()).unwrap();
    let mut command = program();
    command.env("HF_ENDPOINT", "http://127.0.0.1:9").env("HF_HOME", home.path());
    let output = command.args(["run", "-hf", REPOSITORY, "-p", "x"]).output().unwrap();
    ProcessOutput::from(output).fails(1, "cannot reach http://127.0.0.1:9", "--offline");
}

#[test]
fn a_hub_that_misbehaves_is_left() {
    const NO_SENSE: &str = "the Hub's answer makes no sense";
    let cases = [
        (HubFault::SilentListing, "hardly anything, came for 2 s", "resumes where it stopped"),
        (HubFault::EndlessListing, NO_SENSE, "HF_ENDPOINT"),
        (HubFault::SilentFile, "hardly anything, came for 2 s", "resumes where it stopped"),
        (HubFault::Trickle, "hardly anything, came for 2 s", "resumes where it stopped"),
        (HubFault::Short(10), "cannot reach", "resumes where it stopped"),
        (HubFault::Loop, NO_SENSE, "HF_ENDPOINT"),
        (HubFault::Nowhere, NO_SENSE, "HF_ENDPOINT"),
        (HubFault::Endless, "", ""),
    ];
    // The threads mostly wait.
    std::thread::scope(|scope| {
        for (manner, error, advice) in cases {
            scope.spawn(move || {
                let home = tempfile::tempdir_in(super::scratch()).unwrap();
                let server = Standin::start(REPOSITORY, COMMIT, files());
                server.state.lock().unwrap().manner = manner;
                let mut command = program();
                // The server may be silent for long on a loaded machine too.
                let seconds = if error.contains("2 s") { "2" } else { "60" };
                command.env("HF_ENDPOINT", &server.address).env("HF_HUB_DOWNLOAD_TIMEOUT", seconds);
                command.env("HF_HOME", home.path()).env("NESTLING_CACHE", home.path());
                command.args(["run", "-hf", REPOSITORY, "-p", "hello", "-n", "8"]);
                let ran: ProcessOutput =
                    command.args(["--calibration", "none"]).output().unwrap().into();
                match error {
                    "" => drop(ran.ok()),
                    _ => ran.fails(1, error, advice),
                }
            });
        }
    });
}

//! GGUF files as models.

use super::{Ran, program, scratch};
use std::path::{Path, PathBuf};

fn file(name: &str) -> PathBuf {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/tests/data/gguf");
    Path::new(data).join(name)
}

fn with_cache(cache: &Path, arguments: &[&str]) -> Ran {
    program().env("NESTLING_CACHE", cache).args(arguments).output().unwrap().into()
}

#[test]
fn a_file_is_converted_once_and_then_runs_from_the_cache() {
    let cache = scratch().join("gguf-cache");
    let path = file("qwen3-moe.gguf").display().to_string();
    let arguments = [
        "run",
        "-m",
        &path,
        "-p",
        "Once upon",
        "-n",
        "8",
        "--temp",
        "0",
        "--calibration-tokens",
        "256",
    ];
    let first = with_cache(&cache, &arguments);
    assert!(first.err.contains("error of the weights against the source:"), "{}", first.err);
    assert!(first.err.contains("experts' down"), "{}", first.err);
    assert!(first.err.contains("converted into"), "{}", first.err);
    let text = first.ok();
    let second = with_cache(&cache, &arguments);
    assert!(!second.err.contains("convert"), "{}", second.err);
    assert_eq!(second.ok(), text);
    let stores: Vec<_> = std::fs::read_dir(cache.join("stores/gguf")).unwrap().collect();
    assert_eq!(stores.len(), 1);
}

#[test]
fn a_file_that_is_run_as_it_is_waits_for_no_calibration() {
    let cache = scratch().join("gguf-light-cache");
    let path = file("qwen3-moe.gguf").display().to_string();
    let arguments = ["run", "-m", &path, "-p", "Once upon", "-n", "4", "--temp", "0"];
    let first = with_cache(&cache, &arguments);
    assert!(first.err.contains("--calibration prose"), "{}", first.err);
    let text = first.ok();
    let stores = || {
        let entries = std::fs::read_dir(cache.join("stores/gguf")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let [store] = &stores()[..] else { panic!("{:?}", stores()) };
    let name = store.file_name().unwrap().to_string_lossy().into_owned();
    assert!(name.ends_with("-none.nest"), "{name}");
    // One that was calibrated before is taken.
    std::fs::rename(store, store.with_file_name(name.replace("-none.", "-prose1."))).unwrap();
    let second = with_cache(&cache, &arguments);
    assert!(!second.err.contains("convert"), "{}", second.err);
    assert_eq!(second.ok(), text);
    assert_eq!(stores().len(), 1);
}

#[test]
fn a_file_becomes_a_store_of_its_own_bits() {
    let out = scratch().join("from-gguf.nest").display().to_string();
    let path = file("qwen3-moe.gguf").display().to_string();
    let convert = ["convert", &path, "-o", &out, "--calibration", "none"];
    with_cache(scratch(), &convert).ok();
    let level = || {
        let shown = with_cache(scratch(), &["inspect", &out, "--json"]).ok();
        serde_json::from_str::<serde_json::Value>(&shown).unwrap()["level"].as_u64()
    };
    assert_eq!(level(), Some(4));
    with_cache(scratch(), &["verify", &out]).ok();
    let more = [&convert[..], &["--top-level", "8", "--force"]].concat();
    with_cache(scratch(), &more).ok();
    assert_eq!(level(), Some(8));
}

#[test]
fn what_cannot_be_imported_is_said_at_once() {
    let path = scratch().join("broken.gguf");
    let bytes = std::fs::read(file("qwen3-moe.gguf")).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
    let ran = with_cache(scratch(), &["run", "-m", &path.display().to_string(), "-p", "a"]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.err.contains("broken.gguf: tensor `"), "{}", ran.err);
}

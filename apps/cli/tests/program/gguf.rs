//! Tests of GGUF files as models.

use super::{ProcessOutput, program, run, scratch};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, UNIX_EPOCH};

fn file(name: &str) -> PathBuf {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data/gguf");
    Path::new(data).join(name)
}

fn with_cache(cache: &Path, arguments: &[&str]) -> ProcessOutput {
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
    assert!(first.err.contains("weight error against the source:"), "{}", first.err);
    assert!(first.err.contains("experts' down"), "{}", first.err);
    assert!(first.err.contains("converted into"), "{}", first.err);
    let text = first.ok();
    let second = with_cache(&cache, &arguments);
    assert!(!second.err.contains("convert"), "{}", second.err);
    assert_eq!(second.ok(), text);
    assert_eq!(stores(&cache).len(), 1);
}

#[test]
fn a_file_that_is_run_as_it_is_runs_where_it_lies() {
    let cache = scratch().join("gguf-in-place-cache");
    let path = file("qwen3-moe.gguf").display().to_string();
    let arguments = ["run", "-m", &path, "-p", "Once upon", "-n", "4", "--temp", "0"];
    let on_cpu = [&arguments[..], &["--device", "cpu"]].concat();
    let ran = with_cache(&cache, &on_cpu);
    assert!(ran.err.contains("runs in place"), "{}", ran.err);
    let text = ran.ok();
    assert!(!text.is_empty());
    assert!(stores(&cache).is_empty());
    // A budget that is too small for all experts does not change the output.
    let streamed = with_cache(&cache, &[&on_cpu[..], &["--memory", "2M"]].concat());
    assert!(!streamed.err.contains("convert into"), "{}", streamed.err);
    if streamed.code == Some(0) {
        assert_eq!(streamed.ok(), text);
    } else {
        assert!(streamed.err.contains("memory"), "{}", streamed.err);
    }
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

/// Returns the names of finished and unfinished stores, without the notes about their sources.
fn stores(cache: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(cache.join("stores/gguf")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.ends_with(".source.json")).collect()
}

/// Returns the arguments of a run with a slow conversion.
fn slowly(path: &str) -> Vec<&str> {
    vec!["run", "-m", path, "-p", "Once", "-n", "4", "--temp", "0", "--calibration-tokens", "512"]
}

fn start(cache: &Path, arguments: &[&str]) -> Child {
    let mut command = program();
    command.env("NESTLING_CACHE", cache).args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn files_that_look_alike_are_models_of_their_own() {
    let cache = scratch().join("gguf-alike-cache");
    let bytes = std::fs::read(file("qwen3-moe.gguf")).unwrap();
    let mut tuned = bytes.clone();
    tuned[100_000..].iter_mut().for_each(|byte| *byte ^= 1);
    // Package managers leave files with equal name, length and time.
    let place = |folder: &str, bytes: &[u8]| {
        let path = scratch().join("alike").join(folder).join("model.gguf");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
        path.display().to_string()
    };
    let convert = |path: &str| {
        let run = ["run", "-m", path, "-p", "Once", "-n", "4", "--temp", "0"];
        with_cache(&cache, &[&run[..], &["--calibration", "none"]].concat())
    };
    let (a, b) = (place("a", &bytes), place("b", &tuned));
    for (path, count) in [(&a, 1), (&b, 2)] {
        let ran = convert(path);
        assert!(ran.err.contains("converted into"), "{}", ran.err);
        ran.ok();
        assert_eq!(stores(&cache).len(), count);
    }
    // The stores of both files are found again.
    for path in [&a, &b] {
        let ran = convert(path);
        assert!(!ran.err.contains("convert"), "{}", ran.err);
    }
    // Same path, length and time, but different weights.
    let mut again = tuned;
    let last = again.len() - 1;
    again[last] ^= 1;
    let ran = convert(&place("b", &again));
    assert!(ran.err.contains("converted into"), "{}", ran.err);
    assert_eq!(stores(&cache).len(), 3);
}

#[test]
fn several_first_starts_share_one_conversion() {
    let cache = scratch().join("gguf-shared-cache");
    let path = file("qwen3-moe.gguf").display().to_string();
    let children: Vec<Child> = (0..5).map(|_| start(&cache, &slowly(&path))).collect();
    let ran: Vec<ProcessOutput> =
        children.into_iter().map(|child| child.wait_with_output().unwrap().into()).collect();
    let told = |words: &str| ran.iter().filter(|ran| ran.err.contains(words)).count();
    let all: Vec<_> = ran.iter().map(|ran| &ran.err).collect();
    assert_eq!(told("converted into"), 1, "{all:?}");
    assert!(told("another process converts this model; waiting for it") > 0, "{all:?}");
    let texts: Vec<String> = ran.into_iter().map(ProcessOutput::ok).collect();
    assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    assert_eq!(stores(&cache).len(), 1);
}

#[test]
fn a_conversion_that_died_holds_up_nobody() {
    let cache = scratch().join("gguf-died-cache");
    let path = file("qwen3-moe.gguf").display().to_string();
    let mut dying = start(&cache, &slowly(&path));
    while stores(&cache).is_empty() && dying.try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(5));
    }
    let waiting = start(&cache, &slowly(&path));
    dying.kill().unwrap();
    dying.wait().unwrap();
    let text = ProcessOutput::from(waiting.wait_with_output().unwrap()).ok();
    assert_eq!(with_cache(&cache, &slowly(&path)).ok(), text);
    assert_eq!(stores(&cache).len(), 1);
}

#[test]
fn a_store_of_an_earlier_version_is_told_of() {
    let cache = scratch().join("gguf-old-cache");
    let old = "qwen3-moe-0123456789ab-q1-none.nest";
    std::fs::create_dir_all(cache.join("stores/gguf")).unwrap();
    std::fs::write(cache.join("stores/gguf").join(old), "much").unwrap();
    let path = file("qwen3-moe.gguf").display().to_string();
    let run = ["run", "-m", &path, "-p", "Once", "-n", "1", "--calibration", "none"];
    let ran = with_cache(&cache, &run);
    assert!(ran.err.contains(old) && ran.err.contains("no longer used"), "{}", ran.err);
    ran.ok();
    assert_eq!(stores(&cache).len(), 2);
}

/// Blocks of a GGUF file are kept exactly. Floats are quantized, which is reported.
#[test]
fn a_file_is_converted_exactly() {
    for (name, said) in [
        ("qwen3-moe.gguf", "every matrix is stored exactly as the file has it"),
        ("gemma4-bf16.gguf", "matrices are floats in the file"),
    ] {
        let (path, store) = (file(name), scratch().join(format!("{name}.nest")));
        let (path, store) = (path.display().to_string(), store.display().to_string());
        let made = run(&["convert", "--exact", &path, "-o", &store]);
        assert_eq!(made.code, Some(0), "{}", made.err);
        assert!(made.err.contains(said), "{}", made.err);
        let verified = run(&["verify", &store]);
        assert_eq!(verified.code, Some(0), "{}", verified.err);
        let text = run(&["run", "-m", &store, "-p", "Once upon", "-n", "4"]);
        assert_eq!(text.code, Some(0), "{}", text.err);
    }
}

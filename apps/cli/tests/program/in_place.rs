//! Tests of GGUF files in place: every command accepts one, and no store is written.

use super::{ProcessOutput, program, scratch};
use nestling::engine::in_place::open_in_place;
use nestling::formats::store::{Digits, Store};
use nestling::import::Checkpoint;
use nestling_hub::FirstReads;
use nestling_testkit::hub_server::Standin;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../engine/runtime/tests/data/gguf").join(name)
}

struct HomeFolder(tempfile::TempDir);

impl HomeFolder {
    fn new() -> Self {
        Self(tempfile::tempdir_in(scratch()).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn run(&self, arguments: &[&str]) -> ProcessOutput {
        let mut command = program();
        command.env("NESTLING_CACHE", self.path("cache")).args(arguments);
        command.output().unwrap().into()
    }

    fn copy(&self, name: &str) -> String {
        let to = self.path(name);
        std::fs::copy(data(name), &to).unwrap();
        to.display().to_string()
    }

    fn has_stores(&self) -> bool {
        self.path("cache/stores").exists()
    }
}

const SPEEDS: [&str; 6] = ["--memory-speed", "20GB", "--disk-speed", "1GB", "--threads", "1"];

fn text() -> String {
    let path = scratch().join("in-place.txt");
    std::fs::write(&path, "The captain looked at the chart and said nothing. ".repeat(12)).unwrap();
    path.display().to_string()
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_file_is_inspected_where_it_lies() {
    let home = HomeFolder::new();
    let path = home.copy("k-quants.gguf");
    let shown = json(&home.run(&["inspect", &path, "--json"]).ok());
    assert_eq!((&shown["path"], &shown["format"]), (&path.clone().into(), &"gguf".into()));
    assert_eq!(shown["in_place"], true);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for (_, tensor) in checkpoint.tensors() {
        let sum = sums.entry(tensor.element.name()).or_default();
        *sum = (sum.0 + 1, sum.1 + tensor.length);
    }
    let types = shown["types"].as_array().unwrap();
    assert_eq!(types.len(), sums.len());
    for share in types {
        let found = (share["tensors"].as_u64().unwrap(), share["bytes"].as_u64().unwrap());
        assert_eq!(sums[share["type"].as_str().unwrap()], found, "{share}");
    }
    // The file has one level, regardless of its block types.
    assert_eq!(shown["levels"].as_array().unwrap().len(), 1);
    assert_eq!(shown["levels"][0]["level"], shown["level"]);
    assert_eq!(shown["chat_template_fault"], Value::Null);
    let text = home.run(&["inspect", &path]).ok();
    for words in ["Q4_K", "one level: experts are read whole", "convert --exact", "tokenizer.json"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!home.has_stores());
}

#[test]
fn a_file_is_planned_for_where_it_lies() {
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let plan = |more: &[&str]| home.run(&[&["plan", &path], &SPEEDS[..], more].concat());
    let text = plan(&["--memory", "64MiB"]).ok();
    assert!(text.contains("runs in place: no store is made of it"), "{text}");
    assert!(!text.contains("once converted"), "{text}");
    let levels = |text: &str| {
        let table = text.split("read/token\n").nth(1).unwrap();
        table.lines().count()
    };
    assert_eq!(levels(&text), 1, "{text}");
    let warned = plan(&["--memory", "64MiB", "--level", "2"]);
    assert!(warned.err.contains("--level has no effect on"), "{}", warned.err);
    assert_eq!(warned.ok(), text);
    let planned = json(&plan(&["--memory", "64MiB", "--json"]).ok());
    assert_eq!(planned["arrival"]["in_place"], true);
    assert_eq!(planned["arrival"]["store_bytes"], Value::Null);
    // The plan matches the memory of a run.
    let stats = home.path("stats.json").display().to_string();
    let run = ["run", "-m", &path, "-p", "Once", "-n", "4", "--memory", "64MiB", "-t", "1"];
    home.run(&[&run[..], &["--level", "2", "--stats-json", &stats]].concat()).ok();
    let stats = json(&std::fs::read_to_string(stats).unwrap());
    assert!(stats["forecast"]["tokens_per_s"].as_f64() > Some(0.0), "{stats}");
    assert!(!home.has_stores());
}

#[test]
fn the_doctor_and_bench_take_a_file() {
    let home = HomeFolder::new();
    let path = home.copy("olmoe.gguf");
    let doctor = home.run(&[&["doctor", &path], &SPEEDS[..]].concat()).ok();
    assert!(doctor.contains("fit in memory"), "{doctor}");
    let line = ["bench", "-m", &path, "-p", "6", "-n", "3", "-t", "1", "-r", "1", "--no-bandwidth"];
    let records = json(&home.run(&[&line[..], &["-o", "json"]].concat()).ok());
    assert_eq!(records.as_array().unwrap().len(), 2);
    let warned = home.run(&[&line[..], &["--level", "2", "-o", "json"]].concat());
    assert!(warned.err.contains("--level has no effect on"), "{}", warned.err);
    warned.ok();
    let mapped = home.run(&[&line[..], &["--load-mode", "mmap"]].concat());
    mapped.fails(1, "without --load-mode mmap: it cannot be mapped", "nestling convert --exact");
    assert!(!home.has_stores());
}

/// Any requested level uses the whole file. Its perplexity equals that of the exact store.
#[test]
fn a_file_is_judged_where_it_lies() {
    let home = HomeFolder::new();
    let (path, text) = (home.copy("qwen3-moe.gguf"), text());
    let judge = |model: &str, more: &[&str]| {
        let line = ["perplexity", "-m", model, "-f", &text, "-c", "32", "--tokens", "128"];
        home.run(&[&line[..], more].concat())
    };
    let rows = |ran: ProcessOutput| json(&ran.ok())["rows"].as_array().unwrap().clone();
    let found = rows(judge(&path, &["--json"]));
    assert_eq!(found.len(), 1);
    let streamed = rows(judge(&path, &["--json", "--memory", "3MiB"]));
    assert_eq!(streamed[0]["perplexity"], found[0]["perplexity"]);
    assert!(!home.has_stores());
    let store = home.path("exact.nest").display().to_string();
    home.run(&["convert", "--exact", &path, "-o", &store]).ok();
    let of_store = rows(judge(&store, &["--json", "--levels", "4"]));
    assert_eq!(of_store[0]["perplexity"], found[0]["perplexity"]);
    let warned = judge(&path, &["--json", "--levels", "2,4"]);
    assert!(warned.err.contains("--levels has no effect on"), "{}", warned.err);
    assert_eq!(rows(warned).len(), 1);
    let refused = judge(&path, &["--bits", "2.5"]);
    refused.fails(1, "without --bits: its weights have one level", "nestling convert --exact");
}

/// Splits a file into three parts, as llama.cpp's tool does.
fn split(bytes: &[u8], folder: &Path) -> PathBuf {
    let header = Header::of(bytes);
    let count = header.tensors.len();
    let ends = [count / 3, 2 * count / 3, count];
    let mut start = 0;
    for (number, end) in ends.into_iter().enumerate() {
        let part = header.part(bytes, start..end, number as u16, ends.len() as u16);
        let name = format!("model-{:05}-of-{:05}.gguf", number + 1, ends.len());
        std::fs::write(folder.join(name), part).unwrap();
        start = end;
    }
    folder.join("model-00001-of-00003.gguf")
}

/// Positions in a GGUF file.
struct Header {
    /// Byte range of the metadata, and the number of its keys.
    keys: std::ops::Range<usize>,
    key_count: u64,
    /// Tensor entries without their offsets, and the byte range of each tensor.
    tensors: Vec<(Vec<u8>, std::ops::Range<usize>)>,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn small(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn value_end(bytes: &[u8], at: usize, kind: u32) -> usize {
    match kind {
        0 | 1 | 7 => at + 1,
        2 | 3 => at + 2,
        4..=6 => at + 4,
        8 => at + 8 + number(bytes, at) as usize,
        9 => {
            let (kind, count) = (small(bytes, at), number(bytes, at + 4));
            (0..count).fold(at + 12, |at, _| value_end(bytes, at, kind))
        }
        _ => at + 8,
    }
}

impl Header {
    fn of(bytes: &[u8]) -> Self {
        let (tensor_count, key_count) = (number(bytes, 8), number(bytes, 16));
        let mut at = 24;
        for _ in 0..key_count {
            at += 8 + number(bytes, at) as usize;
            at = value_end(bytes, at + 4, small(bytes, at));
        }
        let keys = 24..at;
        let mut entries = Vec::new();
        for _ in 0..tensor_count {
            let start = at;
            at += 8 + number(bytes, at) as usize;
            at += 4 + 8 * small(bytes, at) as usize + 4;
            entries.push((bytes[start..at].to_vec(), number(bytes, at) as usize));
            at += 8;
        }
        let data = at.next_multiple_of(32);
        let ends = entries.iter().skip(1).map(|(_, offset)| data + offset).chain([bytes.len()]);
        let tensors = entries.iter().zip(ends);
        let tensors = tensors.map(|((entry, offset), end)| (entry.clone(), data + offset..end));
        Self { keys, key_count, tensors: tensors.collect() }
    }

    fn part(&self, bytes: &[u8], of: std::ops::Range<usize>, part: u16, parts: u16) -> Vec<u8> {
        let tensors = &self.tensors[of];
        let own = if part == 0 { self.key_count } else { 0 };
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend((own + 3).to_le_bytes());
        if part == 0 {
            out.extend(&bytes[self.keys.clone()]);
        }
        let mut key = |name: &str, kind: u32, value: &[u8]| {
            out.extend((name.len() as u64).to_le_bytes());
            out.extend(name.as_bytes());
            out.extend(kind.to_le_bytes());
            out.extend(value);
        };
        key("split.no", 2, &part.to_le_bytes());
        key("split.count", 2, &parts.to_le_bytes());
        key("split.tensors.count", 5, &(self.tensors.len() as i32).to_le_bytes());
        let mut offset = 0;
        for (entry, range) in tensors {
            out.extend(entry);
            out.extend((offset as u64).to_le_bytes());
            offset = (offset + range.len()).next_multiple_of(32);
        }
        for (_, range) in tensors {
            out.resize(out.len().next_multiple_of(32), 0);
            out.extend(&bytes[range.clone()]);
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out
    }
}

#[test]
fn a_file_in_parts_is_one_model() {
    let home = HomeFolder::new();
    let whole = home.copy("qwen3-moe.gguf");
    let first = split(&std::fs::read(&whole).unwrap(), home.0.path()).display().to_string();
    let shown = json(&home.run(&["inspect", &first, "--json"]).ok());
    assert_eq!(shown["files"].as_array().unwrap().len(), 3);
    let whole_shown = json(&home.run(&["inspect", &whole, "--json"]).ok());
    assert_eq!((&shown["types"], &shown["model"]), (&whole_shown["types"], &whole_shown["model"]));
    let verified = home.run(&["verify", &first]).ok();
    assert!(verified.contains("in 3 files, no damage found"), "{verified}");
    let line = |path: &str| home.run(&["run", "-m", path, "-p", "Once", "-n", "6", "--temp", "0"]);
    assert_eq!(line(&first).ok(), line(&whole).ok());
    home.run(&[&["plan", &first], &SPEEDS[..]].concat()).ok();
    std::fs::remove_file(home.path("model-00002-of-00003.gguf")).unwrap();
    let missing = home.run(&["verify", &first]);
    assert!(missing.err.contains("model-00002-of-00003.gguf"), "{}", missing.err);
    assert_eq!(missing.code, Some(1));
}

const COMMIT: &str = "66ac0777bcd18fa416d9da3bd8f70d33ebb85d39";

#[test]
fn a_file_of_the_hub_is_taken_by_every_command() {
    let home = HomeFolder::new();
    let file = std::fs::read(data("qwen3-moe.gguf")).unwrap();
    let files = BTreeMap::from([("Tiny-MoE-Q4_0.gguf".to_owned(), file)]);
    let server = Standin::start("Nobody/Tiny-MoE-GGUF", COMMIT, files);
    let run = |arguments: &[&str]| -> ProcessOutput {
        let mut command = program();
        command.env("HF_ENDPOINT", &server.address).env("HF_HOME", home.path("hf"));
        command.env("NESTLING_CACHE", home.path("cache")).args(arguments);
        // Arguments override the variable.
        command.env("NESTLING_MODEL", "/nowhere").output().unwrap().into()
    };
    let chosen = ["-hf", "Nobody/Tiny-MoE-GGUF:Q4_0"];
    let plan = run(&[&["plan"], &chosen[..], &SPEEDS].concat()).ok();
    for words in ["in 1 file (GGUF Q4_0)", "runs in place", "it would run here"] {
        assert!(plan.contains(words), "{words}: {plan}");
    }
    assert!(!plan.contains("once converted"), "{plan}");
    let inspected = run(&[&["inspect"], &chosen[..]].concat());
    assert!(inspected.err.contains("download:"), "{}", inspected.err);
    assert!(!inspected.err.contains("store:"), "no store is made: {}", inspected.err);
    assert!(inspected.ok().contains("Q4_0"));
    let text = text();
    let verify = run(&[&["verify"], &chosen[..]].concat()).ok();
    assert!(verify.contains("no damage found"), "{verify}");
    run(&[&["doctor"], &chosen[..], &SPEEDS].concat()).ok();
    run(&[&["perplexity", "-f", &text, "-c", "32", "--tokens", "64"], &chosen[..]].concat()).ok();
    let bench = ["bench", "-p", "4", "-n", "0", "-r", "1", "--no-bandwidth"];
    run(&[&bench[..], &chosen].concat()).ok();
    run(&[&["run", "-p", "Once", "-n", "2"], &chosen[..]].concat()).ok();
    assert!(!home.path("cache/stores/gguf").exists());
    let stores = home.path("cache/stores/Nobody--Tiny-MoE-GGUF");
    let made = std::fs::read_dir(stores).into_iter().flatten().flatten();
    assert_eq!(
        made.filter(|entry| entry.path().extension().is_some_and(|e| e == "nest")).count(),
        0
    );
}

fn open(path: &str) -> Store {
    open_in_place(Arc::new(Checkpoint::open(path).unwrap()), Digits::Merged).unwrap()
}

#[test]
fn damage_is_found_by_what_was_read_before() {
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let first = home.run(&["verify", &path]).ok();
    assert!(first.contains("later damage is always found"), "{first}");
    let second = home.run(&["verify", &path]).ok();
    let store = open(&path);
    let count = store.index().extents().len();
    assert!(second.contains(&format!("{count} of {count} extents were read before")), "{second}");
    // Simulates a different first read of an expert before its disk failed.
    let reads = FirstReads::new(home.path("cache/reads"));
    assert_eq!(reads.recall(&store), count);
    let mut firsts = store.first_checksums().unwrap();
    let expert = store.groups().iter().find(|group| group.id.expert().is_some()).unwrap();
    let number = expert.extents.iter().flatten().next().copied().unwrap() as usize;
    firsts[number].as_mut().unwrap()[3] ^= 0x40;
    let damaged = open(&path);
    damaged.expect_checksums(&firsts).unwrap();
    reads.keep(&damaged).unwrap();
    let told = "blk.0.ffn_gate_exps.weight` from byte";
    let verify = home.run(&["verify", &path]);
    verify.fails(3, "1 place is damaged", "download it again");
    assert!(verify.err.contains("damaged since it was first read"), "{}", verify.err);
    assert!(verify.err.contains(told), "{}", verify.err);
    let run = home.run(&["run", "-m", &path, "-p", "Once upon a time", "-n", "8"]);
    run.fails(3, "damaged since it was first read", "download the file again");
    // Invalid saved checksums are discarded.
    let kept = reads.path(&store);
    std::fs::write(&kept, "nonsense").unwrap();
    let again = home.run(&["verify", &path]).ok();
    assert!(again.contains("later damage is always found"), "{again}");
    // A modified file counts as another file.
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let changed = home.run(&["verify", &path]).ok();
    assert!(changed.contains("later damage is always found"), "{changed}");
}

#[test]
fn what_makes_no_numbers_is_damage_and_what_is_short_is_refused() {
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let checkpoint = Checkpoint::open(&path).unwrap();
    let (name, tensor) = checkpoint.tensors().find(|(name, _)| name.contains("up_exps")).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let scale = tensor.offset as usize + 3 * tensor.element.block_bytes();
    bytes[scale..scale + 2].copy_from_slice(&[0, 0x7e]);
    let nan = home.path("nan.gguf").display().to_string();
    std::fs::write(&nan, &bytes).unwrap();
    let verify = home.run(&["verify", &nan]);
    verify.fails(3, "1 place is damaged", "download it again");
    assert!(verify.err.contains(name) && verify.err.contains("block 3"), "{}", verify.err);
    std::fs::write(&nan, &bytes[..bytes.len() - 4096]).unwrap();
    let short = home.run(&["verify", &nan]);
    assert_eq!(short.code, Some(1), "{}", short.err);
    assert!(short.err.contains("nan.gguf: tensor `"), "{}", short.err);
}

#[test]
fn a_cache_that_cannot_be_written_hinders_nothing() {
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let blocked = home.path("blocked");
    std::fs::write(&blocked, "a file").unwrap();
    for arguments in [
        &["run", "-m", &path, "-p", "Once", "-n", "2"][..],
        &["inspect", &path],
        &["verify", &path],
        &["verify", &path],
    ] {
        let mut command = program();
        let ran: ProcessOutput =
            command.env("NESTLING_CACHE", &blocked).args(arguments).output().unwrap().into();
        ran.ok();
    }
}

#[test]
fn options_of_levels_are_told_of() {
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let run = |more: &[&str]| {
        home.run(&[&["run", "-m", &path, "-p", "Once", "-n", "4", "--temp", "0"], more].concat())
    };
    let plain = run(&[]).ok();
    for flags in [&["--level", "2"][..], &["--mean-level", "3"], &["--elastic"]] {
        let ran = run(flags);
        assert!(ran.err.contains(&format!("{} has no effect on", flags[0])), "{}", ran.err);
        assert_eq!(ran.ok(), plain);
    }
    run(&["--weight-budget", "1GiB"]).fails(1, "without --weight-budget", "convert --exact");
    run(&["--load-mode", "mmap"]).fails(1, "without --load-mode mmap", "convert --exact");
}

#[cfg(unix)]
#[test]
fn a_store_is_made_beside_a_chat_and_used_at_the_next_start() {
    use super::terminal::Terminal;
    let home = HomeFolder::new();
    let path = home.copy("qwen3-moe.gguf");
    let start = |more: &[&str]| {
        let mut command = program();
        command.env("NESTLING_CACHE", home.path("cache"));
        command.args(["chat", "-m", &path, "--temp", "0", "-n", "2", "--no-history"]).args(more);
        let mut terminal = Terminal::start(command, 100);
        let screen = terminal.expect(">>> ");
        (terminal, screen)
    };
    let (mut chat, screen) = start(&["--convert-in-background"]);
    assert!(screen.contains("runs in place"), "{screen}");
    let folder = home.path("cache/stores/gguf");
    let made = || {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| path.extension().is_some_and(|ending| ending == "nest"))
    };
    // The store is complete when its journal has been removed.
    while made().is_none() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let mut told = String::new();
    for _ in 0..100 {
        chat.type_in("hi\r");
        told += &chat.expect("Generation:");
        told += &chat.expect(">>> ");
        if told.contains("used at the next start") {
            break;
        }
    }
    assert!(told.contains("Store: made, and used at the next start"), "{told}");
    drop(chat);
    let store = made().unwrap().display().to_string();
    home.run(&["verify", &store]).ok();
    let (_chat, screen) = start(&[]);
    assert!(screen.contains("is the store that was made of it"), "{screen}");
    // The output is the same, and lower levels are available.
    let run = |more: &[&str]| {
        home.run(&[&["run", "-m", &path, "-p", "Once", "-n", "6", "--temp", "0"], more].concat())
    };
    let of_store = run(&[]).ok();
    run(&["--level", "2"]).ok();
    std::fs::remove_file(store).unwrap();
    assert_eq!(run(&[]).ok(), of_store);
}

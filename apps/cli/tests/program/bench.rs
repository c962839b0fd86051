//! Tests of `nestling bench`: names and fields compatible with llama-bench, and synthetic stores.

use super::{ProcessOutput, bundled, run, scratch, store};
use serde_json::Value;
use std::sync::OnceLock;

/// Returns a synthetic store, written once.
fn synthetic() -> &'static str {
    static STORE: OnceLock<String> = OnceLock::new();
    STORE.get_or_init(|| {
        let path = scratch().join("synthetic.nest").display().to_string();
        let line = ["bench", "synth", "--shape", "tiny", "--top-level", "4", "-o", &path];
        let text = run(&line).ok();
        for words in ["active per token", "12.5/25/50 %"] {
            assert!(text.contains(words), "{text}");
        }
        path
    })
}

fn bench(store: &str, more: &[&str]) -> ProcessOutput {
    let line = ["bench", "-m", store, "-t", "1", "-r", "2", "--no-bandwidth"];
    let sizes: &[&str] = if more.contains(&"-p") { &[] } else { &["-p", "6", "-n", "3"] };
    run(&[&line[..], sizes, more].concat())
}

fn records(store: &str, more: &[&str]) -> Vec<Value> {
    let json = bench(store, &[&["-o", "json"], more].concat()).ok();
    serde_json::from_str(&json).unwrap()
}

#[test]
fn json_has_the_fields_that_scripts_read() {
    let records = records(store(), &[]);
    let sizes: Vec<_> = records.iter().map(|r| (&r["n_prompt"], &r["n_gen"])).collect();
    assert_eq!(format!("{sizes:?}"), "[(Number(6), Number(0)), (Number(0), Number(3))]");
    for record in &records {
        for key in ["build_commit", "cpu_info", "model_filename", "model_type", "test_time"] {
            assert!(record[key].is_string(), "{key}: {record}");
        }
        for key in ["avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "n_depth", "n_threads"] {
            assert!(record[key].is_number(), "{key}: {record}");
        }
        for key in ["samples_ns", "samples_ts"] {
            assert_eq!(record[key].as_array().unwrap().len(), 2, "{key}: {record}");
        }
        let tokens = record["n_prompt"].as_f64().unwrap() + record["n_gen"].as_f64().unwrap();
        let (speed, time) = (&record["samples_ts"][0], &record["samples_ns"][0]);
        let expected = tokens * 1e9 / time.as_f64().unwrap();
        assert!((speed.as_f64().unwrap() / expected - 1.0).abs() < 1e-6, "{record}");
        assert_eq!(record["hit_rate"], 1.0);
        assert!(record["memory_share"].is_null());
    }
}

#[test]
fn experts_without_room_are_streamed_and_the_cold_start_is_apart() {
    let flags = ["-p", "0", "-n", "4", "--memory", "24MB", "--warmup-tokens", "6"];
    let records = records(bundled(), &flags);
    let record = &records[0];
    assert_eq!((&record["load_mode"], &record["cold_tokens"]), (&"stream".into(), &6.into()));
    let streaming = &record["streaming"];
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(number(&record["cold_ts"]) > 0.0 && number(&record["cold_read_bytes"]) > 0.0);
    assert!((0.0..1.0).contains(&number(&record["hit_rate"])), "{record}");
    assert!(number(&streaming["missing_bytes_per_token"]) > 0.0, "{streaming}");
    assert_eq!(streaming["served_share_of_asked_bits"], 1.0);
    let held = self::records(bundled(), &["-p", "0", "-n", "4"]);
    assert_eq!((&held[0]["load_mode"], &held[0]["hit_rate"]), (&"owned".into(), &1.0.into()));
    assert!(held[0]["streaming"].is_null() && held[0]["cold_ts"].is_null());
}

#[test]
fn ranks_are_measured_and_recorded() {
    let flags = ["-p", "5", "-n", "2", "--ranks", "1,2,3"];
    let records = records(synthetic(), &flags);
    let ranks: Vec<_> = records.iter().map(|record| record["n_ranks"].as_u64().unwrap()).collect();
    assert_eq!(ranks, [1, 1, 2, 2, 3, 3]);
    let number = |record: &Value, key: &str| record[key].as_f64().unwrap();
    let [_, one, .., three] = &records[..] else { panic!("{records:?}") };
    assert!(one["exchanges_per_token"].is_null() && one["rank_sent_bytes_per_token"].is_null());
    // One exchange for the embedding, four in each of two layers, one for the head, and a report.
    assert_eq!(number(three, "exchanges_per_token"), 11.0);
    assert!(number(three, "rank_sent_bytes_per_token") > 1000.0, "{three}");
    // Each expert and row is read by one rank; routers and norms by each.
    let (all, whole) = (number(three, "token_bytes"), number(one, "token_bytes"));
    assert!(all > 0.5 * whole && all < 1.5 * whole, "{one} {three}");
    let streamed =
        self::records(bundled(), &["-p", "0", "-n", "2", "--ranks", "2", "--memory", "48MB"]);
    assert_eq!((&streamed[0]["load_mode"], &streamed[0]["n_ranks"]), (&"stream".into(), &2.into()));
    let flags = ["-p", "0", "-n", "2", "--ranks", "2", "--experts-over-ranks", "sliced"];
    let sliced = self::records(synthetic(), &flags);
    assert_eq!(sliced[0]["experts_over_ranks"], "sliced");
    assert_eq!(sliced[0]["kv_over_ranks"], "replicated");
    let flags = ["-p", "0", "-n", "2", "--ranks", "2", "--kv-over-ranks", "heads"];
    assert_eq!(self::records(bundled(), &flags)[0]["kv_over_ranks"], "heads");
    bench(synthetic(), &["--ranks", "65"]).fails(2, "65 ranks", "--ranks 1 to 64");
    let unnumbered = bench(synthetic(), &["--ranks", "2", "--device", "wgpu"]);
    unnumbered.fails(1, "by their index", "give 2 GPUs");
}

#[test]
fn progress_is_in_the_words_that_scripts_wait_for() {
    let ran = bench(store(), &["--progress", "-d", "2", "-o", "jsonl"]);
    for words in ["warmup prompt run", "depth run 1/2", "prompt run 2/2", "generation run 1/2"] {
        assert!(ran.err.contains(words), "`{words}` is not in {}", ran.err);
    }
    assert!(ran.err.contains("benchmark 2/2: generation run"), "{}", ran.err);
    assert_eq!(bench(store(), &["--no-warmup"]).err, "");
    assert_eq!(ran.ok().lines().count(), 2);
}

/// The bytes per token depend on the level, and sessions share the weights that they read.
#[test]
fn every_list_gives_a_line_and_says_what_it_read() {
    let records = records(synthetic(), &["-p", "0", "-n", "2", "--sessions", "1,8"]);
    let bytes = |record: &Value| record["token_bytes"].as_f64().unwrap();
    let [one, eight] = &records[..] else { panic!("{records:?}") };
    assert!(bytes(eight) < bytes(one), "{one} {eight}");
    let table = bench(synthetic(), &["--level", "2,4", "--load-mode", "owned,mmap", "-pg", "4,2"]);
    let table = table.ok();
    assert!(table.contains("| tiny random ") && !table.contains("0.00B"), "{table}");
    assert_eq!(table.lines().filter(|line| line.contains("pp4+tg2")).count(), 4, "{table}");
    assert!(table.lines().all(|line| line.starts_with('|') && line.ends_with('|')), "{table}");
    let width = table.lines().next().unwrap().chars().count();
    assert!(table.lines().all(|line| line.chars().count() == width), "{table}");
    let csv = bench(synthetic(), &["-o", "csv"]).ok();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    assert!(csv.starts_with("build_commit,build_number,cpu_info,"), "{csv}");
}

#[test]
fn what_computes_is_said_once() {
    let line = ["bench", "-m", store(), "--level", "2,4", "-t", "1,2", "-p", "0", "-n", "1", "-r"];
    // The shell merges both streams in the order of writing.
    let script = format!("{} {} 1 2>&1", env!("CARGO_BIN_EXE_nestling"), line.join(" "));
    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-c", &script]).env("NESTLING_DEVICE", "auto").output().unwrap();
    let text = ProcessOutput::from(output).ok();
    let is_row = |line: &&str| line.starts_with('|');
    let rows = text.lines().filter(is_row).count();
    let table = text.lines().skip_while(|line| !is_row(line));
    assert_eq!((rows, table.take_while(is_row).count()), (6, 6), "{text}");
    assert!(text.to_lowercase().matches("computing on").count() <= 1, "{text}");
}

#[test]
fn memory_is_measured_beside_it() {
    let line = ["bench", "-m", store(), "-t", "1", "-p", "0", "-n", "1", "-r", "1", "-o", "json"];
    let ran = run(&line);
    assert!(ran.err.contains("GB/s read by 1 thread\n"), "{}", ran.err);
    let records: Vec<Value> = serde_json::from_str(&ran.ok()).unwrap();
    let share = records[0]["memory_share"].as_f64().unwrap();
    assert!((0.0..2.0).contains(&share), "{share}");
}

#[test]
fn a_synthetic_store_runs() {
    run(&["verify", synthetic()]).ok();
    run(&["run", "-m", synthetic(), "-p", "the ship", "-n", "3"]).ok();
    let inspected = run(&["inspect", synthetic()]).ok();
    assert!(inspected.contains("16 experts of 256"), "{inspected}");
}

#[test]
fn what_cannot_be_measured_or_written() {
    bench(store(), &["-p", "0", "-n", "0"]).fails(2, "nothing to measure", "-p");
    bench(synthetic(), &["--level", "8"]).fails(1, "does not hold level 8", "--level");
    let line = ["bench", "synth", "--shape", "tiny", "-o"];
    run(&[&line[..], &[synthetic()]].concat()).fails(1, "exists already", "--force");
    let many = run(&[&line[..], &["many.nest", "--layers", "3"]].concat());
    many.fails(2, "tiny has 2 layers, not 3", "--layers 1 to 2");
    let folder = scratch().display().to_string();
    run(&[&line[..], &[&folder]].concat()).fails(1, "is a folder", "file");
    let skewed = [&line[..], &["x.nest", "--router-skew", "-1"]].concat();
    assert_eq!(run(&skewed).code, Some(2));
    let ran = run(&["bench", "-p", "many"]);
    assert!(ran.code == Some(2) && ran.err.contains("not a list of numbers"), "{}", ran.err);
}

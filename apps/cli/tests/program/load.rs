//! Tests of `nestling bench serve` with `nestling serve`.

use super::serve::ServerProcess;
use super::{ProcessOutput, run, scratch};
use serde_json::Value;

fn load(url: &str, options: &[&str]) -> ProcessOutput {
    run(&[&["bench", "serve", "--url", url], options].concat())
}

#[test]
fn a_server_is_measured_under_several_loads() {
    let keys = scratch().join("load-keys");
    std::fs::write(&keys, "sk-load\n").unwrap();
    let serving = ServerProcess::start(&["--api-key-file", keys.to_str().unwrap()]);
    let url = format!("http://{}", serving.address);
    let plot = scratch().join("load.svg");
    let same =
        ["--client-key-file", keys.to_str().unwrap(), "--num-prompts", "6", "--output-len", "5"];
    let closed = [
        "--max-concurrency",
        "1,3",
        "--input-len",
        "8-40",
        "-o",
        "json",
        "--svg",
        plot.to_str().unwrap(),
    ];
    let measured = load(&url, &[&same[..], &closed[..]].concat());
    assert_eq!(measured.code, Some(0), "{}", measured.err);
    let records: Value = serde_json::from_str(&measured.out).unwrap();
    let records = records.as_array().unwrap();
    assert_eq!(records.len(), 2);
    for (record, clients) in records.iter().zip([1, 3]) {
        let whole = |name: &str| record[name].as_u64().unwrap();
        assert_eq!(
            (whole("max_concurrency"), whole("completed"), whole("failed")),
            (clients, 6, 0)
        );
        assert_eq!(whole("total_output_tokens"), 30, "{record}");
        assert!((48..=240).contains(&whole("total_input_tokens")));
        let (first, last) = (record["p50_ttft_ms"].as_f64(), record["p99_ttft_ms"].as_f64());
        assert!(first > Some(0.0) && last >= first && record["request_rate"] == "inf");
    }
    let drawn = std::fs::read_to_string(&plot).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.contains("<circle"));

    let open = [
        "--request-rate",
        "50",
        "--prefix-len",
        "64",
        "--input-len",
        "4",
        "--goodput",
        "ttft:60000",
    ];
    let measured = load(&url, &[&same[..], &open[..]].concat());
    assert_eq!(measured.code, Some(0), "{}", measured.err);
    let table = measured.out;
    let line: Vec<&str> = table.lines().last().unwrap().split('|').map(str::trim).collect();
    assert_eq!(line[1..5], ["50", "256", "6", "0"], "{table}");
}

#[test]
fn a_server_that_cannot_be_asked_is_an_error_with_advice() {
    load("http://127.0.0.1:9", &[]).fails(1, "does not list its models", "--url");
    let serving = ServerProcess::start(&["--alias", "story"]);
    let url = format!("http://{}", serving.address);
    load(&url, &["--served-model", "other"]).fails(1, "does not serve that model", "story");
    let long = load(&url, &["--input-len", "100000", "--num-prompts", "2"]);
    long.fails(1, "no request was answered", "log");
    load(&url, &["--max-concurrency", "0"]).fails(2, "1 to 4096", "1,4,16");
}

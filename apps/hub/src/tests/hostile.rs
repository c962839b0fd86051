//! Tests of hostile servers, with invalid sizes, counts and names.

use super::{COMMIT, bench};
use crate::listing::Listing;
use nestling_testkit::hub_server::HubFault;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn listed(name: &str, size: u64) -> Value {
    json!({"rfilename": name, "size": size, "blobId": "0".repeat(40)})
}

fn listing(files: Vec<Value>) -> String {
    json!({"sha": COMMIT, "siblings": files}).to_string()
}

/// Small files are downloaded before the free disk space is checked.
#[test]
fn small_files_may_not_fill_the_disk() {
    for name in ["tokenizer.json", "config.json", "tokenizer_config.json", "chat_template.jinja"] {
        let bench = bench();
        let sizes = ["config.json", "tokenizer.json", "model.safetensors", name];
        let size = |known: &str| if known == name { 1 << 40 } else { 5 };
        let files = sizes.iter().map(|known| listed(known, size(known))).collect();
        bench.server.state.lock().unwrap().listing = Some(listing(files));
        let failure = bench.obtain().unwrap_err();
        let said = format!("its {name} has 1099511627776 bytes, more than 64 MiB");
        assert!(failure.to_string().contains(&said), "{failure}");
        assert_eq!(bench.server.requests().len(), 1, "the listing alone");
    }
}

/// Names must be looked up quickly, since an index contains many.
#[test]
fn many_names_take_no_time() {
    let name = |number: usize| format!("m{number}.gguf");
    let files = (0..200_000).rev().map(|number| listed(&name(number), 5)).collect();
    let started = Instant::now();
    let listing = Listing::read(listing(files).as_bytes()).unwrap();
    assert!((0..200_000).all(|number| listing.find(&name(number)).is_some()));
    assert!(listing.find("m200000.gguf").is_none() && listing.find("").is_none());
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
}

/// The first of several files with the same name is used.
#[test]
fn a_name_is_given_once() {
    let read =
        Listing::read(listing(vec![listed("a", 1), listed("b", 2), listed("a", 3)]).as_bytes());
    assert_eq!(read.unwrap().find("a").map(|file| file.size), Some(1));
}

#[test]
fn an_index_names_no_more_files_than_a_checkpoint_has() {
    let mut bench = bench();
    let shards =
        (0..10_001).map(|number| (format!("t{number}"), json!(format!("s{number}.safetensors"))));
    let map: serde_json::Map<String, Value> = shards.collect();
    let index = json!({"weight_map": map}).to_string().into_bytes();
    bench.files.insert("model.safetensors.index.json".into(), index);
    bench.serve_anew();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("more than 10000 files"), "{failure}");
}

#[test]
fn errors_list_some_names() {
    let bench = bench();
    let files = (0..5_000).map(|number| listed(&format!("m{number}.nest"), 5)).collect();
    bench.server.state.lock().unwrap().listing = Some(listing(files));
    let failure = bench.obtain().unwrap_err();
    let advice = failure.advice().unwrap();
    assert!(advice.contains("4988 more") && advice.len() < 1000, "{advice}");
}

/// A content encoding that was not requested is never decoded.
#[test]
fn compressed_answers_are_not_decoded() {
    let bench = bench();
    bench.behave(HubFault::Compressed);
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("makes no sense"), "{failure}");
}

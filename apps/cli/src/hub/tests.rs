use super::*;
use crate::console::Console;
use crate::failure::Exit;
use standin::{Standin, blob_name};
use std::collections::BTreeMap;

#[path = "../../tests/standin/mod.rs"]
mod standin;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

const CONFIG: &[u8] = include_bytes!("../../tests/data/published-layout/config.json");

struct Bench {
    server: Standin,
    around: Surroundings,
    repository: Reference,
    files: BTreeMap<String, Vec<u8>>,
    _directory: tempfile::TempDir,
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 7) as u8 ^ seed).collect()
}

fn bench() -> Bench {
    bench_with(CONFIG.to_vec())
}

/// The tensors of two of the published shards, filled with noise, in one file.
fn weights(shards: [&[u8]; 2], seed: u8) -> (Vec<String>, Vec<u8>) {
    let (mut header, mut names, mut end) = (serde_json::Map::new(), Vec::new(), 0);
    for shard in shards {
        let length = u64::from_le_bytes(*shard.first_chunk().unwrap()) as usize;
        let json: serde_json::Value = serde_json::from_slice(&shard[8..8 + length]).unwrap();
        for (name, tensor) in json.as_object().unwrap() {
            if name == "__metadata__" {
                continue;
            }
            let offsets = &tensor["data_offsets"];
            let bytes = offsets[1].as_u64().unwrap() - offsets[0].as_u64().unwrap();
            let (dtype, shape) = (&tensor["dtype"], &tensor["shape"]);
            let offsets = [end, end + bytes];
            header.insert(
                name.clone(),
                serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}),
            );
            names.push(name.clone());
            end += bytes;
        }
    }
    let json = serde_json::Value::Object(header).to_string();
    let file = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &noise(end as usize, seed)];
    (names, file.concat())
}

fn bench_with(config: Vec<u8>) -> Bench {
    const SHARDS: [&[u8]; 4] = [
        include_bytes!("../../tests/data/published-layout/model-00001-of-00004.safetensors"),
        include_bytes!("../../tests/data/published-layout/model-00002-of-00004.safetensors"),
        include_bytes!("../../tests/data/published-layout/model-00003-of-00004.safetensors"),
        include_bytes!("../../tests/data/published-layout/model-00004-of-00004.safetensors"),
    ];
    let (first_names, first) = weights([SHARDS[0], SHARDS[1]], 2);
    let (second_names, second) = weights([SHARDS[2], SHARDS[3]], 3);
    let mut map = serde_json::Map::new();
    map.extend(first_names.into_iter().map(|name| (name, FIRST.into())));
    map.extend(second_names.into_iter().map(|name| (name, SECOND.into())));
    let index = serde_json::json!({"metadata": {}, "weight_map": map}).to_string();
    let files: BTreeMap<String, Vec<u8>> = [
        ("config.json", config),
        ("tokenizer.json", noise(5_000, 1)),
        ("generation_config.json", b"{\"top_k\":20}".to_vec()),
        ("model.safetensors.index.json", index.into_bytes()),
        (FIRST, first),
        (SECOND, second),
        ("README.md", noise(40_000, 4)),
        ("original/consolidated.safetensors", noise(90_000, 5)),
        ("extra.safetensors", noise(90_000, 6)),
    ]
    .map(|(name, content)| (name.to_owned(), content))
    .into();
    let directory = tempfile::tempdir().unwrap();
    let server = Standin::start("Owner/Small-MoE", COMMIT, files.clone());
    let around = Surroundings {
        endpoint: server.address.clone(),
        downloads: directory.path().join("hub"),
        stores: directory.path().join("stores"),
        headers: directory.path().join("headers"),
        token: None,
        offline: false,
        calibration: "prose1".into(),
        gguf_calibration: "none".into(),
        room: u64::MAX,
    };
    let repository = Reference::parse("Owner/Small-MoE", "main").unwrap();
    Bench { server, around, repository, files, _directory: directory }
}

fn quiet() -> Console {
    Console { colors: false, verbose: 0, quiet: true }
}

impl Bench {
    fn obtain(&self) -> Result<Obtained> {
        obtain(&self.repository, None, &self.around, &quiet())
    }

    fn expect_whole(&self, obtained: &Obtained) {
        for (name, content) in &self.files {
            let found = std::fs::read(obtained.checkpoint.join(name)).ok();
            let wanted = !name.contains('/') && name != "README.md" && name != "extra.safetensors";
            assert_eq!(found.as_ref(), wanted.then_some(content), "{name}");
        }
    }

    /// Requests for a file's body, not for its length or header.
    fn bodies(&self, name: &str) -> Vec<String> {
        let requests = self.server.requests().into_iter();
        requests
            .filter(|r| r.contains("/cdn/") && r.contains(name) && r.ends_with(", None)"))
            .collect()
    }
}

#[test]
fn a_repository_arrives_in_the_standard_layout() {
    let bench = bench();
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    let folder = bench.around.downloads.join("models--Owner--Small-MoE");
    assert_eq!(obtained.checkpoint, folder.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let blob = folder.join("blobs").join(blob_name(FIRST, &bench.files[FIRST]));
    assert_eq!(std::fs::read(blob).unwrap(), bench.files[FIRST]);
    let store = format!("Owner--Small-MoE/{COMMIT}-q{QUANTIZER_VERSION}-prose1.nest");
    assert_eq!(obtained.store, bench.around.stores.join(store));
    assert!(!obtained.is_converted());
    // The second time nothing is fetched but the listing.
    let before = bench.server.requests().len();
    bench.obtain().unwrap();
    let requests = bench.server.requests();
    assert_eq!(requests.len(), before + 1, "{:?}", &requests[before..]);
}

#[test]
fn what_cannot_run_is_refused_before_it_is_downloaded() {
    let config = String::from_utf8(CONFIG.to_vec()).unwrap().replace("qwen3_moe", "llama");
    let bench = bench_with(config.into_bytes());
    let failure = bench.obtain().unwrap_err();
    assert!(failure.message.contains("llama"), "{failure}");
    assert_eq!(bench.bodies(FIRST), [""; 0]);
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let bench = bench();
    bench.server.state.lock().unwrap().cuts =
        vec![(FIRST.into(), 100_000), (FIRST.into(), 50_000), (SECOND.into(), 0)];
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    let bodies = bench.bodies(FIRST);
    let starts = ["(0, None)", "(100000, None)", "(150000, None)"];
    assert_eq!(bodies.len(), starts.len(), "{bodies:?}");
    for (request, start) in bodies.iter().zip(starts) {
        assert!(request.ends_with(start), "{bodies:?}");
    }
}

#[test]
fn a_download_that_was_killed_goes_on() {
    let bench = bench();
    let blobs = bench.around.downloads.join("models--Owner--Small-MoE/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let part = |name: &str, length: usize| {
        let content = &bench.files[name];
        let path = blobs.join(blob_name(name, content)).with_extension("part");
        std::fs::write(path, &content[..length]).unwrap();
    };
    part(FIRST, 123_456);
    // Killed between the last byte and the renaming.
    part(SECOND, bench.files[SECOND].len());
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    assert!(bench.bodies(FIRST)[0].ends_with("(123456, None)"));
    let last = bench.files[SECOND].len() - 1;
    assert!(bench.bodies(SECOND)[0].ends_with(&format!("({last}, None)")));
}

#[test]
fn a_damaged_file_is_refused_and_fetched_anew() {
    let bench = bench();
    bench.server.state.lock().unwrap().flips = vec![(SECOND.into(), 100_000)];
    let failure = bench.obtain().unwrap_err();
    assert!(failure.message.contains(SECOND) && failure.message.contains("SHA-256"), "{failure}");
    bench.server.state.lock().unwrap().flips.clear();
    bench.expect_whole(&bench.obtain().unwrap());
}

#[test]
fn offline_uses_only_the_cache() {
    let mut bench = bench();
    bench.around.offline = true;
    let failure = bench.obtain().unwrap_err();
    assert!(failure.advice.unwrap().contains("--offline"));
    bench.around.offline = false;
    bench.obtain().unwrap();
    let before = bench.server.requests().len();
    assert!(bench.server.served() > 500_000);
    bench.around.offline = true;
    bench.expect_whole(&bench.obtain().unwrap());
    assert_eq!((bench.server.requests().len(), bench.server.served()), (before, 0));
}

#[test]
fn without_a_network_the_converted_store_is_enough() {
    let mut bench = bench();
    let obtained = bench.obtain().unwrap();
    // A port that nobody listens on.
    bench.around.endpoint = "http://127.0.0.1:9".into();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.message.contains("cannot reach http://127.0.0.1:9"), "{failure}");
    std::fs::create_dir_all(obtained.store.parent().unwrap()).unwrap();
    std::fs::write(&obtained.store, "").unwrap();
    assert!(bench.obtain().unwrap().is_converted());
}

#[test]
fn refusals_say_what_to_do() {
    let mut bench = bench();
    bench.server.state.lock().unwrap().token = Some("secret".into());
    assert!(bench.obtain().unwrap_err().advice.unwrap().contains("HF_TOKEN"));
    bench.around.token = Some("secret".into());
    bench.expect_whole(&bench.obtain().unwrap());
    bench.repository = Reference::parse("Owner/Nothing", "main").unwrap();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.message.contains("does not exist"), "{failure}");
    for text in ["", "plain", "a/b/c", "../x", "a/..", "a/b:", "a/b:../x", "a b/c", "/etc/passwd"] {
        assert_eq!(Reference::parse(text, "main").unwrap_err().exit, Exit::Usage, "{text}");
    }
    for revision in ["", "../main", "a//b", "x y"] {
        assert!(Repository::new("a/b", revision).is_err(), "{revision}");
    }
}

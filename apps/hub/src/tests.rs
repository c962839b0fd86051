mod hostile;
mod range_stores;
mod simulated;
mod tokenizers;
mod web_stores;

use crate::*;
use nestling_convert::convert::QUANTIZER_VERSION;
use nestling_testkit::hub_server::{HubFault, Standin, blob_name};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const FIRST: &str = "model-00001-of-00002.safetensors";
const SECOND: &str = "model-00002-of-00002.safetensors";

const CONFIG: &[u8] = include_bytes!("../../cli/tests/data/published-layout/config.json");

struct Bench {
    server: Standin,
    options: HubOptions,
    repository: Reference,
    files: BTreeMap<String, Vec<u8>>,
    directory: tempfile::TempDir,
}

fn noise(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 7) as u8 ^ seed).collect()
}

fn bench() -> Bench {
    bench_with(CONFIG.to_vec())
}

/// Returns the tensors of two published shards, filled with noise, as one file.
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
        include_bytes!("../../cli/tests/data/published-layout/model-00001-of-00004.safetensors"),
        include_bytes!("../../cli/tests/data/published-layout/model-00002-of-00004.safetensors"),
        include_bytes!("../../cli/tests/data/published-layout/model-00003-of-00004.safetensors"),
        include_bytes!("../../cli/tests/data/published-layout/model-00004-of-00004.safetensors"),
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
    let options = HubOptions {
        endpoint: server.address.clone(),
        downloads: directory.path().join("hub"),
        stores: StoreCache {
            folder: directory.path().join("stores"),
            locks: directory.path().join("locks"),
            calibration: "prose1".into(),
            gguf_calibration: "none".into(),
        },
        headers: directory.path().join("headers"),
        token: None,
        limits: Limits { pause: Duration::from_millis(1), ..Limits::default() },
        offline: false,
        room: u64::MAX,
        in_place: false,
        by_ranges: false,
    };
    let repository = Reference::parse("Owner/Small-MoE", "main").unwrap();
    Bench { server, options, repository, files, directory }
}

impl Bench {
    fn obtain(&self) -> Result<ConvertedModel> {
        obtain(&self.repository, None, &self.options, &NoObserver)
    }

    fn expect_whole(&self, obtained: &ConvertedModel) {
        for (name, content) in &self.files {
            let found = std::fs::read(obtained.checkpoint.join(name)).ok();
            let wanted = !name.contains('/') && name != "README.md" && name != "extra.safetensors";
            assert_eq!(found.as_ref(), wanted.then_some(content), "{name}");
        }
    }

    /// Returns the requests for a file's body, without those for its length or header.
    fn bodies(&self, name: &str) -> Vec<String> {
        let requests = self.server.requests().into_iter();
        let last = format!(", Some({}))", self.files[name].len() - 1);
        requests
            .filter(|r| r.contains("/cdn/") && r.contains(name))
            .filter(|r| r.ends_with(&last) || r.ends_with(", None)"))
            .collect()
    }

    /// Returns the start offset of each request for a file's body.
    fn starts(&self, name: &str) -> Vec<String> {
        let start = |request: &String| {
            let range = request.split(" (").nth(1).unwrap();
            range.split(',').next().unwrap().to_owned()
        };
        self.bodies(name).iter().map(start).collect()
    }

    fn serve_anew(&mut self) {
        self.server = Standin::start("Owner/Small-MoE", COMMIT, self.files.clone());
        self.options.endpoint = self.server.address.clone();
    }

    fn behave(&self, manner: HubFault) {
        self.server.state.lock().unwrap().manner = manner;
    }

    /// Returns the error of a download with a server fault. The error must occur quickly.
    fn refusal(&mut self, manner: HubFault) -> HubError {
        // The server may be silent for long on a loaded machine too.
        if matches!(manner, HubFault::SilentListing | HubFault::SilentFile | HubFault::Trickle) {
            self.options.limits.silence = Duration::from_secs(2);
        }
        self.behave(manner);
        let started = Instant::now();
        let failure = self.obtain().unwrap_err();
        let took = started.elapsed();
        assert!(took < Duration::from_secs(60), "{manner:?}: {took:?}");
        failure
    }

    fn everything(&self) -> BTreeMap<PathBuf, u64> {
        fn add(folder: &Path, found: &mut BTreeMap<PathBuf, u64>) {
            for entry in std::fs::read_dir(folder).unwrap().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => add(&entry.path(), found),
                    false => {
                        let length = std::fs::metadata(entry.path()).unwrap().len();
                        found.insert(entry.path(), length);
                    }
                }
            }
        }
        let mut found = BTreeMap::new();
        add(self.directory.path(), &mut found);
        found
    }
}

#[test]
fn a_repository_arrives_in_the_standard_layout() {
    let bench = bench();
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    let folder = bench.options.downloads.join("models--Owner--Small-MoE");
    assert_eq!(obtained.checkpoint, folder.join("snapshots").join(COMMIT));
    assert_eq!(std::fs::read_to_string(folder.join("refs/main")).unwrap(), COMMIT);
    let blob = folder.join("blobs").join(blob_name(FIRST, &bench.files[FIRST]));
    assert_eq!(std::fs::read(blob).unwrap(), bench.files[FIRST]);
    let store = format!("Owner--Small-MoE/{COMMIT}-q{QUANTIZER_VERSION}-prose1.nest");
    assert_eq!(obtained.store, bench.options.stores.folder.join(store));
    assert!(!obtained.is_converted());
    // The second run requests only the listing.
    let before = bench.server.requests().len();
    bench.obtain().unwrap();
    let requests = bench.server.requests();
    assert_eq!(requests.len(), before + 1, "{:?}", &requests[before..]);
}

#[test]
fn what_cannot_run_is_refused_before_it_is_downloaded() {
    let config = String::from_utf8(CONFIG.to_vec()).unwrap().replace("qwen3_moe", "falcon");
    let bench = bench_with(config.into_bytes());
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("falcon"), "{failure}");
    assert_eq!(bench.bodies(FIRST), [""; 0]);
}

#[test]
fn a_broken_connection_is_resumed_where_it_broke() {
    let bench = bench();
    bench.server.state.lock().unwrap().cuts =
        vec![(FIRST.into(), 100_000), (FIRST.into(), 50_000), (SECOND.into(), 0)];
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    assert_eq!(bench.starts(FIRST), ["0", "100000", "150000"]);
}

#[test]
fn a_download_that_was_killed_goes_on() {
    let bench = bench();
    let blobs = bench.options.downloads.join("models--Owner--Small-MoE/blobs");
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
    assert_eq!(bench.starts(FIRST), ["123456"]);
    assert_eq!(bench.starts(SECOND), [""; 0]);
}

#[test]
fn a_damaged_file_is_refused_and_fetched_anew() {
    let bench = bench();
    bench.server.state.lock().unwrap().flips = vec![(SECOND.into(), 100_000)];
    let failure = bench.obtain().unwrap_err();
    assert!(
        failure.to_string().contains(SECOND) && failure.to_string().contains("SHA-256"),
        "{failure}"
    );
    bench.server.state.lock().unwrap().flips.clear();
    bench.expect_whole(&bench.obtain().unwrap());
}

#[test]
fn offline_uses_only_the_cache() {
    let mut bench = bench();
    bench.options.offline = true;
    let failure = bench.obtain().unwrap_err();
    assert!(failure.advice().unwrap().contains("--offline"));
    bench.options.offline = false;
    bench.obtain().unwrap();
    let before = bench.server.requests().len();
    assert!(bench.server.served() > 500_000);
    bench.options.offline = true;
    bench.expect_whole(&bench.obtain().unwrap());
    assert_eq!((bench.server.requests().len(), bench.server.served()), (before, 0));
}

#[test]
fn without_a_network_the_converted_store_is_enough() {
    let mut bench = bench();
    let obtained = bench.obtain().unwrap();
    // A port without a listener.
    bench.options.endpoint = "http://127.0.0.1:9".into();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("cannot reach http://127.0.0.1:9"), "{failure}");
    std::fs::create_dir_all(obtained.store.parent().unwrap()).unwrap();
    std::fs::write(&obtained.store, "").unwrap();
    assert!(bench.obtain().unwrap().is_converted());
}

#[test]
fn refusals_say_what_to_do() {
    let mut bench = bench();
    bench.server.state.lock().unwrap().token = Some("secret".into());
    assert!(bench.obtain().unwrap_err().advice().unwrap().contains("HF_TOKEN"));
    bench.options.token = Some("secret".into());
    bench.expect_whole(&bench.obtain().unwrap());
    bench.repository = Reference::parse("Owner/Nothing", "main").unwrap();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("does not exist"), "{failure}");
    for text in ["", "plain", "a/b/c", "../x", "a/..", "a/b:", "a/b:../x", "a b/c", "/etc/passwd"] {
        let refused = Reference::parse(text, "main").unwrap_err();
        assert!(matches!(refused, HubError::Usage(_)), "{text}");
    }
    for revision in ["", "../main", "a//b", "x y"] {
        assert!(Repository::new("a/b", revision).is_err(), "{revision}");
    }
}

#[test]
fn the_token_is_shown_to_the_hub_alone() {
    let mut bench = bench();
    bench.server.state.lock().unwrap().token = Some("secret".into());
    bench.options.token = Some("secret".into());
    bench.expect_whole(&bench.obtain().unwrap());
    assert!(!bench.bodies(FIRST).is_empty());
    assert_eq!(bench.server.state.lock().unwrap().leaks, [""; 0]);
}

#[test]
fn headers_name_no_files() {
    let names = |bench: &Bench| {
        let precious = bench.directory.path().join("precious");
        std::fs::write(&precious, "mine").unwrap();
        [precious.display().to_string(), "../../../precious".into(), "..".into(), String::new()]
    };
    for number in 0..4 {
        let bench = bench();
        let name = names(&bench)[number].clone();
        bench.server.state.lock().unwrap().names = Some(name.clone());
        bench.expect_whole(&bench.obtain().unwrap());
        let precious = bench.directory.path().join("precious");
        assert_eq!(std::fs::read(&precious).unwrap(), b"mine", "{name}");
        let everything = bench.everything();
        let blobs = bench.options.downloads.join("models--Owner--Small-MoE/blobs");
        let in_blobs = everything.keys().filter(|path| path.starts_with(&blobs)).count();
        assert_eq!(in_blobs, 6, "{everything:?}");
    }
}

/// Returns a listing with an additional file that has one modified field.
fn listing_with(key: &str, value: serde_json::Value) -> String {
    let mut file = serde_json::json!({
        "rfilename": "config.json", "size": 5, "blobId": "0".repeat(40), "lfs": null,
    });
    let mut listing = serde_json::json!({"sha": COMMIT});
    match key {
        "sha" => listing[key] = value,
        _ => file[key] = value,
    }
    listing["siblings"] = serde_json::json!([file]);
    listing.to_string()
}

#[test]
fn listings_name_no_files_outside() {
    let bench = bench();
    let zeros = "0".repeat(40);
    for (key, value) in [
        ("sha", "../../../precious".into()),
        ("sha", "main".into()),
        ("sha", "0".repeat(39).into()),
        ("sha", "0".repeat(64).into()),
        ("sha", serde_json::Value::Null),
        ("size", u64::MAX.into()),
        ("blobId", "/etc/passwd".into()),
        ("blobId", "../../precious".into()),
        ("blobId", "0".repeat(64).into()),
        ("blobId", format!("{}/", &zeros[1..]).into()),
        ("lfs", serde_json::json!({"sha256": zeros, "size": 5})),
        ("lfs", serde_json::json!({"sha256": "../".repeat(21) + "x", "size": 5})),
    ] {
        let listing = listing_with(key, value);
        bench.server.state.lock().unwrap().listing = Some(listing.clone());
        let failure = bench.obtain().unwrap_err();
        assert!(failure.to_string().contains("makes no sense"), "{listing}: {failure}");
        assert_eq!(bench.everything(), BTreeMap::new());
    }
    // A file with an unsafe name is never requested.
    let listing = listing_with("rfilename", "../precious".into());
    bench.server.state.lock().unwrap().listing = Some(listing);
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("holds no model"), "{failure}");
}

#[test]
fn a_listing_is_bounded() {
    let bench = bench();
    let name = |number: usize| format!("a/{number:0200}.txt");
    let file = |number| serde_json::json!({"rfilename": name(number), "size": 5, "blobId": "0".repeat(40)});
    let files: Vec<_> = (0..120_000).map(file).collect();
    let listing = serde_json::json!({"sha": COMMIT, "siblings": files}).to_string();
    assert!(listing.len() > 32 << 20);
    bench.server.state.lock().unwrap().listing = Some(listing);
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("longer than 32 MiB"), "{failure}");
    // An endless listing within the size limit.
    let deep = format!("{{\"sha\": \"{COMMIT}\", \"siblings\": {}", "[".repeat(1 << 20));
    bench.server.state.lock().unwrap().listing = Some(deep);
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("makes no sense"), "{failure}");
}

#[test]
fn nobody_is_waited_for_without_end() {
    let ends = |manner: HubFault| {
        let mut bench = bench();
        let failure = bench.refusal(manner);
        let said = "nothing, or hardly anything, came for 2 s";
        assert!(failure.to_string().contains(said), "{manner:?}: {failure}");
        assert!(failure.advice().unwrap().contains("resumes where it stopped"));
        // The download resumes after the received bytes.
        bench.options.limits = Limits::default();
        bench.behave(HubFault::Sound);
        bench.expect_whole(&bench.obtain().unwrap());
    };
    // Most of the time is spent waiting.
    std::thread::scope(|scope| {
        for manner in [HubFault::SilentListing, HubFault::SilentFile, HubFault::Trickle] {
            scope.spawn(move || ends(manner));
        }
    });
}

#[test]
fn a_listing_is_not_waited_for_without_end() {
    let mut bench = bench();
    bench.options.limits.listing = Duration::from_secs(2);
    bench.behave(HubFault::EndlessListing);
    let started = Instant::now();
    let failure = bench.obtain().unwrap_err();
    assert!(failure.to_string().contains("the answer took longer than 2 s"), "{failure}");
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[test]
fn no_more_is_taken_than_was_announced() {
    let bench = bench();
    bench.behave(HubFault::Endless);
    bench.expect_whole(&bench.obtain().unwrap());
    let announced: usize = bench.files.values().map(Vec::len).sum();
    let everything = bench.everything();
    let written: u64 = everything.values().sum();
    assert!(written < 3 * announced as u64, "{everything:?}");
    // Includes the bytes in flight when the connection was closed.
    assert!(bench.server.served() < announced + (32 << 20));
}

#[test]
fn redirects_are_counted() {
    let mut bench = bench();
    let failure = bench.refusal(HubFault::Loop);
    assert!(failure.to_string().contains("more than 10 redirects"), "{failure}");
    let requests = bench.server.requests();
    let asked = requests.iter().filter(|request| request.contains(FIRST)).count();
    assert!(asked < 20, "{asked} requests");
    let failure = bench.refusal(HubFault::Nowhere);
    assert!(failure.to_string().contains("a redirect to nowhere"), "{failure}");
}

#[test]
fn a_few_bytes_at_a_time_are_no_progress() {
    let mut bench = bench();
    let failure = bench.refusal(HubFault::Short(10));
    assert!(failure.to_string().contains("cannot reach"), "{failure}");
    assert_eq!(bench.starts(FIRST), ["0", "10", "20", "30", "40"]);
    bench.behave(HubFault::Sound);
    bench.expect_whole(&bench.obtain().unwrap());
    assert_eq!(bench.starts(FIRST).last().unwrap(), "50");
}

#[test]
fn small_files_are_compared_with_their_hash_too() {
    for (name, at) in [("tokenizer.json", 77), ("config.json", 5)] {
        let bench = bench();
        bench.server.state.lock().unwrap().flips = vec![(name.into(), at)];
        let failure = bench.obtain().unwrap_err();
        let said = format!("{name} arrived damaged: its content does not have the announced SHA-1");
        assert_eq!(failure.to_string(), said);
        bench.server.state.lock().unwrap().flips.clear();
        bench.expect_whole(&bench.obtain().unwrap());
    }
}

#[test]
fn a_file_of_another_commit_is_not_fetched_again() {
    let mut bench = bench();
    let obtained = bench.obtain().unwrap();
    let other = COMMIT.replace('0', "f");
    bench.server = Standin::start("Owner/Small-MoE", &other, bench.files.clone());
    bench.options.endpoint = bench.server.address.clone();
    std::fs::remove_dir_all(obtained.checkpoint).unwrap();
    let obtained = bench.obtain().unwrap();
    bench.expect_whole(&obtained);
    assert!(obtained.checkpoint.ends_with(other));
    assert_eq!(bench.bodies(FIRST), [""; 0]);
}

#[test]
fn several_downloads_of_one_file_share_it() {
    let bench = bench();
    std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..4).map(|_| scope.spawn(|| bench.obtain().map(drop))).collect();
        for task in tasks {
            task.join().unwrap().unwrap();
        }
    });
    bench.expect_whole(&bench.obtain().unwrap());
    assert_eq!(bench.starts(FIRST), ["0"]);
}

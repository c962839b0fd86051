//! Stores on the Hub and stores in shards, read by ranges.

use super::COMMIT;
use crate::fetch_state::CONNECTIONS_MAX;
use crate::*;
use nestling_formats::Level;
use nestling_formats::store::{Storage, Store, StoreError};
use nestling_testkit::hub_server::Standin;
use nestling_testkit::in_shards;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const REPOSITORY: &str = "Owner/Small-MoE";
const SHARD_BYTES: u64 = 100_000;

struct HeldHub {
    server: Standin,
    options: HubOptions,
    files: BTreeMap<String, Vec<u8>>,
    reference: Reference,
    _folder: tempfile::TempDir,
}

fn hub_with(files: BTreeMap<String, Vec<u8>>) -> HeldHub {
    let bench = super::bench();
    let server = Standin::start(REPOSITORY, COMMIT, files.clone());
    let (endpoint, by_ranges) = (server.address.clone(), true);
    let options = HubOptions { endpoint, by_ranges, ..bench.options };
    HeldHub { server, options, files, reference: bench.repository, _folder: bench.directory }
}

fn hub() -> HeldHub {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    hub_with([("nested/small.nest".to_owned(), fs::read(path).unwrap())].into())
}

impl HeldHub {
    fn obtain(&self) -> Result<PathBuf> {
        self.obtain_at(None)
    }

    fn obtain_at(&self, level: Option<Level>) -> Result<PathBuf> {
        let obtained = obtain(&self.reference, level, &self.options, &NoObserver)?;
        Ok(obtained.store)
    }

    fn open(&self) -> (Arc<WebStore>, Store) {
        self.open_at(&self.obtain().unwrap())
    }

    fn open_at(&self, path: &Path) -> (Arc<WebStore>, Store) {
        assert!(WebStore::is_copy(path), "{}", path.display());
        let copy = WebStore::open(path, &self.options.access()).unwrap();
        let store = Store::from_storage(copy.clone(), false).unwrap();
        (copy, store)
    }

    fn address(&self, name: &str) -> StoreAddress {
        let text = format!("{}/{REPOSITORY}/resolve/{COMMIT}/{name}", self.server.address);
        StoreAddress::parse(&text).unwrap()
    }

    /// Returns the requests since a number of requests, which contain `part`.
    fn requests(&self, since: usize, part: &str) -> usize {
        let requests = self.server.requests();
        requests[since..].iter().filter(|request| request.contains(part)).count()
    }

    fn finish(&self, copy: &WebStore) -> PathBuf {
        copy.bring(copy.sections_for(None).unwrap(), &NoObserver, &|| false).unwrap();
        copy.finish().unwrap().unwrap()
    }
}

/// Reads every `step`th extent and compares it with the files of the store.
fn expect_right(store: &Store, files: &BTreeMap<String, Vec<u8>>, step: usize) {
    let bytes: Vec<u8> = files.values().flatten().copied().collect();
    for extent in store.index().extents().iter().step_by(step) {
        let range = extent.offset as usize..(extent.offset + extent.length) as usize;
        assert_eq!(store.read_extent_vec(extent).unwrap(), bytes[range]);
    }
}

#[test]
fn a_store_on_the_hub_is_read_by_ranges_and_kept() {
    let hub = hub();
    let (copy, store) = hub.open();
    assert!(hub.server.served() < 200_000, "more than header and index");
    expect_right(&store, &hub.files, 16);
    drop((copy, store));
    hub.server.served();
    let (copy, store) = hub.open();
    expect_right(&store, &hub.files, 16);
    assert!(hub.server.served() < 2_000, "only the listing is asked for");
    let path = hub.finish(&copy);
    drop((copy, store));
    assert_eq!(fs::read(&path).unwrap(), hub.files["nested/small.nest"]);
    // The complete copy is where a download has put it.
    let folder = hub.options.stores.folder.join("Owner--Small-MoE").join(COMMIT);
    assert_eq!(path, folder.join("small.nest"));
    hub.server.served();
    assert_eq!(hub.obtain().unwrap(), path);
    assert!(hub.server.served() < 2_000);
}

#[test]
fn the_token_is_for_the_hub_and_not_for_the_host_of_the_files() {
    let mut hub = hub();
    hub.server.state.lock().unwrap().token = Some("secret".into());
    let refused = hub.obtain().unwrap_err();
    assert!(refused.advice().unwrap().contains("HF_TOKEN"), "{refused}");
    hub.options.token = Some("secret".into());
    let (copy, store) = hub.open();
    expect_right(&store, &hub.files, 64);
    assert_eq!(hub.server.state.lock().unwrap().leaks, [""; 0]);
    drop((copy, store));
    // A copy that is opened without the token fails with advice.
    let path = hub.obtain().unwrap();
    hub.options.token = None;
    let (_copy, store) = hub.open_at(&path);
    let error = store.read_extent_vec(&store.index().extents()[1]).unwrap_err();
    assert!(error.to_string().contains("refuses access to small.nest"), "{error}");
}

#[test]
fn a_signed_address_is_used_until_it_expires() {
    let hub = hub();
    let (_copy, store) = hub.open();
    let extents = store.index().extents();
    let (since, count) = (hub.server.requests().len(), 6);
    for extent in &extents[1..count] {
        store.read_extent_vec(extent).unwrap();
    }
    assert_eq!(hub.requests(since, "/resolve/"), 1, "the redirect is asked for once");
    hub.server.state.lock().unwrap().signature = Some("y".into());
    for extent in &extents[20..20 + count] {
        store.read_extent_vec(extent).unwrap();
    }
    assert_eq!(hub.requests(since, "/resolve/"), 2, "and again after it has expired");
    expect_right(&store, &hub.files, 64);
}

#[test]
fn a_cut_connection_is_taken_up_again() {
    let hub = hub();
    let (copy, store) = hub.open();
    let name = "nested/small.nest";
    let cuts = [1, 20_000, 1777].map(|at| (name.to_owned(), at));
    hub.server.state.lock().unwrap().cuts = cuts.into();
    expect_right(&store, &hub.files, 16);
    let path = hub.finish(&copy);
    assert!(hub.server.state.lock().unwrap().cuts.is_empty());
    assert_eq!(fs::read(path).unwrap(), hub.files[name]);
}

#[test]
fn a_store_that_was_downloaded_in_sections_is_used() {
    let mut hub = hub();
    hub.options.by_ranges = false;
    let path = hub.obtain_at(Some(Level::L2)).unwrap();
    assert!(!WebStore::is_copy(&path));
    hub.options.by_ranges = true;
    hub.server.served();
    assert_eq!(hub.obtain().unwrap(), path);
    assert_eq!(hub.obtain_at(Some(Level::L2)).unwrap(), path);
    assert!(hub.server.served() < 4_000);
    // More sections extend it.
    assert_eq!(hub.obtain_at(Some(Level::L3)).unwrap(), path);
    assert_eq!(Store::open(&path).unwrap().level(), Level::L3);
}

#[test]
fn a_download_of_all_completes_a_copy() {
    let mut hub = hub();
    let (copy, store) = hub.open();
    copy.bring(1, &NoObserver, &|| false).unwrap();
    drop((copy, store));
    hub.server.served();
    hub.options.by_ranges = false;
    let path = hub.obtain().unwrap();
    assert_eq!(fs::read(&path).unwrap(), hub.files["nested/small.nest"]);
    let length = hub.files["nested/small.nest"].len();
    assert!(hub.server.served() < length - 8_000_000, "the first section is not fetched twice");
}

#[test]
fn without_a_network_only_what_is_here_is_read() {
    let mut hub = hub();
    hub.options.offline = true;
    assert!(hub.obtain().unwrap_err().advice().unwrap().contains("--offline"));
    hub.options.offline = false;
    let (copy, store) = hub.open();
    copy.bring(1, &NoObserver, &|| false).unwrap();
    drop((copy, store));
    hub.options.offline = true;
    let before = hub.server.requests().len();
    let (copy, store) = hub.open();
    store.read_extent_vec(&store.index().extents()[1]).unwrap();
    let last = store.index().extents().last().unwrap();
    let error = store.read_extent_vec(last).unwrap_err();
    assert!(error.to_string().contains("the network is off"), "{error}");
    let error = copy.bring(5, &NoObserver, &|| false).unwrap_err();
    assert!(error.advice().unwrap().contains("--offline"), "{error}");
    assert_eq!(hub.server.requests().len(), before);
    drop((copy, store));
    // Without a connection, the copy is used.
    hub.options.offline = false;
    hub.options.endpoint = "http://127.0.0.1:9".into();
    let (_copy, store) = hub.open();
    store.read_extent_vec(&store.index().extents()[1]).unwrap();
}

#[test]
fn announced_reads_share_requests() {
    let hub = hub();
    let (copy, store) = hub.open();
    let extents = &store.index().extents()[40..72];
    let since = hub.server.requests().len();
    for extent in extents {
        copy.announce(extent.offset, extent.length, true);
    }
    for extent in extents {
        store.read_extent_vec(extent).unwrap();
    }
    let count = hub.requests(since, "/cdn/");
    assert!(count <= 3 * CONNECTIONS_MAX, "{count} requests for {} extents", extents.len());
    // Reads that no step waits for are joined too, once one of them starts.
    let extents = &store.index().extents()[100..116];
    let since = hub.server.requests().len();
    for extent in extents {
        copy.announce(extent.offset, extent.length, false);
    }
    assert_eq!(hub.requests(since, "/cdn/"), 0);
    for extent in extents {
        store.read_extent_vec(extent).unwrap();
    }
    let count = hub.requests(since, "/cdn/");
    assert!(count <= extents.len() / 2, "{count} requests for {} extents", extents.len());
    expect_right(&store, &hub.files, 16);
}

#[test]
fn shards_are_read_by_ranges_into_copies_of_their_own() {
    let hub = hub_with(in_shards(SHARD_BYTES));
    let first = hub.files.keys().next().unwrap();
    assert!(hub.files.len() > 2);
    let by_address = WebStore::prepare(&hub.address(first), &hub.options, &NoObserver).unwrap();
    for path in [by_address, hub.obtain().unwrap()] {
        let (copy, store) = hub.open_at(&path);
        expect_right(&store, &hub.files, 3);
        hub.server.served();
        expect_right(&store, &hub.files, 3);
        assert_eq!(hub.server.served(), 0, "nothing is fetched twice");
        drop((copy, store));
        let (copy, store) = hub.open_at(&path);
        expect_right(&store, &hub.files, 3);
        assert_eq!(hub.server.served(), 0, "what has arrived is kept");
        let path = hub.finish(&copy);
        drop((copy, store));
        let store = Store::open(&path).unwrap();
        assert_eq!(store.level(), Level::L8);
        let report = store.verify(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        assert!(report.damage.is_empty(), "{:?}", report.damage);
        let folder = path.parent().unwrap();
        let left = fs::read_dir(folder).unwrap().flatten();
        let left = left.filter(|entry| entry.file_name().to_string_lossy().ends_with(".sparse"));
        assert_eq!(left.count(), 0);
    }
    // In the Hub's folder, the files keep their names.
    let folder = hub.options.stores.folder.join("Owner--Small-MoE").join(COMMIT);
    for (name, bytes) in &hub.files {
        assert_eq!(&fs::read(folder.join(name)).unwrap(), bytes, "{name}");
    }
}

/// Returns the name of a shard, numbered from 1.
fn shard(files: &BTreeMap<String, Vec<u8>>, number: usize) -> String {
    files.keys().nth(number - 1).unwrap().clone()
}

fn expect_shard(error: &HubError, name: &str, words: &str) {
    let HubError::Store(StoreError::Shard { file, reason, .. }) = error else {
        panic!("{error:?}");
    };
    assert!(file.ends_with(name) && reason.contains(words), "{error}");
}

#[test]
fn a_missing_shard_is_named() {
    let mut files = in_shards(SHARD_BYTES);
    let (first, second) = (shard(&files, 1), shard(&files, 2));
    files.remove(&second);
    let mut hub = hub_with(files);
    expect_shard(&hub.obtain().unwrap_err(), &second, "no such file");
    let error = WebStore::prepare(&hub.address(&first), &hub.options, &NoObserver).unwrap_err();
    expect_shard(&error, &second, "no such file");
    hub.options.by_ranges = false;
    expect_shard(&hub.obtain().unwrap_err(), &second, "no such file");
}

#[test]
fn a_shard_of_another_store_is_named() {
    let mut files = in_shards(SHARD_BYTES);
    let (first, second, third) = (shard(&files, 1), shard(&files, 2), shard(&files, 3));
    let other = files[&third].clone();
    let length = files[&second].len();
    files.insert(second.clone(), [&other[..128], &vec![0; length - 128]].concat());
    let hub = hub_with(files);
    let error = WebStore::prepare(&hub.address(&first), &hub.options, &NoObserver).unwrap_err();
    expect_shard(&error, &second, "its header says shard 3");
    expect_shard(&hub.obtain().unwrap_err(), &second, "its header says shard 3");
}

#[test]
fn a_shard_that_changes_is_named() {
    let hub = hub_with(in_shards(SHARD_BYTES));
    let (first, third) = (shard(&hub.files, 1), shard(&hub.files, 3));
    let address = hub.address(&first);
    let path = WebStore::prepare(&address, &hub.options, &NoObserver).unwrap();
    let (copy, store) = hub.open_at(&path);
    hub.server.state.lock().unwrap().names = Some("\"another\"".into());
    let starts = [&first, &shard(&hub.files, 2)].map(|name| hub.files[name].len() as u64);
    let start: u64 = starts.iter().sum();
    let extents = store.index().extents();
    let extent = extents.iter().find(|extent| extent.offset >= start).unwrap();
    let error = store.read_extent_vec(extent).unwrap_err();
    assert!(matches!(&error, StoreError::Changed { file } if file.ends_with(&third)), "{error}");
    let error = copy.bring(1, &NoObserver, &|| false).unwrap_err();
    expect_shard(&error, &first, "has changed");
    let error = WebStore::prepare(&address, &hub.options, &NoObserver).unwrap_err();
    assert!(error.to_string().contains("another program uses the former file"), "{error}");
    drop((copy, store));
    // The next start begins a new copy.
    let path = WebStore::prepare(&address, &hub.options, &NoObserver).unwrap();
    expect_right(&hub.open_at(&path).1, &hub.files, 5);
}

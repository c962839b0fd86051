//! Stores on a web server that misbehaves.

use super::COMMIT;
use crate::*;
use nestling_formats::Level;
use nestling_formats::store::{Store, StoreError};
use nestling_testkit::hub_server::{HubFault, Standin};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "small.nest";

struct Web {
    server: Standin,
    address: StoreAddress,
    options: HubOptions,
    bytes: Vec<u8>,
    _folder: tempfile::TempDir,
}

fn web() -> Web {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    web_with(fs::read(path).unwrap())
}

fn web_with(bytes: Vec<u8>) -> Web {
    let bench = super::bench();
    let files = [(NAME.to_owned(), bytes.clone())].into();
    let server = Standin::start("Owner/Small-MoE", COMMIT, files);
    let text = format!("{}/Owner/Small-MoE/resolve/{COMMIT}/{NAME}", server.address);
    let limits = Limits { pause: Duration::from_millis(1), ..Limits::default() };
    let options = HubOptions { limits, ..bench.options };
    let address = StoreAddress::parse(&text).unwrap();
    Web { server, address, options, bytes, _folder: bench.directory }
}

impl Web {
    fn prepare(&self) -> Result<PathBuf> {
        WebStore::prepare(&self.address, &self.options, &NoObserver)
    }

    fn open(&self) -> (Arc<WebStore>, Store) {
        let copy = WebStore::open(&self.prepare().unwrap(), &self.options.access()).unwrap();
        let store = Store::from_storage(copy.clone(), false).unwrap();
        (copy, store)
    }

    fn bring(&self, copy: &WebStore, level: Option<Level>) -> Result<()> {
        copy.bring(copy.sections_for(level).unwrap(), &NoObserver, &|| false)
    }

    /// Reads every sixteenth extent and compares it with the file on the server.
    fn expect_right(&self, store: &Store) {
        for extent in store.index().extents().iter().step_by(16) {
            let range = extent.offset as usize..(extent.offset + extent.length) as usize;
            assert_eq!(store.read_extent_vec(extent).unwrap(), self.bytes[range]);
        }
    }
}

#[test]
fn what_is_read_is_fetched_once_and_kept() {
    let web = web();
    let (copy, store) = web.open();
    assert!(web.server.served() < 200_000, "more than header and index");
    web.expect_right(&store);
    web.server.served();
    web.expect_right(&store);
    drop((copy, store));
    assert_eq!(web.server.served(), 0);
    let (copy, store) = web.open();
    web.expect_right(&store);
    assert!(web.server.served() <= 1, "only the version is asked for");
    web.bring(&copy, None).unwrap();
    let fetched = web.server.served();
    assert!(fetched < web.bytes.len() - 1_000_000, "{fetched}: fetched twice");
    let path = copy.finish().unwrap().unwrap();
    drop((copy, store));
    assert_eq!(fs::read(&path).unwrap(), web.bytes);
    assert_eq!(web.prepare().unwrap(), path);
    assert_eq!(web.server.served(), 0);
}

#[test]
fn complete_and_incomplete_copies_are_in_the_inventory() {
    let web = web();
    let folder = |name: &str| web._folder.path().join(name);
    let (downloads, headers) = (folder("hub"), folder("headers"));
    let (reads, uses) = (FirstReads::new(folder("reads")), Uses::new(folder("uses")));
    let caches = Caches { downloads, stores: web.options.stores.clone(), headers, reads, uses };
    let (copy, _) = web.open();
    assert!(Inventory::of(&caches).leftovers.is_empty(), "it is open");
    drop(copy);
    let inventory = Inventory::of(&caches);
    assert!(inventory.models.is_empty());
    let [leftover] = &inventory.leftovers[..] else { panic!("{:?}", inventory.leftovers) };
    assert!(leftover.bytes < 1_000_000, "holes take no space: {}", leftover.bytes);
    let (copy, _) = web.open();
    web.bring(&copy, None).unwrap();
    let path = copy.finish().unwrap().unwrap();
    drop(copy);
    let inventory = Inventory::of(&caches);
    assert!(inventory.leftovers.is_empty());
    let [model] = &inventory.models[..] else { panic!("{:?}", inventory.models) };
    assert_eq!((&model.path, model.level), (&path, Some(8)));
    assert!(model.name.starts_with("small-"), "{}", model.name);
}

#[test]
fn sections_come_in_order_and_a_stopped_fetch_goes_on() {
    let web = web();
    let (copy, _) = web.open();
    web.server.served();
    web.bring(&copy, Some(Level::L2)).unwrap();
    let served = web.server.served() as u64;
    assert!(served < 10_000_000, "{served}");
    assert_eq!(copy.missing_bytes(1), 0);
    copy.bring(5, &NoObserver, &|| true).unwrap();
    let part = web.server.served() as u64;
    assert!(part > 0 && copy.missing_bytes(5) > 0, "one run, then a stop");
    drop(copy);
    let (copy, _) = web.open();
    web.bring(&copy, None).unwrap();
    let rest = web.server.served() as u64;
    assert!(
        served + part + rest <= web.bytes.len() as u64,
        "{served} {part} {rest}: fetched twice"
    );
    let path = copy.finish().unwrap().unwrap();
    drop(copy);
    assert_eq!(fs::read(path).unwrap(), web.bytes);
}

#[test]
fn another_open_copy_reads_and_does_not_write() {
    let web = web();
    let (copy, _) = web.open();
    let (second, store) = web.open();
    web.bring(&copy, Some(Level::L2)).unwrap();
    web.expect_right(&store);
    assert!(web.bring(&second, None).unwrap_err().to_string().contains("another program"));
    assert!(second.finish().unwrap().is_none());
    web.bring(&copy, None).unwrap();
    let path = copy.finish().unwrap().unwrap();
    drop((copy, second, store));
    assert_eq!(fs::read(path).unwrap(), web.bytes);
}

#[test]
fn damaged_bytes_are_errors_and_are_not_kept() {
    let web = web();
    let (copy, store) = web.open();
    let extent = store.index().extents()[200].clone();
    let flip = (NAME.to_owned(), extent.offset as usize + 7);
    web.server.state.lock().unwrap().flips.push(flip);
    let error = store.read_extent_vec(&extent).unwrap_err();
    assert!(
        matches!(&error, StoreError::Io { .. }) && error.to_string().contains("checksum"),
        "{error}"
    );
    let error = web.bring(&copy, None).unwrap_err();
    assert!(matches!(error, HubError::Store(StoreError::Damaged { .. })), "{error}");
    web.server.state.lock().unwrap().flips.clear();
    web.bring(&copy, None).unwrap();
    let path = copy.finish().unwrap().unwrap();
    drop((copy, store));
    assert_eq!(fs::read(path).unwrap(), web.bytes);
}

#[test]
fn connections_that_break_are_taken_up_again() {
    let web = web();
    let (copy, store) = web.open();
    for start in [1, 3_000_000, 1777] {
        let cuts = (0..3).map(|number| (NAME.to_owned(), start + number));
        web.server.state.lock().unwrap().cuts = cuts.collect();
        web.expect_right(&store);
        web.bring(&copy, (start != 1777).then_some(Level::L2)).unwrap();
    }
    assert!(web.server.state.lock().unwrap().cuts.is_empty());
    let path = copy.finish().unwrap().unwrap();
    drop((copy, store));
    assert_eq!(fs::read(path).unwrap(), web.bytes);
}

#[test]
fn a_server_that_is_gone_is_named_and_what_has_arrived_is_read() {
    let web = web();
    let (copy, store) = web.open();
    web.bring(&copy, Some(Level::L2)).unwrap();
    drop((copy, store));
    let path = web.prepare().unwrap();
    // The test server refuses tokens that are missing.
    web.server.state.lock().unwrap().token = Some("secret".into());
    let copy = WebStore::open(&path, &web.options.access()).unwrap();
    let store = Store::from_storage(copy, false).unwrap();
    let extents = store.index().extents();
    store.read_extent_vec(&extents[0]).unwrap();
    let error = store.read_extent_vec(extents.last().unwrap()).unwrap_err();
    assert!(error.to_string().contains("127.0.0.1 refuses access to small.nest"), "{error}");
}

#[test]
fn a_file_that_changes_on_the_server_is_not_mixed() {
    let web = web();
    let (copy, store) = web.open();
    web.bring(&copy, Some(Level::L2)).unwrap();
    web.server.state.lock().unwrap().names = Some("\"another\"".into());
    let extent = store.index().extents().last().unwrap().clone();
    assert!(matches!(store.read_extent_vec(&extent).unwrap_err(), StoreError::Changed { .. }));
    let error = web.bring(&copy, None).unwrap_err();
    assert!(error.to_string().contains("has changed on the server"), "{error}");
    let error = web.prepare().unwrap_err();
    assert!(error.to_string().contains("another program uses the former file"), "{error}");
    drop((copy, store));
    // The next start begins a new copy.
    let (copy, _) = web.open();
    assert!(copy.missing_bytes(1) > 8_000_000);
}

#[test]
fn what_is_no_store_is_refused_before_anything_large_is_fetched() {
    let mut shifted = web().bytes;
    let words = format!("20000000 bytes of a store of {}", shifted.len());
    shifted.truncate(20_000_000);
    for (bytes, words) in [(vec![7; 300_000], ""), (shifted, &*words)] {
        let web = web_with(bytes);
        let error = web.prepare().unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(web.server.served() < 200_000);
    }
    let web = web();
    web.server.state.lock().unwrap().manner = HubFault::Nowhere;
    assert!(web.prepare().is_err());
}

#[test]
fn copies_with_damaged_footers_are_refused() {
    let web = web();
    let path = web.prepare().unwrap();
    let whole = fs::read(&path).unwrap();
    let end = whole.len();
    for at in [end - 24, end - 23, end - 17, end - 16, end - 15, end - 9, end - 8, end - 7, end - 1]
    {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x55;
        fs::write(&path, &damaged).unwrap();
        assert!(WebStore::open(&path, &web.options.access()).is_err(), "byte {at}");
    }
    for length in [0, 10, 24, 5000, end - 1] {
        fs::write(&path, &whole[..length]).unwrap();
        assert!(WebStore::open(&path, &web.options.access()).is_err(), "{length} bytes");
    }
}

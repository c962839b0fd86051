//! Stores damaged after writing: changed data is never returned.

use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use nestling_formats::Plane;
use nestling_formats::store::format::HEADER_BYTES;
use nestling_formats::store::{Extent, GroupId, Store, StoreError};

use crate::support::{
    Random, bytes_of, contents, damage, expect_contents, open_bytes, small_plan, write,
};

fn index_end(bytes: &[u8]) -> usize {
    HEADER_BYTES + u64::from_le_bytes(bytes[56..64].try_into().unwrap()) as usize
}

fn expert_plane(store: &Store, expert: u32, plane: Plane) -> Extent {
    let group = store.group(&GroupId::expert_of(1, expert)).unwrap();
    store.extent(group, plane).unwrap().clone()
}

#[test]
fn every_flipped_bit_of_header_and_index_is_refused() {
    let mut bytes = bytes_of(&small_plan());
    // Covers header and index; lengths are checked after hashes.
    for at in 0..index_end(&bytes) {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            let copy = bytes.clone();
            assert!(open_bytes(copy).is_err(), "bit {bit} of byte {at}");
            bytes[at] ^= 1 << bit;
        }
    }
}

#[test]
fn flipped_bits_of_the_payload_are_found_where_they_are() {
    let good = bytes_of(&small_plan());
    let first = open_bytes(good.clone()).unwrap().index().extents()[0].offset as usize;
    let mut random = Random(1);
    for _ in 0..1500 {
        let at = first + random.below(good.len() - first);
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.below(8);
        let store = open_bytes(bytes).unwrap();
        let found = damage(&store);
        assert_eq!(found.len(), 1, "byte {at}");
        let holder =
            store.index().extents().iter().find(|extent| {
                (extent.offset..extent.offset + extent.length).contains(&(at as u64))
            });
        match (&found[0], holder) {
            (StoreError::Damaged { offset, length, .. }, Some(extent)) => {
                assert_eq!((*offset, *length), (extent.offset, extent.length));
                let error = store.read_extent_vec(extent).unwrap_err();
                assert!(matches!(error, StoreError::Damaged { .. }), "{error}");
            }
            (StoreError::Padding { offset, .. }, None) => assert_eq!(*offset, at as u64),
            (error, holder) => panic!("byte {at}: {error}, in {holder:?}"),
        }
    }
}

#[test]
fn no_truncation_opens_except_after_a_section() {
    let good = bytes_of(&small_plan());
    let whole = open_bytes(good.clone()).unwrap();
    let ends: Vec<_> = whole.index().sections().iter().map(|s| s.end as usize).collect();
    let mut random = Random(2);
    let pages = (0..good.len()).step_by(512).flat_map(|at| [at.saturating_sub(1), at, at + 1]);
    let sampled = (0..1000).map(|_| random.below(good.len()));
    for length in (0..index_end(&good) + 2).chain(pages).chain(sampled) {
        let opened = open_bytes(good[..length].to_vec());
        assert_eq!(opened.is_ok(), ends.contains(&length), "{length} bytes: {opened:?}");
        match opened {
            Ok(store) => assert!(damage(&store).is_empty()),
            Err(StoreError::NotAStore { .. }) => assert!(length < 8),
            Err(StoreError::Truncated { found, .. }) => assert_eq!(found, length as u64),
            Err(error) => panic!("{length} bytes: {error}"),
        }
    }
}

#[test]
fn swapped_extents_are_refused() {
    let mut bytes = bytes_of(&small_plan());
    let store = open_bytes(bytes.clone()).unwrap();
    for plane in Plane::ALL {
        let (a, b) = (expert_plane(&store, 0, plane), expert_plane(&store, 2, plane));
        assert_eq!(a.length, b.length);
        for at in 0..a.length {
            bytes.swap((a.offset + at) as usize, (b.offset + at) as usize);
        }
    }
    let store = open_bytes(bytes).unwrap();
    assert_eq!(damage(&store).len(), 10);
    let message = store.read_extent_vec(&expert_plane(&store, 2, Plane::P4)).unwrap_err();
    assert!(message.to_string().contains("plane P4 of expert 2 of layer 1"), "{message}");
}

#[test]
fn a_plane_in_another_planes_place_is_refused() {
    let mut bytes = bytes_of(&small_plan());
    let store = open_bytes(bytes.clone()).unwrap();
    let group = store.group(&GroupId::Head).unwrap();
    let (a, b) = (store.extent(group, Plane::P3), store.extent(group, Plane::P4));
    let (a, b) = (a.unwrap().clone(), b.unwrap().clone());
    let range = a.offset as usize..(a.offset + a.length) as usize;
    bytes.copy_within(range, b.offset as usize);
    let store = open_bytes(bytes).unwrap();
    assert!(store.read_extent_vec(&a).is_ok());
    assert!(matches!(store.read_extent_vec(&b), Err(StoreError::Damaged { .. })));
}

#[test]
fn the_same_extent_of_another_store_is_refused() {
    let plan = small_plan();
    let mut other = small_plan();
    other.source = b"another".to_vec();
    assert_eq!(contents(&plan), contents(&other));
    let (mut bytes, other) = (bytes_of(&plan), bytes_of(&other));
    let store = open_bytes(bytes.clone()).unwrap();
    let end = store.index().extents()[0].offset as usize;
    // The payload is identical; only header and index differ between the stores.
    bytes[..end].copy_from_slice(&other[..end]);
    assert_eq!(bytes, other);
    let (mut mixed, whole) = (bytes, bytes_of(&plan));
    let index = HEADER_BYTES..index_end(&whole);
    mixed[index.clone()].copy_from_slice(&whole[index]);
    assert!(matches!(open_bytes(mixed), Err(StoreError::Damaged { what, .. }) if what == "index"));
}

#[test]
fn a_zeroed_page_is_found() {
    let mut bytes = bytes_of(&small_plan());
    let store = open_bytes(bytes.clone()).unwrap();
    let extent = expert_plane(&store, 1, Plane::P2);
    bytes[extent.offset as usize..][..2048].fill(0);
    let store = open_bytes(bytes).unwrap();
    assert!(
        matches!(&damage(&store)[..], [StoreError::Damaged { offset, .. }] if *offset == extent.offset)
    );
}

#[test]
fn a_file_that_changes_while_open_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let plan = small_plan();
    write(&path, &plan);
    let bytes = fs::read(&path).unwrap();
    let past = SystemTime::now() - Duration::from_secs(100);
    File::options().write(true).open(&path).unwrap().set_modified(past).unwrap();
    let store = Store::open(&path).unwrap();
    let extent = store.index().extents()[3].clone();
    assert!(store.read_extent_vec(&extent).is_ok());
    // Rewritten with the same bytes.
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(store.read_extent_vec(&extent), Err(StoreError::Changed { .. })));
    let store = Store::open(&path).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(5000).unwrap();
    assert!(matches!(store.read_extent_vec(&extent), Err(StoreError::Changed { .. })));
}

#[cfg(unix)]
#[test]
fn a_replaced_or_deleted_file_stays_readable() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    let plan = small_plan();
    write(&path, &plan);
    let store = Store::open(&path).unwrap();
    let other = folder.path().join("other.nest");
    fs::write(&other, b"something else").unwrap();
    fs::rename(&other, &path).unwrap();
    expect_contents(&store, &plan);
    fs::remove_file(&path).unwrap();
    expect_contents(&store, &plan);
}

#[test]
fn a_check_can_be_stopped() {
    let store = open_bytes(bytes_of(&small_plan())).unwrap();
    let mut calls = 0;
    let result = store.verify(&mut |progress| {
        calls += 1;
        assert!(progress.done_bytes <= progress.total_bytes);
        if calls == 3 {
            std::ops::ControlFlow::Break(())
        } else {
            std::ops::ControlFlow::Continue(())
        }
    });
    assert!(matches!(result, Err(StoreError::Cancelled { .. })));
    assert_eq!(calls, 3);
}

#[test]
fn a_folder_and_an_absent_file_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let absent = Store::open(folder.path().join("absent.nest")).unwrap_err();
    assert!(absent.to_string().contains("cannot open"), "{absent}");
    assert!(matches!(Store::open(folder.path()), Err(StoreError::Io { .. })));
}

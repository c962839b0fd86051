//! Stores split into several files.

use std::fs;
use std::path::{Path, PathBuf};

use nestling_formats::Level;
use nestling_formats::store::{OpenOptions, Store, StoreError, StorePlan, shard_path};

use crate::support::{damage, expect_contents, small_plan, write};

fn sharded_plan(shard_bytes_max: u64) -> StorePlan {
    let mut plan = small_plan();
    plan.shard_bytes_max = Some(shard_bytes_max);
    plan
}

/// Writes a sharded store and returns the paths of its files.
fn write_shards(folder: &Path, plan: &StorePlan) -> Vec<PathBuf> {
    let path = folder.join("model.nest");
    write(&path, plan);
    let count = plan.index().unwrap().shards().len() as u32;
    (0..count).map(|number| shard_path(&path, number, count)).collect()
}

#[test]
fn shards_read_like_one_file() {
    for limit in [1, 20_000, 50_000, 100_000] {
        let folder = tempfile::tempdir().unwrap();
        let plan = sharded_plan(limit);
        let paths = write_shards(folder.path(), &plan);
        assert!(paths.len() > 1);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), paths.len());
        let store = Store::open(&paths[0]).unwrap();
        assert_eq!(store.level(), Level::L8);
        expect_contents(&store, &plan);
        assert!(damage(&store).is_empty());
        for (path, length) in paths.iter().zip(store.index().shards()) {
            assert_eq!(fs::metadata(path).unwrap().len(), *length);
        }
    }
}

#[test]
fn missing_shards_leave_a_smaller_model() {
    let folder = tempfile::tempdir().unwrap();
    let plan = sharded_plan(30_000);
    let paths = write_shards(folder.path(), &plan);
    let partial = OpenOptions { partial: true, ..OpenOptions::default() };
    let mut levels = Vec::new();
    for path in paths.iter().skip(1).rev() {
        fs::remove_file(path).unwrap();
        match Store::open_with(&paths[0], &partial) {
            Ok(store) => {
                expect_contents(&store, &plan);
                assert!(damage(&store).is_empty());
                levels.push(store.level());
            }
            Err(StoreError::Truncated { section, .. }) => assert_eq!(section, "2"),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(levels.is_sorted_by(|a, b| a >= b) && levels.len() > 1, "{levels:?}");
}

#[test]
fn shards_that_do_not_belong_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let plan = sharded_plan(30_000);
    let paths = write_shards(folder.path(), &plan);
    let reason = |path: &Path| match Store::open(path) {
        Err(StoreError::Shard { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason(&paths[1]).contains("open the first"));
    let keep = fs::read(&paths[1]).unwrap();
    fs::write(&paths[1], &keep[..100]).unwrap();
    assert!(reason(&paths[0]).contains("only 100 bytes"));
    let mut longer = keep.clone();
    longer.extend_from_slice(&[0; 4096]);
    fs::write(&paths[1], longer).unwrap();
    assert!(reason(&paths[0]).contains("instead of"));
    fs::copy(&paths[2], &paths[1]).unwrap();
    let swapped = Store::open(&paths[0]);
    assert!(matches!(swapped, Err(StoreError::Shard { .. })), "{swapped:?}");

    let elsewhere = tempfile::tempdir().unwrap();
    let mut other = sharded_plan(30_000);
    other.source = b"another".to_vec();
    let others = write_shards(elsewhere.path(), &other);
    fs::copy(&others[1], &paths[1]).unwrap();
    assert!(reason(&paths[0]).contains("belongs to store"));

    fs::write(&paths[1], &keep).unwrap();
    assert!(Store::open(&paths[0]).is_ok());
    let renamed = folder.path().join("renamed.nest");
    fs::copy(&paths[0], &renamed).unwrap();
    assert!(reason(&renamed).contains("00001-of-"));
}

#[test]
fn damage_to_a_shards_header_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let plan = sharded_plan(30_000);
    let paths = write_shards(folder.path(), &plan);
    let mut bytes = fs::read(&paths[2]).unwrap();
    bytes[3000] = 1;
    fs::write(&paths[2], &bytes).unwrap();
    let store = Store::open(&paths[0]).unwrap();
    assert!(matches!(damage(&store)[..], [StoreError::Padding { .. }]));
    bytes[40] ^= 1;
    fs::write(&paths[2], &bytes).unwrap();
    assert!(matches!(Store::open(&paths[0]), Err(StoreError::Damaged { .. })));
}

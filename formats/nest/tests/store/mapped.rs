#![expect(unsafe_code, reason = "a map is a promise that nobody writes to the file")]
//! A mapped store.

use std::fs;
use std::sync::Arc;

use crate::support::{open_bytes, small_plan, write};
use nestling_formats::store::{MappedStore, Store, StoreError};

#[test]
fn a_mapped_store_has_the_same_bytes() {
    let plan = small_plan();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.nest");
    write(&path, &plan);
    let store = Arc::new(Store::open(&path).unwrap());
    // SAFETY: no other process knows the file's name.
    let mapped = unsafe { MappedStore::new(Arc::clone(&store)) }.unwrap();
    for extent in store.index().extents() {
        let expected = store.read_extent_vec(extent).unwrap();
        let found = mapped.checked_extent(extent).unwrap();
        assert_eq!(found.bytes(), expected);
        assert_eq!(found.bytes().as_ptr() as usize % 4096, 0);
        let owner = found.owner();
        assert_eq!((*owner).as_ref()[found.range()], expected);
    }
    let memory = Arc::new(open_bytes(fs::read(&path).unwrap()).unwrap());
    // SAFETY: the store has no file.
    let error = unsafe { MappedStore::new(memory) }.unwrap_err();
    assert!(matches!(error, StoreError::NotMappable { .. }));
}

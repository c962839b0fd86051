//! Arbitrary bytes as a store. The store is rejected with an error or read without a panic.

#![no_main]

use std::ops::ControlFlow;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use nestling_formats::Plane;
use nestling_formats::store::{MemoryStorage, Store};

#[path = "../../formats/nest/tests/store/support/seal.rs"]
mod seal;

fuzz_target!(|data: &[u8]| {
    // The bytes are tried unchanged, and with corrected checksums to reach the later checks.
    let mut sealed = data.to_vec();
    seal::seal(&mut sealed);
    for bytes in [data.to_vec(), sealed] {
        let storage = Arc::new(MemoryStorage::new("fuzz", bytes));
        let Ok(store) = Store::from_storage(storage, true) else { continue };
        for group in store.groups() {
            for plane in Plane::ALL {
                assert!(group.parts(plane).is_some());
                if let Some(extent) = store.extent(group, plane) {
                    let _ = store.read_extent_vec(extent);
                }
            }
        }
        let _ = store.verify(&mut |_| ControlFlow::Continue(()));
    }
});

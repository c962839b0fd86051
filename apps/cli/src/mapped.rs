#![expect(unsafe_code, reason = "mapping a file is a promise that nobody changes it")]
//! Mapping of stores for `--load-mode mmap`.

use nestling::formats::store::{MappedStore, Store, StoreError};
use std::sync::Arc;

use crate::lost_page;

/// Maps a store for use in place, and registers it with the SIGBUS handler.
pub fn map(store: Arc<Store>) -> Result<MappedStore, StoreError> {
    // SAFETY: the flag's help requires that the file does not change while it is in use, and the user chose
    // the flag. This program writes stores only under new names.
    let mapped = unsafe { MappedStore::new(store) }?;
    lost_page::watch(&mapped);
    Ok(mapped)
}

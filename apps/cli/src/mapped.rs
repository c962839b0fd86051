#![expect(unsafe_code, reason = "mapping a file is a promise that nobody changes it")]
//! `--load-mode mmap`.

use nestling::formats::store::{MappedStore, Store, StoreError};
use std::sync::Arc;

use crate::lost_page;

/// Maps a store, to be used in place; if pages of it are gone, the end of the process says so.
pub fn map(store: Arc<Store>) -> Result<MappedStore, StoreError> {
    // SAFETY: the flag's help says that the file must not be changed while it is used, and the
    // person chose it; what runs here writes stores only under names that are not there yet.
    let mapped = unsafe { MappedStore::new(store) }?;
    lost_page::watch(&mapped);
    Ok(mapped)
}

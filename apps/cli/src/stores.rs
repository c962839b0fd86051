//! Opening of stores, including GGUF files in place.

use crate::explain::explain_store;
use crate::failure::{Failure, Result};
use crate::hub;
use crate::in_place::{self, InPlaceFile};
use nestling::formats::store::{Digits, OpenOptions, Store};
use nestling_hub::{WebStore, is_gguf};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// An open store, or a GGUF file opened in place as a store.
pub struct OpenedStore {
    store: Arc<Store>,
    /// The GGUF file, if one is open in place.
    pub file: Option<InPlaceFile>,
}

impl Deref for OpenedStore {
    type Target = Arc<Store>;

    fn deref(&self) -> &Arc<Store> {
        &self.store
    }
}

pub fn open_store(path: &Path) -> Result<OpenedStore> {
    open_store_with(path, false)
}

/// Opens a store. With `partial`, a truncated store opens at its highest complete section.
pub fn open_store_with(path: &Path, partial: bool) -> Result<OpenedStore> {
    open_store_for(path, partial, Digits::Merged)
}

/// Opens a store with the given digit layout for a GGUF file in place.
pub fn open_store_for(path: &Path, partial: bool, digits: Digits) -> Result<OpenedStore> {
    if path.is_dir() {
        return Err(Failure::new(format!("{} is a folder, not a store", path.display()))
            .advise("make a store of a checkpoint with `nestling convert HF_DIR -o OUT.nest`"));
    }
    if is_gguf(path) {
        let (store, file) = in_place::open(path, digits)?;
        return Ok(OpenedStore { store, file: Some(file) });
    }
    if WebStore::is_copy(path) {
        let storage = WebStore::open(path, &hub::access()?)?;
        let store = Store::from_storage(storage, partial).map_err(|error| explain_store(&error))?;
        return Ok(OpenedStore { store: Arc::new(store), file: None });
    }
    let options = OpenOptions { partial, ..OpenOptions::default() };
    let store = Store::open_with(path, &options).map_err(|error| explain_store(&error))?;
    Ok(OpenedStore { store: Arc::new(store), file: None })
}

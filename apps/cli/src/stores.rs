//! Stores that are open: files, and GGUF files where they lie.

use crate::explain::explain_store;
use crate::failure::{Failure, Result};
use crate::in_place::{self, InPlaceFile};
use nestling::formats::store::{Digits, OpenOptions, Store};
use nestling_hub::is_gguf;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

/// An open store: a file, or what a GGUF file is where it lies.
pub struct OpenedStore {
    store: Arc<Store>,
    /// The file, where it is one in place.
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

/// A store; of one that was cut within a section, what is before that, if `partial` allows it.
pub fn open_store_with(path: &Path, partial: bool) -> Result<OpenedStore> {
    open_store_for(path, partial, Digits::Merged)
}

/// The same for a device that wants the digits of a file in place so.
pub fn open_store_for(path: &Path, partial: bool, digits: Digits) -> Result<OpenedStore> {
    if path.is_dir() {
        return Err(Failure::new(format!("{} is a folder, not a store", path.display()))
            .advise("make a store of a checkpoint with `nestling convert HF_DIR -o OUT.nest`"));
    }
    if is_gguf(path) {
        let (store, file) = in_place::open(path, digits)?;
        return Ok(OpenedStore { store, file: Some(file) });
    }
    let options = OpenOptions { partial, ..OpenOptions::default() };
    let store = Store::open_with(path, &options).map_err(|error| explain_store(&error))?;
    Ok(OpenedStore { store: Arc::new(store), file: None })
}

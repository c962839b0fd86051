//! Arrival of a store, section by section: fetched, verified, and fetched again if damaged.

use std::ops::Range;
use std::sync::Arc;

use nestling::formats::store::{Extent, Storage, Store, StoreError};
use nestling::{Level, ModelSource, OpenDevice};

use crate::error::TabError;
use crate::gguf_arrival::{GgufArrival, MAGIC};
use crate::storage::{Prefix, RangeStorage};

/// Bytes that are verified in one step.
const BATCH_BYTES: u64 = 4 << 20;

/// Number of times that a damaged extent is fetched again.
const REPAIRS_MAX: u32 = 3;

/// A model's file that arrives in small steps.
#[derive(Debug)]
pub enum Arrival {
    /// A store, usable from its first level on.
    Store(Box<StoreArrival>),
    /// A GGUF file, usable once it is whole.
    Gguf(GgufArrival),
}

impl Arrival {
    /// Reads the index or the header of a file. Of a store, the sections up to `level` will be fetched; `None` means all.
    ///
    /// # Errors
    /// Fails as [`StoreArrival::open`] and [`GgufArrival::open`] do, and for a level of a GGUF file, which has none.
    pub fn open(storage: Arc<RangeStorage>, level: Option<Level>) -> Result<Self, TabError> {
        match (storage.starts_with(MAGIC)?, level) {
            (false, _) => {
                StoreArrival::open(storage, level).map(|store| Self::Store(Box::new(store)))
            }
            (true, None) => GgufArrival::open(storage).map(Self::Gguf),
            (true, Some(_)) => {
                let reason = "a GGUF file has no levels".into();
                Err(TabError::Invalid { what: "level", reason })
            }
        }
    }

    /// Fetches or verifies the next part, with at most one request. Returns true once everything is here.
    ///
    /// # Errors
    /// Fails as the steps of the two kinds do. A later call continues.
    pub fn step(&mut self) -> Result<bool, TabError> {
        match self {
            Self::Store(store) => store.step(),
            Self::Gguf(file) => file.step(),
        }
    }

    /// Returns whether everything is here.
    pub fn is_complete(&self) -> bool {
        match self {
            Self::Store(store) => store.is_complete(),
            Self::Gguf(file) => file.is_complete(),
        }
    }

    /// Returns whether a message can be answered.
    pub fn is_usable(&self) -> bool {
        match self {
            Self::Store(store) => store.level().is_some(),
            Self::Gguf(file) => file.is_complete(),
        }
    }

    /// Returns the level that is here; `None` for none yet, and for a GGUF file.
    pub fn level(&self) -> Option<Level> {
        match self {
            Self::Store(store) => store.level(),
            Self::Gguf(_) => None,
        }
    }

    /// Returns the bytes that are fetched in all.
    pub fn bytes_wanted(&self) -> u64 {
        match self {
            Self::Store(store) => store.bytes_wanted(),
            Self::Gguf(file) => file.storage().len(),
        }
    }

    /// Returns the number of first bytes that are here, for workers that read the same file. `None` for a GGUF file, which
    /// is not divided.
    pub fn bytes_shared(&self) -> Option<u64> {
        match self {
            Self::Store(store) => Some(store.bytes_ready()),
            Self::Gguf(_) => None,
        }
    }

    /// Returns the storage.
    pub fn storage(&self) -> &RangeStorage {
        match self {
            Self::Store(store) => store.storage(),
            Self::Gguf(file) => file.storage(),
        }
    }

    /// Opens what is here, for a device.
    ///
    /// # Errors
    /// Fails with [`TabError::NotReady`] before the model is usable.
    pub fn source(&self, device: &OpenDevice) -> Result<ModelSource, TabError> {
        if !self.is_usable() {
            return Err(TabError::NotReady);
        }
        match self {
            Self::Store(store) => store.open_store().map(ModelSource::Store),
            Self::Gguf(file) => file.source(device),
        }
    }
}

/// A store that arrives in small steps.
#[derive(Debug)]
pub struct StoreArrival {
    storage: Arc<RangeStorage>,
    /// The whole store, whose index is verified and whose extents may be missing.
    store: Store,
    /// Number of sections to fetch.
    sections_wanted: usize,
    /// Number of verified sections.
    sections_ready: usize,
    /// Number of verified extents.
    extents_ready: usize,
    /// Number of times that the next extent arrived damaged.
    damages: u32,
}

impl StoreArrival {
    /// Reads the index of a store, of which the sections up to `level` will be fetched; `None` means all.
    ///
    /// # Errors
    /// Fails if the index cannot be fetched, or is damaged twice.
    pub fn open(storage: Arc<RangeStorage>, level: Option<Level>) -> Result<Self, TabError> {
        let read = || Store::from_storage(Arc::clone(&storage) as Arc<dyn Storage>, true);
        let store = match read().map_err(TabError::from) {
            Err(TabError::Store(_)) => {
                storage.forget(&(0..storage.len()))?;
                read()?
            }
            other => other?,
        };
        let sections = store.index().sections().len();
        // Default: a level that the store does not have means all of its sections.
        let sections_wanted =
            level.and_then(|level| store.index().sections_for(level)).unwrap_or(sections);
        let (sections_ready, extents_ready, damages) = (0, 0, 0);
        Ok(Self { storage, store, sections_wanted, sections_ready, extents_ready, damages })
    }

    /// Fetches or verifies the next part, with at most one request. Returns true once all sections are ready.
    ///
    /// # Errors
    /// Fails if a request fails, or if the same part arrives damaged four times. A later call continues.
    pub fn step(&mut self) -> Result<bool, TabError> {
        if self.is_complete() {
            return Ok(true);
        }
        let index = self.store.index();
        let section = &index.sections()[self.sections_ready];
        let section_end = section.extents_end as usize;
        let batch = batch(&index.extents()[self.extents_ready..section_end]);
        if let (Some(first), Some(last)) = (batch.first(), batch.last())
            && !self.storage.bring(&(first.offset..last.offset + last.length))?
        {
            return Ok(false);
        }
        for extent in batch {
            if let Err(error) = self.store.read_extent_vec(extent).map_err(TabError::from) {
                return self.damaged(bytes_of(extent), error);
            }
            self.extents_ready += 1;
            self.damages = 0;
        }
        if self.extents_ready == section_end {
            self.sections_ready += 1;
        }
        Ok(self.is_complete())
    }

    /// Removes a damaged extent, and fails if it was damaged too often.
    fn damaged(&mut self, bytes: Range<u64>, error: TabError) -> Result<bool, TabError> {
        if matches!(error, TabError::Store(StoreError::Damaged { .. })) {
            self.storage.forget(&bytes)?;
            self.damages += 1;
            if self.damages <= REPAIRS_MAX {
                return Ok(false);
            }
            self.damages = 0;
        }
        Err(error)
    }

    /// Returns whether all requested sections are ready.
    pub fn is_complete(&self) -> bool {
        self.sections_ready >= self.sections_wanted
    }

    /// Returns the number of verified sections.
    pub fn sections_ready(&self) -> usize {
        self.sections_ready
    }

    /// Returns the level that is complete with the verified sections.
    pub fn level(&self) -> Option<Level> {
        self.store.index().complete_level(self.sections_ready)
    }

    /// Returns the length in bytes of the first `sections` sections.
    fn end(&self, sections: usize) -> u64 {
        let last = sections.checked_sub(1).and_then(|last| self.store.index().sections().get(last));
        // Default: no sections have no bytes.
        last.map_or(0, |section| section.end)
    }

    /// Returns the bytes of the requested sections.
    pub fn bytes_wanted(&self) -> u64 {
        self.end(self.sections_wanted)
    }

    /// Returns the storage.
    pub fn storage(&self) -> &RangeStorage {
        &self.storage
    }

    /// Returns the bytes of the verified sections.
    pub fn bytes_ready(&self) -> u64 {
        self.end(self.sections_ready)
    }

    /// Opens the verified sections as a store.
    ///
    /// # Errors
    /// Fails with [`TabError::NotReady`] before the first level is complete.
    pub fn open_store(&self) -> Result<Arc<Store>, TabError> {
        if self.level().is_none() {
            return Err(TabError::NotReady);
        }
        let prefix = Prefix::new(Arc::clone(&self.storage), self.bytes_ready());
        Ok(Arc::new(Store::from_storage(Arc::new(prefix), false)?))
    }
}

fn bytes_of(extent: &Extent) -> Range<u64> {
    extent.offset..extent.offset + extent.length
}

/// Returns the first extents with at most [`BATCH_BYTES`] bytes, and at least one.
fn batch(extents: &[Extent]) -> &[Extent] {
    let Some(first) = extents.first() else { return extents };
    let limit = first.offset.saturating_add(BATCH_BYTES);
    let count = extents.partition_point(|extent| bytes_of(extent).end <= limit);
    &extents[..count.max(1)]
}

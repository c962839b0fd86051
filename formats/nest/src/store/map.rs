#![expect(unsafe_code, reason = "mapping a file is a promise about what others do to it")]
//! Stores mapped into memory and used in place.

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};

use super::error::StoreError;
use super::index::Extent;
use super::read::Store;

/// A store whose present bytes are mapped into memory. Pages are read when touched, and processes that map
/// the same file share them.
#[derive(Clone)]
pub struct MappedStore {
    store: Arc<Store>,
    /// Map of each file and its byte range in the store.
    maps: Vec<(Range<u64>, Arc<Mmap>)>,
}

/// The bytes of one extent, with the map that keeps them valid.
#[derive(Clone)]
pub struct MappedExtent {
    owner: Arc<Mmap>,
    range: Range<usize>,
}

impl MappedExtent {
    /// Returns the bytes of the extent.
    pub fn bytes(&self) -> &[u8] {
        &self.owner[self.range.clone()]
    }

    /// Returns the complete map that contains the bytes and keeps them valid.
    pub fn owner(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        self.owner.clone()
    }

    /// Returns the range of the bytes within [`Self::owner`].
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl MappedStore {
    /// Maps the files of a store.
    ///
    /// # Errors
    /// [`StoreError::NotMappable`] if the store is not in plain files; [`StoreError::Io`] if mapping fails.
    ///
    /// # Safety
    /// Until the last [`MappedStore`], [`MappedExtent`] and owner is dropped, the files must not be written
    /// to or truncated. Bytes that change under a reader are undefined behaviour, and a missing page
    /// terminates the process with a signal. Replacing a file by renaming another over it is safe.
    pub unsafe fn new(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut maps = Vec::new();
        let mut start = 0;
        for part in store.storage.files() {
            let error = |source| StoreError::io(&store.name, "map", start, 0, source);
            let length = usize::try_from(part.length)
                .map_err(|_| StoreError::NotMappable { file: store.name.clone() })?;
            let mut options = MmapOptions::new();
            options.offset(part.offset).len(length);
            // SAFETY: the caller guarantees that the file is not modified or truncated.
            let map = unsafe { options.map(part.file) }.map_err(error)?;
            let end = start + part.length;
            maps.push((start..end, Arc::new(map)));
            start = end;
        }
        if start == 0 || start != store.storage.len() {
            return Err(StoreError::NotMappable { file: store.name.clone() });
        }
        Ok(Self { store, maps })
    }

    /// Returns the underlying store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the address ranges of the mapped files, for handlers of the signal raised by missing pages.
    pub fn addresses(&self) -> impl Iterator<Item = Range<usize>> {
        self.maps.iter().map(|(_, map)| {
            let bytes = map.as_ptr_range();
            bytes.start as usize..bytes.end as usize
        })
    }

    /// Checks that the files still have the length and modification time they had when mapped. Changes after
    /// the check are not detected.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if a file changed; [`StoreError::Io`] if the system fails.
    pub fn check_unchanged(&self) -> Result<(), StoreError> {
        let checked = self.store.storage.check_unchanged(0, self.store.storage.len());
        checked.map_err(|source| StoreError::io(&self.store.name, "look at", 0, 0, source))
    }

    /// Returns an extent's bytes in place without checking them, or `None` if the extent is not present.
    pub fn extent(&self, extent: &Extent) -> Option<MappedExtent> {
        let end = extent.offset.checked_add(extent.length)?;
        let holds = |range: &Range<u64>| range.start <= extent.offset && end <= range.end;
        let (range, map) = self.maps.iter().find(|(range, _)| holds(range))?;
        if !self.store.is_present(extent) {
            return None;
        }
        let start = usize::try_from(extent.offset - range.start).ok()?;
        let end = usize::try_from(end - range.start).ok()?;
        Some(MappedExtent { owner: Arc::clone(map), range: start..end })
    }

    /// Returns an extent's bytes in place after verifying their checksum, which reads all of them.
    ///
    /// # Errors
    /// [`StoreError::Absent`] if the extent is not present; [`StoreError::Damaged`] if the checksum does not
    /// match.
    pub fn checked_extent(&self, extent: &Extent) -> Result<MappedExtent, StoreError> {
        let mapped = self.extent(extent).ok_or_else(|| StoreError::Absent {
            file: self.store.name.clone(),
            what: self.store.index.describe(extent),
        })?;
        self.store.check(extent, mapped.bytes())?;
        Ok(mapped)
    }
}

impl std::fmt::Debug for MappedStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MappedStore({})", self.store.name)
    }
}

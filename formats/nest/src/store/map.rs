#![expect(unsafe_code, reason = "mapping a file is a promise about what others do to it")]
//! A store used in place, mapped into memory.

use std::ops::Range;
use std::sync::Arc;

use memmap2::{Mmap, MmapOptions};

use super::error::StoreError;
use super::index::Extent;
use super::read::Store;

/// A store whose present bytes are mapped into memory: nothing is read until it is touched, and
/// processes that map the same file share it.
pub struct MappedStore {
    store: Arc<Store>,
    /// Each file's map and the range of the store that it holds.
    maps: Vec<(Range<u64>, Arc<Mmap>)>,
}

/// The bytes of one extent with what keeps them mapped.
#[derive(Clone)]
pub struct MappedExtent {
    owner: Arc<Mmap>,
    range: Range<usize>,
}

impl MappedExtent {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.owner[self.range.clone()]
    }

    /// The whole map that the bytes lie in, which keeps them valid.
    pub fn owner(&self) -> Arc<dyn AsRef<[u8]> + Send + Sync> {
        self.owner.clone()
    }

    /// Where the bytes lie within [`Self::owner`].
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }
}

impl MappedStore {
    /// Maps the files of a store.
    ///
    /// # Errors
    /// [`StoreError::NotMappable`] if the store does not lie in plain files, [`StoreError::Io`].
    ///
    /// # Safety
    /// Until the last [`MappedStore`], [`MappedExtent`] and owner is dropped, nobody may write to the
    /// files or make them shorter: bytes that change under a reader are undefined behaviour, and a
    /// missing page ends the process with a signal. Replacing a file by renaming another over it is
    /// fine.
    pub unsafe fn new(store: Arc<Store>) -> Result<Self, StoreError> {
        let mut maps = Vec::new();
        let mut start = 0;
        for part in store.storage.files() {
            let error = |source| StoreError::io(&store.name, "map", start, 0, source);
            let length = usize::try_from(part.length)
                .map_err(|_| StoreError::NotMappable { file: store.name.clone() })?;
            let mut options = MmapOptions::new();
            options.offset(part.offset).len(length);
            // SAFETY: the caller promises that nobody writes to or truncates the file.
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

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The addresses that its files are mapped at: for programs that handle the signal which a page raises that is gone.
    pub fn addresses(&self) -> impl Iterator<Item = Range<usize>> {
        self.maps.iter().map(|(_, map)| {
            let bytes = map.as_ptr_range();
            bytes.start as usize..bytes.end as usize
        })
    }

    /// Asks the system whether the files are still those that were mapped, of the same length and time. What is
    /// written between this and a use is not seen.
    ///
    /// # Errors
    /// [`StoreError::Changed`], [`StoreError::Io`].
    pub fn check_unchanged(&self) -> Result<(), StoreError> {
        let checked = self.store.storage.check_unchanged(0, self.store.storage.len());
        checked.map_err(|source| StoreError::io(&self.store.name, "look at", 0, 0, source))
    }

    /// An extent's bytes in place, not checked; none if it is not present.
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

    /// An extent's bytes in place, compared with its checksum, which reads all of them.
    ///
    /// # Errors
    /// [`StoreError::Absent`], [`StoreError::Damaged`].
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

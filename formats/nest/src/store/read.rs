//! Reading of an opened store.

use crate::Invariant;
use crate::memory::try_zeroed;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use super::decode::decode;
use super::error::StoreError;
use super::format::HEADER_BYTES;
use super::hash::{StoreId, hash, index_seed};
use super::header::{Header, STORE_LENGTH_AT};
use super::index::{Extent, Group, GroupId, Index};
use super::parts::{Digits, Part};
use super::plan::StorePlan;
use super::shards::ShardedStorage;
use super::storage::{FileStorage, Storage};
use crate::{Level, Plane};

/// Options for opening a store.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Byte offset of the store in its file, for stores within bundles.
    pub offset: u64,
    /// Length of the store in bytes; `None` extends to the end of the file.
    pub length: Option<u64>,
    /// True to open a store truncated within a section at its last complete section. A store that ends with a
    /// section can always be opened.
    pub partial: bool,
}

/// An opened store with a checked index.
///
/// Opening reads only the header and the index. Extents are read and checked one by one.
pub struct Store {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) name: String,
    pub(super) index: Index,
    pub(super) header: Header,
    /// Number of complete sections.
    sections_present: usize,
    level: Level,
    checksums: Checksums,
    digits: Digits,
}

/// Source of the checksums that extents are verified with.
enum Checksums {
    /// Checksums recorded in the index.
    Recorded,
    /// Checksums computed when each extent was first read, by extent number.
    FirstRead(Vec<OnceLock<[u8; 16]>>),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, level {})", self.name, self.level)
    }
}

impl Store {
    /// Opens a store; for a sharded store, `path` is the first shard and the others are next to it.
    ///
    /// ```
    /// use nestling_formats::Level;
    /// use nestling_formats::store::Store;
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// assert_eq!(store.level(), Level::L8);
    /// let (present, complete) = store.lengths();
    /// assert_eq!(present, complete);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A [`StoreError`] with the location and the problem.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a store within a larger file, or an incomplete one.
    ///
    /// # Errors
    /// A [`StoreError`] with the location and the problem.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, StoreError> {
        let path = path.as_ref();
        let file = FileStorage::open(path, options.offset, options.length)?;
        let (header, index) = read_index(&file)?;
        if header.shards == 1 {
            return Self::new(Arc::new(file), header, index, options.partial);
        }
        let shards = ShardedStorage::open(path, file, &index)?;
        Self::new(Arc::new(shards), header, index, options.partial)
    }

    /// Opens a store in any kind of storage.
    ///
    /// A store truncated after a section is a complete model of a lower level:
    ///
    /// ```
    /// use std::sync::Arc;
    /// use nestling_formats::Level;
    /// use nestling_formats::store::{MemoryStorage, Store};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let mut bytes = std::fs::read(path)?;
    /// let first_end = Store::open(path)?.index().sections()[0].end;
    /// bytes.truncate(usize::try_from(first_end)?);
    /// let cut = Store::from_storage(Arc::new(MemoryStorage::new("first section", bytes)), false)?;
    /// assert_eq!(cut.level(), Level::L2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// A [`StoreError`] with the location and the problem.
    pub fn from_storage(storage: Arc<dyn Storage>, partial: bool) -> Result<Self, StoreError> {
        let (header, index) = read_index(&*storage)?;
        Self::new(storage, header, index, partial)
    }

    fn new(
        storage: Arc<dyn Storage>,
        header: Header,
        index: Index,
        partial: bool,
    ) -> Result<Self, StoreError> {
        let (name, length) = (storage.name(), storage.len());
        if length > header.store_length {
            return Err(StoreError::Malformed(Box::new(super::Malformed {
                file: name,
                what: "header".into(),
                field: "store length",
                offset: STORE_LENGTH_AT,
                expected: format!("{length}, the length of the file"),
                found: header.store_length.to_string(),
            })));
        }
        let sections_present = index.sections.partition_point(|section| section.end <= length);
        let at_end = index.sections[..sections_present].last().map(|section| section.end);
        let cut = index.sections.get(sections_present);
        let level = index.complete_level(sections_present);
        match (level, cut) {
            (Some(level), _) if partial || at_end == Some(length) => {
                let checksums = Checksums::Recorded;
                let digits = Digits::Apart;
                Ok(Self {
                    storage,
                    name,
                    index,
                    header,
                    sections_present,
                    level,
                    checksums,
                    digits,
                })
            }
            (_, Some(cut)) => Err(StoreError::Truncated {
                file: name,
                expected: header.store_length,
                found: length,
                section: cut.name.clone(),
                section_end: cut.end,
            }),
            _ => Err(StoreError::Absent { file: name, what: "complete level".into() }),
        }
    }

    /// Opens a derived store, which exists in no file: `storage` computes the bytes of extents from another
    /// source on each read. The whole store is one model of level `level`.
    ///
    /// A derived store has no checksums before the first read; later reads are compared with the first.
    /// `storage` must produce P3 and P4 as `digits` specifies.
    ///
    /// # Errors
    /// [`StoreError::Plan`] if the plan is invalid or has unknown codecs.
    pub fn derived(
        plan: &StorePlan,
        level: Level,
        digits: Digits,
        storage: impl FnOnce(&Index) -> Arc<dyn Storage>,
    ) -> Result<Self, StoreError> {
        let index = Self::derived_index(plan, level)?;
        let header = index.header(&index.encode());
        let storage = storage(&index);
        let checksums = Checksums::FirstRead(vec![OnceLock::new(); index.extents.len()]);
        let (name, sections_present) = (storage.name(), index.sections.len());
        Ok(Self { storage, name, index, header, sections_present, level, checksums, digits })
    }

    /// Computes the index of [`Self::derived`].
    ///
    /// # Errors
    /// The errors of [`Self::derived`].
    pub fn derived_index(plan: &StorePlan, level: Level) -> Result<Index, StoreError> {
        let mut index = plan.index()?;
        if let Some(number) = index.codecs.iter().position(|slot| slot.codec.is_none()) {
            return Err(StoreError::plan(format!("codec {number}"), "is not known yet"));
        }
        index.section_levels.fill(Some(level));
        Ok(index)
    }

    /// Returns the name for error messages, such as the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the index of the complete store, including parts that are not present.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Returns the storage that the bytes are read from.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Returns the identity of the store.
    pub fn id(&self) -> StoreId {
        self.index.id
    }

    /// Returns the highest complete level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the number of complete sections, counted from the first.
    pub fn sections_present(&self) -> usize {
        self.sections_present
    }

    /// Returns the number of bytes present, and the length of the complete store.
    pub fn lengths(&self) -> (u64, u64) {
        (self.storage.len(), self.header.store_length)
    }

    /// Returns all groups, including those without present extents.
    ///
    /// ```
    /// use nestling_formats::store::Store;
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// let experts = store.groups().iter().filter(|group| group.id.expert().is_some());
    /// assert_eq!(experts.count(), 4 * 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn groups(&self) -> &[Group] {
        &self.index.groups
    }

    /// Returns the group with an id.
    pub fn group(&self, id: &GroupId) -> Option<&Group> {
        self.index.group(id)
    }

    /// Returns the storage of planes P3 and P4 in extents.
    pub fn digits(&self) -> Digits {
        self.digits
    }

    /// Returns the parts of a group's extent, in order, or `None` if the sizes overflow.
    pub fn parts(&self, group: &Group, plane: Plane) -> Option<Vec<Part>> {
        group.parts_as(plane, self.digits)
    }

    /// Returns whether an extent is completely present.
    pub fn is_present(&self, extent: &Extent) -> bool {
        let end = self.sections_present.checked_sub(1);
        let end = end.and_then(|last| self.index.sections.get(last)).map_or(0, |last| last.end);
        extent.offset < end
    }

    /// Returns the extent of a group's plane, if it is present.
    pub fn extent(&self, group: &Group, plane: Plane) -> Option<&Extent> {
        self.index.extent(group, plane).filter(|extent| self.is_present(extent))
    }

    /// Reads an extent without checking it. `out` must have the extent's length.
    ///
    /// # Errors
    /// [`StoreError::Length`], [`StoreError::Absent`], [`StoreError::Changed`] or [`StoreError::Io`].
    pub fn read_raw(&self, extent: &Extent, out: &mut [u8]) -> Result<(), StoreError> {
        if out.len() as u64 != extent.length {
            let what = self.index.describe(extent);
            let (expected, found) = (extent.length, out.len() as u64);
            return Err(StoreError::Length { what, expected, found });
        }
        if !self.is_present(extent) {
            return Err(self.absent(self.index.describe(extent)));
        }
        self.read_bytes(extent.offset, out)
    }

    /// Converts a failed read of an extent to a [`StoreError`], for callers that read the storage's files
    /// directly.
    pub fn read_error(&self, extent: &Extent, source: std::io::Error) -> StoreError {
        StoreError::io(&self.name, "read", extent.offset, 0, source)
    }

    /// Checks that the file of an extent has not changed since it was opened.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if it has; [`StoreError::Io`] if the system fails.
    pub fn check_unchanged(&self, extent: &Extent) -> Result<(), StoreError> {
        let unchanged = self.storage.check_unchanged(extent.offset, extent.length);
        unchanged.map_err(|source| self.read_error(extent, source))
    }

    /// Returns the checksums of a derived store's extents from their first read, by extent number. Returns
    /// `None` for a store with recorded checksums. Pass them to [`Self::expect_checksums`] when the store is
    /// opened again.
    pub fn first_checksums(&self) -> Option<Vec<Option<[u8; 16]>>> {
        match &self.checksums {
            Checksums::Recorded => None,
            Checksums::FirstRead(known) => {
                Some(known.iter().map(|known| known.get().copied()).collect())
            }
        }
    }

    /// Sets expected checksums of a derived store's extents, from [`Self::first_checksums`] of a store with
    /// the same id. Extents that were already read keep their checksums. Returns the number of known
    /// checksums.
    ///
    /// # Errors
    /// [`StoreError::Length`] if there is not one entry per extent, or if the store has recorded checksums.
    pub fn expect_checksums(&self, known: &[Option<[u8; 16]>]) -> Result<usize, StoreError> {
        let firsts: &[OnceLock<[u8; 16]>] = match &self.checksums {
            Checksums::Recorded => &[],
            Checksums::FirstRead(firsts) => firsts,
        };
        if firsts.len() != known.len() {
            let what = format!("{}: checksums of extents", self.name);
            let (expected, found) = (firsts.len() as u64, known.len() as u64);
            return Err(StoreError::Length { what, expected, found });
        }
        for (first, known) in firsts.iter().zip(known) {
            if let Some(known) = known {
                first.get_or_init(|| *known);
            }
        }
        Ok(firsts.iter().filter(|first| first.get().is_some()).count())
    }

    /// Returns true if extents are computed on each read instead of stored.
    pub fn is_derived(&self) -> bool {
        matches!(self.checksums, Checksums::FirstRead(_))
    }

    /// Verifies an extent's bytes against its checksum; in a derived store, against the checksum of the first
    /// read.
    ///
    /// ```
    /// use nestling_formats::Plane;
    /// use nestling_formats::store::{GroupId, Store, StoreError};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// let expert = store.group(&GroupId::expert_of(0, 0)).ok_or("no such expert")?;
    /// let extent = store.extent(expert, Plane::P3).ok_or("plane P3 is absent")?;
    /// let mut bytes = store.read_extent_vec(extent)?;
    /// bytes[0] ^= 1;
    /// assert!(matches!(store.check(extent, &bytes), Err(StoreError::Damaged { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Damaged`], or [`StoreError::Differs`] for a derived store.
    pub fn check(&self, extent: &Extent, bytes: &[u8]) -> Result<(), StoreError> {
        let seed = self.index.seed(extent);
        let seed = seed.invariant("every extent belongs to a group of its index")?;
        let found = hash(seed, bytes);
        let expected = match &self.checksums {
            Checksums::Recorded => extent.hash,
            Checksums::FirstRead(known) => {
                let number = self.index.number(extent);
                let known = number.and_then(|number| known.get(number));
                *known.invariant("every extent has a number")?.get_or_init(|| found)
            }
        };
        if found == expected { Ok(()) } else { Err(self.damaged(extent)) }
    }

    /// Reads an extent and verifies it. `out` must have the extent's length.
    ///
    /// # Errors
    /// The errors of [`Self::read_raw`] and [`Self::check`]; the contents of `out` must not be used in that
    /// case.
    pub fn read_extent(&self, extent: &Extent, out: &mut [u8]) -> Result<(), StoreError> {
        self.read_raw(extent, out)?;
        self.check(extent, out)
    }

    /// Reads and verifies an extent into a new vector.
    ///
    /// # Errors
    /// The errors of [`Self::read_extent`].
    pub fn read_extent_vec(&self, extent: &Extent) -> Result<Vec<u8>, StoreError> {
        if !self.is_present(extent) {
            return Err(self.absent(self.index.describe(extent)));
        }
        // Present extents are within the storage, so the allocation does not exceed the data.
        let length = usize::try_from(extent.length)
            .map_err(|_| self.absent(format!("memory for {}", self.index.describe(extent))))?;
        let mut bytes = try_zeroed("an extent", length)?;
        self.read_extent(extent, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the names of the assets.
    pub fn asset_names(&self) -> impl Iterator<Item = &str> {
        self.index.groups.iter().filter_map(|group| match &group.id {
            GroupId::Asset { name } => Some(name.as_str()),
            _ => None,
        })
    }

    /// Reads an asset, or returns `None` if the store does not have it.
    ///
    /// ```
    /// use nestling_formats::store::Store;
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// assert!(store.asset("tokenizer.json")?.is_some());
    /// assert!(store.asset("missing.json")?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::read_extent`].
    pub fn asset(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let group = self.index.group(&GroupId::asset(name));
        match group.and_then(|group| self.extent(group, Plane::P2)) {
            Some(extent) => self.read_extent_vec(extent).map(Some),
            None => Ok(None),
        }
    }

    /// Reads the model's `config.json`.
    ///
    /// # Errors
    /// The errors of [`Self::read_extent`]; [`StoreError::Absent`] if the store does not have it.
    pub fn config_json(&self) -> Result<Vec<u8>, StoreError> {
        let name = super::ASSET_CONFIG;
        self.asset(name)?.ok_or_else(|| self.absent(format!("asset `{name}`")))
    }

    pub(super) fn read_bytes(&self, offset: u64, out: &mut [u8]) -> Result<(), StoreError> {
        let length = out.len();
        self.storage
            .read_at(offset, out)
            .map_err(|source| StoreError::io(&self.name, "read", offset, length, source))
    }

    pub(super) fn damaged(&self, extent: &Extent) -> StoreError {
        if self.is_derived() {
            let origin = self.storage.origin(extent.offset);
            // Default: a storage without origins is described by the extent's offset.
            let origin = origin.unwrap_or_else(|| format!("byte {}", extent.offset));
            let (file, what) = (self.name.clone(), self.index.describe(extent));
            return StoreError::Differs { file, what, origin };
        }
        StoreError::Damaged {
            file: self.name.clone(),
            what: self.index.describe(extent),
            offset: extent.offset,
            length: extent.length,
        }
    }

    fn absent(&self, what: String) -> StoreError {
        StoreError::Absent { file: self.name.clone(), what }
    }
}

/// Reads and checks header and index. All allocations sized by counts from the file happen here.
fn read_index(storage: &dyn Storage) -> Result<(Header, Index), StoreError> {
    let (name, length) = (storage.name(), storage.len());
    let read = |offset: u64, bytes: u64| -> Result<Vec<u8>, StoreError> {
        let size = usize::try_from(bytes).map_err(|_| StoreError::Absent {
            file: name.clone(),
            what: "index that fits in memory".into(),
        })?;
        let mut out = try_zeroed("the index of a store", size)?;
        let read = storage.read_at(offset, &mut out);
        read.map_err(|source| StoreError::io(&name, "read", offset, size, source))?;
        Ok(out)
    };
    let front = read(0, length.min(HEADER_BYTES as u64))?;
    let header = Header::decode(&front, 0, &name)?;
    if header.shard != 0 {
        return Err(StoreError::Shard {
            file: name,
            shard: 1,
            shards: header.shards,
            reason: format!("it is shard {}; open the first", header.shard + 1),
        });
    }
    let data_start = header.data_start().filter(|start| *start <= length);
    let Some(data_start) = data_start else {
        return Err(StoreError::Truncated {
            file: name,
            expected: header.store_length,
            found: length,
            section: "index".into(),
            section_end: header.data_start().unwrap_or(u64::MAX),
        });
    };
    let base = HEADER_BYTES as u64;
    let bytes = read(base, header.index_length)?;
    if hash(index_seed(header.id), &bytes) != header.index_hash {
        let (what, length) = ("index".into(), header.index_length);
        return Err(StoreError::Damaged { file: name, what, offset: base, length });
    }
    let end = base + header.index_length;
    if let Some(at) = read(end, data_start - end)?.iter().position(|byte| *byte != 0) {
        return Err(StoreError::Padding { file: name, offset: end + at as u64 });
    }
    let index = decode(&bytes, base, &header).map_err(|fault| fault.in_file(&name))?;
    Ok((header, index))
}

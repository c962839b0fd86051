//! An opened store.

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

/// How to open a store.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Where the store begins in its file, for stores within bundles.
    pub offset: u64,
    /// Bytes of the store; none = all that follow.
    pub length: Option<u64>,
    /// Whether a store that was cut within a section opens at its last complete section. One that
    /// ends with a section always opens.
    pub partial: bool,
}

/// An opened, checked index over a range of bytes.
///
/// Opening reads the header and the index alone; extents are read, and checked, one by one.
pub struct Store {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) name: String,
    pub(super) index: Index,
    pub(super) header: Header,
    /// Sections that are there as a whole.
    sections_present: usize,
    level: Level,
    checksums: Checksums,
    digits: Digits,
}

/// What extents are compared with when they are read.
enum Checksums {
    /// The index has a checksum of each.
    Recorded,
    /// Those of the extents as they were read first, by their numbers.
    FirstRead(Vec<OnceLock<[u8; 16]>>),
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Store({}, level {})", self.name, self.level)
    }
}

impl Store {
    /// Opens a store, or the first of its shards with the others beside it.
    ///
    /// # Errors
    /// [`StoreError`] that says what is wrong and where.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens a store within a larger file, or one that is not complete.
    ///
    /// # Errors
    /// [`StoreError`] that says what is wrong and where.
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
    /// # Errors
    /// [`StoreError`] that says what is wrong and where.
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

    /// A store that is not written anywhere: `storage` makes the bytes of extents out of something
    /// else whenever they are read. All of it is one model, whose level is `level`.
    ///
    /// Nothing says what the extents' bytes should be before they are read; later reads are compared
    /// with the first. `storage` makes P3 and P4 as `digits` says.
    ///
    /// # Errors
    /// [`StoreError::Plan`] for a plan that no store can follow, or with codecs that are not known.
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

    /// The index of [`Self::derived`].
    ///
    /// # Errors
    /// As [`Self::derived`].
    pub fn derived_index(plan: &StorePlan, level: Level) -> Result<Index, StoreError> {
        let mut index = plan.index()?;
        if let Some(number) = index.codecs.iter().position(|slot| slot.codec.is_none()) {
            return Err(StoreError::plan(format!("codec {number}"), "is not known yet"));
        }
        index.section_levels.fill(Some(level));
        Ok(index)
    }

    /// Name for messages, such as the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The index: everything that the store holds or would hold if it were complete.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Where the bytes come from.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// Identity of the store.
    pub fn id(&self) -> StoreId {
        self.index.id
    }

    /// The highest level that is complete.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Sections that are there as a whole, from the first.
    pub fn sections_present(&self) -> usize {
        self.sections_present
    }

    /// Bytes that are there, and bytes of the whole store.
    pub fn lengths(&self) -> (u64, u64) {
        (self.storage.len(), self.header.store_length)
    }

    /// All groups.
    pub fn groups(&self) -> &[Group] {
        &self.index.groups
    }

    /// The group of that name.
    pub fn group(&self, id: &GroupId) -> Option<&Group> {
        self.index.group(id)
    }

    /// How P3 and P4 lie in its extents.
    pub fn digits(&self) -> Digits {
        self.digits
    }

    /// What an extent of a group holds, in order; none if the sizes overflow.
    pub fn parts(&self, group: &Group, plane: Plane) -> Option<Vec<Part>> {
        group.parts_as(plane, self.digits)
    }

    /// Whether an extent is there as a whole.
    pub fn is_present(&self, extent: &Extent) -> bool {
        let end = self.sections_present.checked_sub(1);
        let end = end.and_then(|last| self.index.sections.get(last)).map_or(0, |last| last.end);
        extent.offset < end
    }

    /// The extent of a group's plane, if it is there.
    pub fn extent(&self, group: &Group, plane: Plane) -> Option<&Extent> {
        self.index.extent(group, plane).filter(|extent| self.is_present(extent))
    }

    /// Reads an extent without checking it. `out` must have its length.
    ///
    /// # Errors
    /// [`StoreError::Length`], [`StoreError::Absent`], [`StoreError::Changed`], [`StoreError::Io`].
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

    /// What a failed read of an extent means, for those who read the storage's files themselves.
    pub fn read_error(&self, extent: &Extent, source: std::io::Error) -> StoreError {
        StoreError::io(&self.name, "read", extent.offset, 0, source)
    }

    /// Whether an extent's bytes are still those of the file that was opened.
    ///
    /// # Errors
    /// [`StoreError::Changed`], [`StoreError::Io`].
    pub fn check_unchanged(&self, extent: &Extent) -> Result<(), StoreError> {
        let unchanged = self.storage.check_unchanged(extent.offset, extent.length);
        unchanged.map_err(|source| self.read_error(extent, source))
    }

    /// The checksums that extents of a derived store had when they were read first, by their numbers;
    /// none of a store that records its own. [`Self::expect_checksums`] takes them another time.
    pub fn first_checksums(&self) -> Option<Vec<Option<[u8; 16]>>> {
        match &self.checksums {
            Checksums::Recorded => None,
            Checksums::FirstRead(known) => {
                Some(known.iter().map(|known| known.get().copied()).collect())
            }
        }
    }

    /// Has extents of a derived store compared with what they were when a store of the same id was
    /// read: see [`Self::first_checksums`]. What this one has read already stays what it was. Returns
    /// how many are known now.
    ///
    /// # Errors
    /// [`StoreError::Length`] if there is not one for every extent, or the store records its own.
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

    /// Whether the bytes of extents are made when they are read.
    pub fn is_derived(&self) -> bool {
        matches!(self.checksums, Checksums::FirstRead(_))
    }

    /// Compares an extent's bytes with its checksum; in a derived store with that of the bytes that
    /// were read first.
    ///
    /// # Errors
    /// [`StoreError::Damaged`]; of a derived store [`StoreError::Differs`].
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

    /// Reads an extent and checks it. `out` must have its length.
    ///
    /// # Errors
    /// As [`Self::read_raw`] and [`Self::check`]; `out` then holds nothing that may be used.
    pub fn read_extent(&self, extent: &Extent, out: &mut [u8]) -> Result<(), StoreError> {
        self.read_raw(extent, out)?;
        self.check(extent, out)
    }

    /// Reads and checks an extent into memory of its own.
    ///
    /// # Errors
    /// As [`Self::read_extent`].
    pub fn read_extent_vec(&self, extent: &Extent) -> Result<Vec<u8>, StoreError> {
        if !self.is_present(extent) {
            return Err(self.absent(self.index.describe(extent)));
        }
        // Present extents lie within the storage, so this is no more than there is to read.
        let length = usize::try_from(extent.length)
            .map_err(|_| self.absent(format!("memory for {}", self.index.describe(extent))))?;
        let mut bytes = try_zeroed("an extent", length)?;
        self.read_extent(extent, &mut bytes)?;
        Ok(bytes)
    }

    /// Names of the files that the store carries.
    pub fn asset_names(&self) -> impl Iterator<Item = &str> {
        self.index.groups.iter().filter_map(|group| match &group.id {
            GroupId::Asset { name } => Some(name.as_str()),
            _ => None,
        })
    }

    /// A file that the store carries; none if it has no such.
    ///
    /// # Errors
    /// As [`Self::read_extent`].
    pub fn asset(&self, name: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let group = self.index.group(&GroupId::asset(name));
        match group.and_then(|group| self.extent(group, Plane::P2)) {
            Some(extent) => self.read_extent_vec(extent).map(Some),
            None => Ok(None),
        }
    }

    /// The model's `config.json`.
    ///
    /// # Errors
    /// As [`Self::read_extent`]; [`StoreError::Absent`] if the store carries none.
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
            // Default: a storage that does not say is known by the extent alone.
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

/// Reads and checks header and index; all that is ever allocated by a count of the file.
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

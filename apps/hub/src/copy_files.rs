//! Files of a local copy: one for each file of the remote store.

use crate::client::RequestError;
use crate::error::{HubError, Result};
use crate::listing::RemoteFile;
use crate::options::WebAccess;
use crate::ranges::{FileSource, Ranges};
use crate::shard_names::ShardName;
use crate::sparse_file::{ArrivedExtents, ENDING, SparseFile, damaged};
use crate::store_address::StoreAddress;
use crate::store_place::StorePlace;
use nestling_formats::store::{Extent, Storage, StoreError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Files of a copy in order, as one range of bytes.
pub struct CopyFiles {
    pub files: Vec<CopiedFile>,
    name: String,
}

/// A local file, and the remote file that it copies.
pub struct CopiedFile {
    pub sparse: SparseFile,
    pub place: StorePlace,
    pub remote: RemoteFile,
    /// Offset of the file in the store in bytes.
    pub start: u64,
}

/// Extents that have arrived, by file.
#[derive(Clone, Debug)]
pub struct ArrivedSet {
    files: Vec<ArrivedInFile>,
}

#[derive(Clone, Debug)]
struct ArrivedInFile {
    /// Numbers of the extents in the file.
    extents: Range<usize>,
    arrived: ArrivedExtents,
}

impl ArrivedSet {
    /// Creates a set for one file, of which nothing has arrived.
    #[cfg(test)]
    pub fn empty(extents: usize) -> Self {
        let arrived = ArrivedExtents::empty(extents);
        Self { files: vec![ArrivedInFile { extents: 0..extents, arrived }] }
    }

    pub fn contains(&self, extent: usize) -> bool {
        let file = self.files.iter().find(|file| file.extents.contains(&extent));
        file.is_some_and(|file| file.arrived.contains(extent - file.extents.start))
    }

    pub fn insert(&mut self, extent: usize) {
        let file = self.files.iter_mut().find(|file| file.extents.contains(&extent));
        if let Some(file) = file {
            file.arrived.insert(extent - file.extents.start);
        }
    }
}

impl CopyFiles {
    /// Opens all files of a copy by the path of the first. Returns `None` if there is none.
    pub fn open(path: &Path, access: &WebAccess) -> Result<Option<Self>> {
        let Some(first) = SparseFile::open(path, true)? else { return Ok(None) };
        let damaged = || damaged(path);
        let origin = &first.origin;
        let place = match &origin.repository {
            Some(origin) => StorePlace::of_repository(origin.clone(), &access.endpoint),
            None => StoreAddress::parse(&origin.address).ok().map(StorePlace::Address),
        };
        let place = place.ok_or_else(damaged)?;
        let shards = origin.shards;
        if shards != place.shards() && shards != 1 {
            return Err(damaged());
        }
        // Only the holder of the first lock takes the others.
        let may_write = first.is_writer;
        let mut copy = Self { files: Vec::new(), name: place.address() };
        copy.add(first, place.clone());
        for number in 2..=shards {
            let path = sibling(path, number).ok_or_else(damaged)?;
            let file = SparseFile::open(&path, may_write)?.ok_or_else(damaged)?;
            copy.add(file, place.shard(number));
        }
        copy.files
            .iter()
            .try_fold(0u64, |sum, file| sum.checked_add(file.sparse.length))
            .ok_or_else(damaged)?;
        Ok(Some(copy))
    }

    fn add(&mut self, sparse: SparseFile, place: StorePlace) {
        let start = self.len();
        let (name, size) = (place.file_name().to_owned(), sparse.length);
        let remote = RemoteFile { name, size, blob: String::new() };
        self.files.push(CopiedFile { sparse, place, remote, start });
    }

    /// Returns the path of the first file.
    pub fn path(&self) -> &Path {
        // Default: a copy has at least one file.
        self.files.first().map_or(Path::new(""), |file| &file.sparse.path)
    }

    /// Returns true if all files are locked, so that they may be written.
    pub fn is_writer(&self) -> bool {
        self.files.iter().all(|file| file.sparse.is_writer)
    }

    /// Returns a reader of the remote files.
    pub fn ranges(&self, access: &WebAccess) -> Ranges {
        let Some(first) = self.files.first().filter(|_| !access.offline) else {
            return Ranges::offline(crate::client::Client::new(None, access.limits));
        };
        let source = |file: &CopiedFile| {
            let (address, version) = (file.place.address(), file.sparse.origin.version.clone());
            (file.remote.name.clone(), FileSource { address, version })
        };
        let files = self.files.iter().map(source).collect();
        Ranges::of_files(first.place.client(access), files)
    }

    /// Returns the number of the file with the byte at `offset`.
    pub fn file_of(&self, offset: u64) -> usize {
        self.files.partition_point(|file| file.start <= offset).saturating_sub(1)
    }

    /// Reads the set of arrived extents.
    pub fn arrived(&self, extents: &[Extent]) -> Result<ArrivedSet> {
        let first_from = |offset| extents.partition_point(|extent| extent.offset < offset);
        let files = self.files.iter().map(|file| {
            let range = first_from(file.start)..first_from(file.start + file.sparse.length);
            let arrived = file.sparse.arrived(range.len())?;
            Ok(ArrivedInFile { extents: range, arrived })
        });
        Ok(ArrivedSet { files: files.collect::<Result<_>>()? })
    }

    /// Writes bytes that are within one file.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.files.get(self.file_of(offset)).ok_or(io::ErrorKind::UnexpectedEof)?;
        file.sparse.write_at(offset - file.start, bytes)
    }

    /// Makes the written extents durable, then their bits. `arrived` is called while no other save writes bits.
    pub fn save(&self, mut arrived: impl FnMut() -> ArrivedSet) -> io::Result<()> {
        for (number, file) in self.files.iter().enumerate() {
            let bits = || arrived().files.swap_remove(number).arrived;
            file.sparse.save(bits)?;
        }
        Ok(())
    }

    /// Turns a complete copy into plain files, and returns the path of the first. The first is renamed last,
    /// because a store whose first file exists is taken as complete.
    pub fn finish(&self) -> Result<PathBuf> {
        let store = self.path().with_extension("");
        for file in self.files.iter().rev() {
            file.sparse.finish(&file.sparse.path.with_extension(""))?;
        }
        Ok(store)
    }

    /// Describes a failed request for bytes at `offset`.
    pub fn explain(&self, offset: u64, trouble: RequestError) -> HubError {
        match self.files.get(self.file_of(offset)) {
            Some(file) => file.place.explain(trouble),
            None => HubError::new(format!("{} has no byte {offset}", self.name)),
        }
    }

    /// Converts a failed request to the error of a read. A changed file is [`StoreError::Changed`] with its address.
    pub fn unread(&self, offset: u64, trouble: RequestError) -> io::Error {
        match (trouble, self.files.get(self.file_of(offset))) {
            (RequestError::Changed, Some(file)) => {
                io::Error::other(StoreError::Changed { file: file.place.address() })
            }
            (trouble, _) => io::Error::other(self.explain(offset, trouble)),
        }
    }
}

/// Returns the path of another file of a copy, numbered from 1, by the path of the first.
pub fn sibling(first: &Path, number: u32) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?.strip_suffix(ENDING)?;
    let name = ShardName::parse(name)?.sibling(number);
    Some(first.with_file_name(name + ENDING))
}

/// The bytes of the store; absent ones are zero.
impl Storage for CopyFiles {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        // Default: no files have no bytes.
        self.files.last().map_or(0, |file| file.start.saturating_add(file.sparse.length))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.len());
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut at, mut out) = (offset, out);
        for file in &self.files[self.file_of(offset)..] {
            let left = file.start + file.sparse.length - at;
            // Default: all of `out`, if the rest of the file exceeds the address space.
            let count = usize::try_from(left).unwrap_or(usize::MAX).min(out.len());
            let (now, later) = out.split_at_mut(count);
            if now.is_empty() {
                break;
            }
            file.sparse.read_at(at - file.start, now)?;
            (at, out) = (at + count as u64, later);
        }
        Ok(())
    }
}

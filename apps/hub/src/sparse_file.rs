//! A local file with some extents of a remote store, or of one of its shards.
//!
//! The bytes of the remote file are at their own offsets, and the local file is longer by a footer, so that
//! absent extents take no disk space where the file system has sparse files:
//!
//! | offset | contents |
//! |---|---|
//! | 0 | the remote file: header and index, and the extents that have arrived |
//! | L, the length of the remote file | one bit per extent in it, the first one in the lowest bit of the first byte |
//! | after it | the origin as JSON ([`CopyOrigin`]) |
//! | end - 24 | length of the bits, length of the JSON, L (`u64` each, little endian) |
//!
//! A bit is written after the bytes of its extent are durable, and is never cleared. After a crash, extents
//! without a bit are fetched again. Only the holder of the file's lock writes to it; others read what has
//! arrived.

use crate::error::{HubError, Result};
use crate::origin::Origin;
use nestling_formats::Invariant;
use nestling_formats::store::{Disk, DiskFile, OsDisk, Storage};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Ending of the names of these files.
pub const ENDING: &str = ".sparse";

/// Maximum length of the origin in bytes.
const ORIGIN_BYTES_MAX: u64 = 1 << 16;

/// Maximum length of the bits: a store of 2^27 extents.
const BITS_BYTES_MAX: u64 = 1 << 24;

const TRAILER_BYTES: u64 = 24;

/// Origin of a copy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct CopyOrigin {
    /// Address of the remote file.
    pub address: String,
    /// Entity tag of the remote file, or its date of modification.
    pub version: Option<String>,
    /// Length of header and index in bytes.
    pub head_bytes: u64,
    /// Number of files of the store.
    #[serde(default = "single")]
    pub shards: u32,
    /// Place of the file on the Hub. Its address then depends on the endpoint, and `address` is informative.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Origin>,
}

fn single() -> u32 {
    1
}

/// Header and index of a store, and what its copy must have room for.
#[derive(Clone, Copy, Debug)]
pub struct StoreHead<'a> {
    /// Bytes of header and index.
    pub bytes: &'a [u8],
    /// Length of the remote file in bytes.
    pub length: u64,
    /// Number of extents in the file.
    pub extents: usize,
}

/// An open copy.
pub struct SparseFile {
    pub path: PathBuf,
    pub origin: CopyOrigin,
    /// Length of the remote file in bytes.
    pub length: u64,
    /// True if this file is locked, so that it may be written.
    pub is_writer: bool,
    /// True once the file is a plain store, which has no bits. Locked while bits are written.
    is_finished: Mutex<bool>,
    file: Box<dyn DiskFile>,
    bits_bytes: u64,
}

/// Set of the extents that have arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrivedExtents {
    bits: Vec<u8>,
}

impl ArrivedExtents {
    #[cfg(test)]
    pub fn empty(extents: usize) -> Self {
        Self { bits: vec![0; extents.div_ceil(8)] }
    }

    pub fn contains(&self, extent: usize) -> bool {
        self.bits.get(extent / 8).is_some_and(|byte| byte >> (extent % 8) & 1 == 1)
    }

    /// Adds an extent. Numbers beyond the store are ignored.
    pub fn insert(&mut self, extent: usize) {
        if let Some(byte) = self.bits.get_mut(extent / 8) {
            *byte |= 1 << (extent % 8);
        }
    }
}

impl SparseFile {
    /// Returns the path of the sparse file that becomes the store at `store`.
    pub fn path_of(store: &Path) -> PathBuf {
        let mut name = store.as_os_str().to_owned();
        name.push(ENDING);
        name.into()
    }

    /// Creates a copy with header and index. Replaces an existing one.
    pub fn create(path: &Path, origin: &CopyOrigin, head: StoreHead<'_>) -> Result<()> {
        // Default: a bare name is in the current folder.
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| HubError::file("make", folder, error))?;
        let json = serde_json::to_vec(origin).invariant("texts can be written as JSON")?;
        let mut footer = vec![0; head.extents.div_ceil(8)];
        let bits_bytes = footer.len() as u64;
        footer.extend(&json);
        for number in [bits_bytes, json.len() as u64, head.length] {
            footer.extend(number.to_le_bytes());
        }
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".{}", std::process::id()));
        let new = PathBuf::from(new);
        let write = || {
            OsDisk.remove(&new)?;
            let file = OsDisk.open(&new)?;
            file.set_len(head.length + footer.len() as u64)?;
            file.write_at(0, head.bytes)?;
            file.write_at(head.length, &footer)?;
            file.sync()?;
            OsDisk.rename(&new, path)?;
            OsDisk.sync_folder_of(path)
        };
        write().map_err(|error| HubError::file("write", path, error))
    }

    /// Opens a copy. Returns `None` if there is none. Without `may_write`, the file is not locked.
    pub fn open(path: &Path, may_write: bool) -> Result<Option<Self>> {
        let failed = |error| HubError::file("read", path, error);
        if !path.try_exists().map_err(failed)? {
            return Ok(None);
        }
        let file = OsDisk.open(path).map_err(failed)?;
        let end = file.len().map_err(failed)?;
        let damaged = || damaged(path);
        let trailer_at = end.checked_sub(TRAILER_BYTES).ok_or_else(damaged)?;
        let mut trailer = [0; TRAILER_BYTES as usize];
        file.read_at(trailer_at, &mut trailer).map_err(failed)?;
        let mut numbers = trailer.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let mut number = || numbers.next().invariant("the trailer has three numbers");
        let (bits_bytes, json_bytes, length) = (number()?, number()?, number()?);
        let fits = bits_bytes <= BITS_BYTES_MAX && json_bytes <= ORIGIN_BYTES_MAX;
        let json_at = length.checked_add(bits_bytes).filter(|_| fits).ok_or_else(damaged)?;
        if json_at.checked_add(json_bytes) != Some(trailer_at) {
            return Err(damaged());
        }
        let mut json = vec![0; usize::try_from(json_bytes).map_err(|_| damaged())?];
        file.read_at(json_at, &mut json).map_err(failed)?;
        let origin: CopyOrigin = serde_json::from_slice(&json).map_err(|_| damaged())?;
        if origin.head_bytes > length {
            return Err(damaged());
        }
        let is_writer = may_write && file.lock().map_err(failed)?;
        let (path, is_finished) = (path.into(), Mutex::new(false));
        Ok(Some(Self { path, origin, length, is_writer, is_finished, file, bits_bytes }))
    }

    /// Reads the set of arrived extents. `extents` is the number of extents in the file.
    pub fn arrived(&self, extents: usize) -> Result<ArrivedExtents> {
        if self.bits_bytes != extents.div_ceil(8) as u64 {
            return Err(damaged(&self.path));
        }
        let mut bits = vec![0; extents.div_ceil(8)];
        let read = self.file.read_at(self.length, &mut bits);
        read.map_err(|error| HubError::file("read", &self.path, error))?;
        Ok(ArrivedExtents { bits })
    }

    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }

    fn finished(&self) -> MutexGuard<'_, bool> {
        self.is_finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the written extents durable, then their bits. `arrived` is called when no other save is under way,
    /// so that bits are never replaced by earlier ones.
    pub fn save(&self, arrived: impl FnOnce() -> ArrivedExtents) -> io::Result<()> {
        let is_finished = self.finished();
        if !self.is_writer || *is_finished {
            return Ok(());
        }
        let arrived = arrived();
        self.file.sync()?;
        self.file.write_at(self.length, &arrived.bits)?;
        self.file.sync()
    }

    /// Turns a complete copy into the plain file at `store`. Processes that have it open keep reading it.
    pub fn finish(&self, store: &Path) -> Result<()> {
        let failed = |error| HubError::file("write", &self.path, error);
        *self.finished() = true;
        self.file.set_len(self.length).map_err(failed)?;
        self.file.sync().map_err(failed)?;
        OsDisk.rename(&self.path, store).map_err(failed)?;
        OsDisk.sync_folder_of(store).map_err(failed)
    }
}

/// The bytes of the store; absent ones are zero.
impl Storage for SparseFile {
    fn name(&self) -> String {
        self.origin.address.clone()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.length);
        end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_at(offset, out)
    }
}

/// Returns the error of a copy that cannot be used.
pub fn damaged(path: &Path) -> HubError {
    HubError::new(format!("{} is damaged", path.display()))
        .advise("remove it with `nestling gc`, and it is fetched again")
}

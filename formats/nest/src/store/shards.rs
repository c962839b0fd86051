//! Stores split into several files.

use std::io;
use std::path::{Path, PathBuf};

use super::error::{StoreError, label};
use super::format::HEADER_BYTES;
use super::header::Header;
use super::index::Index;
use super::storage::{FilePart, FileStorage, Storage, check_range};

/// Returns the path of a shard, numbered from 0, of a store at `path`; `path` itself for a single file.
///
/// A store `model.nest` of three shards becomes `model-00001-of-00003.nest` and so on.
pub fn shard_path(path: &Path, shard: u32, shards: u32) -> PathBuf {
    if shards == 1 {
        return path.to_owned();
    }
    // Default: a path without a file name cannot be written to anyway.
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let number = u64::from(shard) + 1;
    path.with_file_name(format!("{stem}-{number:05}-of-{shards:05}.nest"))
}

/// Returns the path of another shard, given the path of the first.
fn sibling(first: &Path, shard: u32, shards: u32) -> Option<PathBuf> {
    let name = first.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-00001-of-{shards:05}.nest"))?;
    let number = u64::from(shard) + 1;
    Some(first.with_file_name(format!("{stem}-{number:05}-of-{shards:05}.nest")))
}

/// Consecutive shards as one range of bytes.
#[derive(Debug)]
pub(super) struct ShardedStorage {
    name: String,
    shards: Vec<FileStorage>,
}

impl ShardedStorage {
    /// Opens the shards after the first, up to the first missing or incomplete one.
    pub fn open(path: &Path, first: FileStorage, index: &Index) -> Result<Self, StoreError> {
        let count = u32::try_from(index.shards.len()).unwrap_or(u32::MAX);
        let mut complete = Some(first.len()) == index.shards.first().copied();
        let mut shards = vec![first];
        for (number, length) in (0u32..).zip(&index.shards).skip(1) {
            if !complete {
                break;
            }
            let fault = |file: &Path, reason: String| StoreError::Shard {
                file: label(file),
                shard: number + 1,
                shards: count,
                reason,
            };
            let path = sibling(path, number, count).ok_or_else(|| {
                fault(path, format!("a first shard is named *-00001-of-{count:05}.nest"))
            })?;
            let shard = match FileStorage::open(&path, 0, None) {
                Ok(shard) => shard,
                Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                    break;
                }
                Err(error) => return Err(error),
            };
            if shard.len() > *length {
                let reason = format!("it has {} bytes instead of {length}", shard.len());
                return Err(fault(&path, reason));
            }
            complete = shard.len() == *length;
            check_shard(&shard, index, number)?;
            shards.push(shard);
        }
        Ok(Self { name: label(path), shards })
    }
}

/// Compares a shard's header with the index.
fn check_shard(storage: &FileStorage, index: &Index, number: u32) -> Result<(), StoreError> {
    let mut bytes = [0; HEADER_BYTES];
    // Default: a length beyond the address space exceeds the header.
    let length = usize::try_from(storage.len()).unwrap_or(usize::MAX).min(HEADER_BYTES);
    let error = |source| StoreError::io(storage.name(), "read", 0, length, source);
    storage.read_at(0, &mut bytes[..length]).map_err(error)?;
    index.check_shard(number, &bytes[..length], &storage.name())
}

impl Index {
    /// Compares the start of a shard, numbered from 0, with this index. `bytes` begin with its header of 128 bytes, and
    /// `file` is its name for error messages.
    ///
    /// # Errors
    /// [`StoreError::Shard`] if the shard belongs to another store or place; other errors if `bytes` is not a header.
    pub fn check_shard(&self, number: u32, bytes: &[u8], file: &str) -> Result<(), StoreError> {
        let fault = |reason: String| StoreError::Shard {
            file: file.to_owned(),
            shard: number.saturating_add(1),
            // Default: unreachable, since the number of shards was read as `u32`.
            shards: u32::try_from(self.shards.len()).unwrap_or(u32::MAX),
            reason,
        };
        if bytes.len() < HEADER_BYTES {
            return Err(fault(format!("it has only {} bytes", bytes.len())));
        }
        let found = Header::decode(bytes, 0, file)?;
        if Some(&found) == shard_header(self, number).as_ref() {
            return Ok(());
        }
        Err(fault(match found.id == self.id {
            true => format!("its header says shard {} of {}", found.shard + 1, found.shards),
            false => format!("it belongs to store {}, not {}", found.id, self.id),
        }))
    }
}

/// Returns the header of a shard other than the first.
pub(super) fn shard_header(index: &Index, number: u32) -> Option<Header> {
    Some(Header {
        version: index.version(),
        alignment: index.alignment,
        shards: u32::try_from(index.shards.len()).ok()?,
        shard: number,
        id: index.id,
        index_length: 0,
        index_hash: [0; 16],
        store_length: index.length(),
        shard_length: *index.shards.get(usize::try_from(number).ok()?)?,
    })
}

impl Storage for ShardedStorage {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.shards.iter().map(Storage::len).sum()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.len(), offset, out.len())?;
        let (mut start, mut out) = (0u64, out);
        let mut at = offset;
        for shard in &self.shards {
            let end = start + shard.len();
            if at < end && !out.is_empty() {
                let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(out.len());
                let (now, later) = out.split_at_mut(count);
                shard.read_at(at - start, now)?;
                at += count as u64;
                out = later;
            }
            start = end;
        }
        Ok(())
    }

    fn check_unchanged(&self, offset: u64, length: u64) -> io::Result<()> {
        let (mut start, end) = (0u64, offset.saturating_add(length));
        for shard in &self.shards {
            let shard_end = start + shard.len();
            if start < end && offset < shard_end {
                shard.check_unchanged(0, shard.len())?;
            }
            start = shard_end;
        }
        Ok(())
    }

    fn files(&self) -> Vec<FilePart<'_>> {
        self.shards.iter().flat_map(Storage::files).collect()
    }
}

//! Checksums of GGUF files in place, recorded at their first read and stored across processes. GGUF files
//! contain no checksums, so damage is detected by comparison with the first read.
//!
//! There is one small record for each state of a GGUF file. It is named by the id of the derived store, which
//! depends on the file's path, length, times and header. A record is trusted only to detect changes.

use crate::error::{HubError, Result};
use nestling_formats::open_own_file;
use nestling_formats::store::Store;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

const MAGIC: [u8; 8] = *b"NESTFR01";

const ENDING: &str = "reads";

/// Size in bytes of the head: magic number, id and number of extents.
const HEAD_BYTES: usize = 8 + 16 + 8;

/// Size in bytes of an entry: number of the extent and its checksum.
const ENTRY_BYTES: usize = 8 + 16;

/// Size in bytes of the tail: checksum of the record itself.
const TAIL_BYTES: usize = 32;

/// Maximum number of records; the oldest ones are removed.
const FILES_MAX: usize = 64;

/// Folder of the records.
#[derive(Clone, Debug)]
pub struct FirstReads {
    folder: PathBuf,
}

impl FirstReads {
    /// Creates an instance for a folder, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// Returns the folder of the records.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of a store's record, which need not exist.
    pub fn path(&self, store: &Store) -> PathBuf {
        self.folder.join(format!("{}.{ENDING}", store.id()))
    }

    /// Loads the record of a derived store, so that its extents are compared with their first reads. Returns
    /// the number of known extents. A damaged record, or that of another store, is removed and counts as 0.
    pub fn recall(&self, store: &Store) -> usize {
        let known = self.read(store).map(|known| store.expect_checksums(&known).ok());
        // Default: 0 extents are known at the first use of a file.
        known.flatten().unwrap_or(0)
    }

    /// Saves the checksums that a derived store has read, merged with the existing record.
    ///
    /// # Errors
    /// Returns [`HubError::File`] if the record cannot be written.
    pub fn keep(&self, store: &Store) -> Result<()> {
        // Default: a store that has its own checksums needs no record.
        let Some(mut firsts) = store.first_checksums() else { return Ok(()) };
        let kept = self.read(store);
        for (first, kept) in firsts.iter_mut().zip(kept.iter().flatten()) {
            *first = first.or(*kept);
        }
        if kept.as_ref() == Some(&firsts) || firsts.iter().all(Option::is_none) {
            return Ok(());
        }
        let path = self.path(store);
        let failed = |error| HubError::file("write", &path, error);
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let written = File::create(&partial)
            .and_then(|mut file| file.write_all(&encode(store, &firsts)))
            .and_then(|()| std::fs::rename(&partial, &path));
        if written.is_err() {
            let _ = std::fs::remove_file(&partial);
        }
        written.map_err(failed)?;
        self.forget_oldest();
        Ok(())
    }

    /// Reads the record of a store. An invalid record is removed.
    fn read(&self, store: &Store) -> Option<Vec<Option<[u8; 16]>>> {
        let path = self.path(store);
        let count = store.index().extents().len();
        // Limits the read to the maximum size of a record.
        let limit = HEAD_BYTES + count.saturating_mul(ENTRY_BYTES) + TAIL_BYTES;
        let mut bytes = Vec::new();
        let file = open_own_file(&path, File::options().read(true)).ok()?;
        let is_read = file.take(limit as u64 + 1).read_to_end(&mut bytes).is_ok();
        let known = if is_read { decode(store, count, &bytes) } else { None };
        if known.is_none() {
            let _ = std::fs::remove_file(path);
        }
        known
    }

    /// Removes the oldest records if there are too many. Errors are ignored.
    fn forget_oldest(&self) {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut files: Vec<(SystemTime, PathBuf)> = entries
            .map(|entry| entry.path())
            .filter(|path| is_ours(path))
            .filter_map(|path| Some((path.metadata().ok()?.modified().ok()?, path)))
            .collect();
        files.sort();
        let surplus = files.len().saturating_sub(FILES_MAX);
        for (_, path) in files.drain(..surplus) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Returns true for records and their temporary files.
fn is_ours(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy());
    name.is_some_and(|name| name.ends_with(&format!(".{ENDING}")) || name.ends_with(".partial"))
}

fn encode(store: &Store, firsts: &[Option<[u8; 16]>]) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(store.id().0);
    bytes.extend((firsts.len() as u64).to_le_bytes());
    for (number, first) in firsts.iter().enumerate() {
        if let Some(first) = first {
            bytes.extend((number as u64).to_le_bytes());
            bytes.extend(first);
        }
    }
    let own = Sha256::digest(&bytes);
    bytes.extend(own);
    bytes
}

/// Returns checksums indexed by extent. Returns `None` if the bytes are not a valid record of this store.
fn decode(store: &Store, count: usize, bytes: &[u8]) -> Option<Vec<Option<[u8; 16]>>> {
    let (content, own) = bytes.split_at_checked(bytes.len().checked_sub(TAIL_BYTES)?)?;
    let (head, entries) = content.split_at_checked(HEAD_BYTES)?;
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    let mut expected = MAGIC.to_vec();
    expected.extend(store.id().0);
    expected.extend((count as u64).to_le_bytes());
    if !rest.is_empty() || head != expected || Sha256::digest(content)[..] != *own {
        return None;
    }
    let mut known = vec![None; count];
    for entry in entries {
        let (number, checksum) = entry.split_first_chunk::<8>()?;
        let number = usize::try_from(u64::from_le_bytes(*number)).ok()?;
        *known.get_mut(number)? = Some(<[u8; 16]>::try_from(checksum).ok()?);
    }
    Some(known)
}

#[cfg(test)]
mod tests;

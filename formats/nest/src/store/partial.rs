//! The state of an unfinished store: temporary files, journal, and results so far.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::disk::DiskFile;
use super::error::StoreError;
use super::format::PLANES;
use super::journal::Journal;
use super::shards::shard_path;
use crate::nested::NestedCodec;

pub(super) struct ShardFile {
    pub file: Box<dyn DiskFile>,
    pub name: String,
    pub temporary: PathBuf,
    pub final_path: PathBuf,
    /// Byte offset of the shard in the store.
    pub start: u64,
}

impl ShardFile {
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let written = self.file.write_at(at, bytes);
        let offset = self.start + at;
        written.map_err(|error| StoreError::io(&self.name, "write", offset, bytes.len(), error))
    }

    pub fn sync(&self) -> Result<(), StoreError> {
        self.file.sync().map_err(|error| StoreError::io(&self.name, "sync", self.start, 0, error))
    }
}

/// Results so far for the parts that the plan left open.
pub(super) struct PartialResults {
    pub journal: Journal,
    /// Hash of each extent, `None` until it is written.
    pub hashes: Vec<Option<[u8; 16]>>,
    pub codecs: Vec<Option<Arc<NestedCodec>>>,
    pub error_drops: Vec<Option<f32>>,
    pub frequencies: Vec<Option<f32>>,
    pub weight_squares: Vec<Option<f32>>,
    pub notes: Vec<Option<Vec<u8>>>,
    /// Error drops by matrix, numbered across all groups.
    pub matrix_drops: Vec<Option<[Option<f32>; PLANES]>>,
}

pub(super) fn journal_path(destination: &Path) -> PathBuf {
    with_suffix(destination, ".journal")
}

/// Returns the temporary and the final path of each shard.
pub(super) fn shard_paths(destination: &Path, shards: usize) -> Vec<(PathBuf, PathBuf)> {
    let count = u32::try_from(shards).unwrap_or(u32::MAX);
    let paths = (0..count).map(|number| shard_path(destination, number, count));
    paths.map(|path| (with_suffix(&path, ".partial"), path)).collect()
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

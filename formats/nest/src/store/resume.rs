//! Opening of the files of a store for writing, and recovery of the results of an earlier attempt.

use crate::Invariant;
use crate::memory::{OutOfMemory, try_filled, try_reserve};
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::bytes::align_up;
use super::disk::{Disk, DiskFile};
use super::error::{StoreError, label};
use super::format::HEADER_BYTES;
use super::hash::Hasher;
use super::header::Header;
use super::index::{Extent, Index};
use super::journal::{Journal, ReadJournal, Record};
use super::partial::{PartialResults, ShardFile, journal_path, shard_paths};
use crate::nested::NestedCodec;

/// Maximum bytes per read.
const CHUNK_BYTES: usize = 1 << 20;

/// Opens or creates the temporary files and the journal.
pub(super) fn open(
    disk: &dyn Disk,
    destination: &Path,
    index: &Index,
    resume: bool,
) -> Result<(Vec<ShardFile>, PartialResults), StoreError> {
    let path = journal_path(destination);
    let journal_error = |error| StoreError::io(label(&path), "open", 0, 0, error);
    let file = disk.open(&path).map_err(journal_error)?;
    if !file.lock().map_err(journal_error)? {
        return Err(StoreError::Busy { file: label(&path) });
    }
    let read = if resume {
        Journal::read(file, index.id).map_err(journal_error)?
    } else {
        ReadJournal::Other(file)
    };
    let resumed = matches!(read, ReadJournal::Ours(..));
    let mut files = Vec::new();
    let mut start = 0;
    let paths = shard_paths(destination, index.shards.len());
    if resumed {
        for (temporary, final_path) in &paths {
            take_back(disk, temporary, final_path, index)
                .map_err(|error| StoreError::io(label(temporary), "create", 0, 0, error))?;
        }
    }
    // Sync before anything is written. A shard renamed back to its temporary name, in this attempt or an
    // earlier failed one, could otherwise reappear under its final name after a power failure, with partial
    // contents.
    disk.sync_folder_of(destination)
        .map_err(|error| StoreError::io(label(destination), "create", 0, 0, error))?;
    for ((temporary, final_path), length) in paths.into_iter().zip(&index.shards) {
        let name = label(&temporary);
        let error = |error| StoreError::io(&name, "create", start, 0, error);
        let file = disk.open(&temporary).map_err(error)?;
        if !resumed {
            // Data of another store must not be mistaken for this one's.
            file.set_len(0).map_err(error)?;
        }
        file.set_len(*length).map_err(error)?;
        files.push(ShardFile { file, name, temporary, final_path, start });
        start += length;
    }
    // Created last: the journal of a store implies that its files exist.
    let (journal, records) = match read {
        ReadJournal::Ours(journal, records) => (journal, records),
        ReadJournal::Other(file) => {
            (Journal::begin(file, index.id).map_err(journal_error)?, Vec::new())
        }
    };
    let state = replay(index, &files, journal, records)?;
    Ok((files, state))
}

/// Renames a shard from its final name back to the temporary one. This happens if the earlier attempt was
/// interrupted between two renames.
fn take_back(
    disk: &dyn Disk,
    temporary: &Path,
    final_path: &Path,
    index: &Index,
) -> io::Result<()> {
    if disk.exists(temporary)? || !disk.exists(final_path)? {
        return Ok(());
    }
    let mut bytes = [0; HEADER_BYTES];
    match disk.open(final_path)?.read_at(0, &mut bytes) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        result => result?,
    }
    match Header::decode(&bytes, 0, "") {
        Ok(header) if header.id == index.id => disk.rename(final_path, temporary),
        _ => Ok(()),
    }
}

/// Applies the records of the journal that can be verified.
fn replay(
    index: &Index,
    files: &[ShardFile],
    journal: Journal,
    records: Vec<Record>,
) -> Result<PartialResults, StoreError> {
    let mut state = PartialResults {
        journal,
        hashes: slots(index.extents.len())?,
        codecs: slots(index.codecs.len())?,
        error_drops: slots(index.extents.len())?,
        frequencies: slots(index.groups.len())?,
        weight_squares: slots(index.groups.len())?,
        notes: slots(index.groups.len())?,
        matrix_drops: slots(index.groups.iter().map(|group| group.matrices.len()).sum())?,
    };
    for record in records {
        match record {
            Record::Extent { extent, hash } => set(&mut state.hashes, extent, hash),
            Record::ErrorDrop { extent, value } => set(&mut state.error_drops, extent, value),
            Record::Frequency { group, value } => set(&mut state.frequencies, group, value),
            Record::WeightSquare { group, value } => set(&mut state.weight_squares, group, value),
            Record::Note { group, bytes } => set(&mut state.notes, group, bytes),
            Record::MatrixDrops { matrix, drops } => set(&mut state.matrix_drops, matrix, drops),
            Record::Codec { codec, bytes } => {
                if let Ok(found) = NestedCodec::from_bytes(&bytes) {
                    set(&mut state.codecs, codec, Arc::new(found));
                }
            }
        }
    }
    // Default: without extents nothing is read.
    let longest = index.extents.iter().map(|extent| extent.length).max().unwrap_or(0);
    let most = usize::try_from(longest).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    let mut chunk = Vec::new();
    for (extent, hash) in index.extents.iter().zip(&mut state.hashes) {
        let Some(expected) = *hash else { continue };
        let more = most.saturating_sub(chunk.len());
        try_reserve(&mut chunk, "a part of a store that is verified", more)?;
        chunk.resize(most, 0);
        if !rewrite(index, files, extent, expected, &mut chunk)? {
            *hash = None;
        }
    }
    Ok(state)
}

fn slots<T: Clone>(count: usize) -> Result<Vec<Option<T>>, OutOfMemory> {
    try_filled("what the journal of a store says", None, count)
}

fn set<T>(slots: &mut [Option<T>], number: u32, value: T) {
    if let Some(slot) = usize::try_from(number).ok().and_then(|number| slots.get_mut(number)) {
        *slot = Some(value);
    }
}

/// Returns whether an extent has the hash in the journal and zero padding. The bytes are written again: after
/// a failed sync, the system may hold them only in memory and treat them as written, so that later syncs
/// would skip them.
fn rewrite(
    index: &Index,
    files: &[ShardFile],
    extent: &Extent,
    expected: [u8; 16],
    chunk: &mut [u8],
) -> Result<bool, StoreError> {
    let Some(shard) = files.iter().rev().find(|file| file.start <= extent.offset) else {
        return Ok(false);
    };
    let seed = index.seed(extent).invariant("every extent belongs to a group of its index")?;
    let mut hasher = Hasher::new(seed);
    let mut padding_is_zero = true;
    let mut at = extent.offset;
    let end = extent.offset + extent.length;
    let padded = align_up(end, index.alignment).unwrap_or(end);
    while at < padded {
        let stop = if at < end { end } else { padded };
        let count = usize::try_from(stop - at).unwrap_or(usize::MAX).min(chunk.len());
        let bytes = &mut chunk[..count];
        read(&*shard.file, at - shard.start, bytes)
            .map_err(|error| StoreError::io(&shard.name, "read", at, count, error))?;
        shard.write(at - shard.start, bytes)?;
        if at < end {
            hasher.update(bytes);
        } else {
            padding_is_zero &= bytes.iter().all(|byte| *byte == 0);
        }
        at += count as u64;
    }
    Ok(padding_is_zero && hasher.finish() == expected)
}

fn read(file: &dyn DiskFile, at: u64, out: &mut [u8]) -> io::Result<()> {
    file.read_at(at, out)
}

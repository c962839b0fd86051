//! Blocks of a file that have arrived, in files that outlive the tab.

use std::ops::Range;

use crate::ranges::{RangeError, Version};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 << 10;

/// First bytes of a map file.
const SIGNATURE: &[u8; 8] = b"nestmap1";

/// Maximum bytes of an entity tag that is stored.
const ETAG_BYTES_MAX: usize = 512;

/// Byte offset of the block flags in a map file: signature, length, length of the tag, tag.
const FLAGS_AT: u64 = 8 + 8 + 8 + ETAG_BYTES_MAX as u64;

/// Value of the flag of a block that has arrived.
const ARRIVED: u8 = 1;

/// A file that is read and written at offsets.
pub trait BlockFile: Send {
    /// Returns the length in bytes.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    fn len(&self) -> Result<u64, RangeError>;

    /// Returns whether the file has no bytes.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    fn is_empty(&self) -> Result<bool, RangeError> {
        Ok(self.len()? == 0)
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`], also if the file is shorter.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RangeError>;

    /// Writes bytes at `offset`, and extends the file if necessary.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`], for example if the browser's quota is exhausted.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RangeError>;

    /// Removes all bytes.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    fn clear(&mut self) -> Result<(), RangeError>;
}

/// A block file in memory, for browsers and windows without storage.
#[derive(Debug, Default)]
pub struct MemoryFile {
    bytes: Vec<u8>,
}

impl BlockFile for MemoryFile {
    fn len(&self) -> Result<u64, RangeError> {
        Ok(self.bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), RangeError> {
        let range = place(offset, out.len())?;
        let bytes = self.bytes.get(range).ok_or_else(|| failed("read past the end"))?;
        out.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<(), RangeError> {
        let range = place(offset, bytes.len())?;
        if range.end > self.bytes.len() {
            let missing = range.end - self.bytes.len();
            self.bytes.try_reserve(missing).map_err(|_| failed("out of memory"))?;
            self.bytes.resize(range.end, 0);
        }
        self.bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn clear(&mut self) -> Result<(), RangeError> {
        self.bytes = Vec::new();
        Ok(())
    }
}

fn failed(reason: &str) -> RangeError {
    RangeError::Storage { reason: reason.to_owned() }
}

fn place(offset: u64, length: usize) -> Result<Range<usize>, RangeError> {
    let start = usize::try_from(offset).map_err(|_| failed("the offset exceeds the memory"))?;
    let end = start.checked_add(length).ok_or_else(|| failed("the offset exceeds the memory"))?;
    Ok(start..end)
}

/// Blocks of one version of a file. A block is marked in the map after its bytes are written.
pub struct Blocks {
    data: Box<dyn BlockFile>,
    map: Box<dyn BlockFile>,
    version: Option<Version>,
    arrived: Vec<bool>,
}

impl Blocks {
    /// Opens the blocks of earlier visits. An unreadable map counts as empty.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    pub fn open(data: Box<dyn BlockFile>, map: Box<dyn BlockFile>) -> Result<Self, RangeError> {
        let mut blocks = Self { data, map, version: None, arrived: Vec::new() };
        if let Some(version) = blocks.read_version()? {
            let mut flags = vec![0; block_count(version.length)];
            blocks.map.read_at(FLAGS_AT, &mut flags)?;
            blocks.arrived = flags.into_iter().map(|flag| flag == ARRIVED).collect();
            // A block beyond the data's end was marked, but its bytes are gone.
            let whole = block_place(blocks.data.len()? / BLOCK_BYTES);
            let is_complete = blocks.data.len()? == version.length;
            blocks.arrived.iter_mut().skip(whole).for_each(|arrived| *arrived &= is_complete);
            blocks.version = Some(version);
        }
        Ok(blocks)
    }

    /// Returns the version in the map; `None` if the map is new or was cut.
    fn read_version(&self) -> Result<Option<Version>, RangeError> {
        let available = self.map.len()?;
        if available < FLAGS_AT {
            return Ok(None);
        }
        let (mut signature, mut length, mut tag_length) = ([0; 8], [0; 8], [0; 8]);
        self.map.read_at(0, &mut signature)?;
        self.map.read_at(8, &mut length)?;
        self.map.read_at(16, &mut tag_length)?;
        let (length, tag_length) = (u64::from_le_bytes(length), u64::from_le_bytes(tag_length));
        let flags = length.div_ceil(BLOCK_BYTES);
        let Some(tag_length) = usize::try_from(tag_length).ok().filter(|n| *n <= ETAG_BYTES_MAX)
        else {
            // Default: a map with an impossible tag counts as new.
            return Ok(None);
        };
        if &signature != SIGNATURE || available - FLAGS_AT != flags {
            return Ok(None);
        }
        let mut tag = vec![0; tag_length];
        self.map.read_at(24, &mut tag)?;
        Ok(String::from_utf8(tag).ok().map(|etag| Version { length, etag }))
    }

    /// Returns the version of the file whose blocks are stored.
    pub fn version(&self) -> Option<&Version> {
        self.version.as_ref()
    }

    /// Removes all blocks, and starts with another version.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`], also if the version's tag is too long.
    pub fn start(&mut self, version: Version) -> Result<(), RangeError> {
        let tag = version.etag.as_bytes();
        if tag.len() > ETAG_BYTES_MAX {
            return Err(failed("the entity tag is too long"));
        }
        self.version = None;
        self.data.clear()?;
        self.map.clear()?;
        let count = block_count(version.length);
        let mut head = SIGNATURE.to_vec();
        head.extend(version.length.to_le_bytes());
        head.extend((tag.len() as u64).to_le_bytes());
        head.extend(tag);
        head.resize(block_place(FLAGS_AT) + count, 0);
        self.map.write_at(0, &head)?;
        self.arrived = vec![false; count];
        self.version = Some(version);
        Ok(())
    }

    /// Returns the first missing blocks that overlap `range`, as bytes of the file, at most `bytes_max` of them.
    pub fn first_missing(&self, range: &Range<u64>, bytes_max: u64) -> Option<Range<u64>> {
        let length = self.version.as_ref()?.length;
        let last = range.end.min(length).div_ceil(BLOCK_BYTES);
        let is_missing = |block: &u64| !self.has(*block);
        let first = (range.start / BLOCK_BYTES..last).find(is_missing)?;
        let blocks_max = (bytes_max / BLOCK_BYTES).max(1);
        let count = (first..last.min(first + blocks_max)).take_while(is_missing).count() as u64;
        Some(first * BLOCK_BYTES..((first + count) * BLOCK_BYTES).min(length))
    }

    fn has(&self, block: u64) -> bool {
        let block = usize::try_from(block).ok();
        // Default: blocks beyond the file's end are missing.
        block.and_then(|block| self.arrived.get(block)).copied().unwrap_or(false)
    }

    /// Stores the whole blocks among bytes of the file at `start`.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    pub fn write(&mut self, start: u64, bytes: &[u8]) -> Result<(), RangeError> {
        // Default: without a version there are no blocks.
        let length = self.version.as_ref().map_or(0, |version| version.length);
        self.data.write_at(start, bytes)?;
        let end = start + bytes.len() as u64;
        let first = start.div_ceil(BLOCK_BYTES);
        let last = if end == length { end.div_ceil(BLOCK_BYTES) } else { end / BLOCK_BYTES };
        self.mark(first..last.max(first), true)
    }

    /// Marks the blocks that overlap `range` as missing.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    pub fn forget(&mut self, range: &Range<u64>) -> Result<(), RangeError> {
        self.mark(range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES), false)
    }

    fn mark(&mut self, blocks: Range<u64>, arrived: bool) -> Result<(), RangeError> {
        let range = block_place(blocks.start)..block_place(blocks.end).min(self.arrived.len());
        if range.is_empty() {
            return Ok(());
        }
        let flags = vec![if arrived { ARRIVED } else { 0 }; range.len()];
        self.map.write_at(FLAGS_AT + blocks.start, &flags)?;
        self.arrived[range].fill(arrived);
        Ok(())
    }

    /// Fills `out` with stored bytes.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), RangeError> {
        self.data.read_at(offset, out)
    }

    /// Returns the bytes of all stored blocks.
    pub fn stored_bytes(&self) -> u64 {
        // Default: without a version there are no blocks.
        let length = self.version.as_ref().map_or(0, |version| version.length);
        let block = |number: usize| (length - number as u64 * BLOCK_BYTES).min(BLOCK_BYTES);
        self.arrived
            .iter()
            .enumerate()
            .filter(|(_, arrived)| **arrived)
            .map(|(n, _)| block(n))
            .sum()
    }
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks").field("version", &self.version).finish_non_exhaustive()
    }
}

fn block_count(length: u64) -> usize {
    block_place(length.div_ceil(BLOCK_BYTES))
}

/// Converts a number of blocks, which is limited by a file's length, to an index.
fn block_place(number: u64) -> usize {
    // Default: an index that no memory holds ends every range.
    usize::try_from(number).unwrap_or(usize::MAX)
}

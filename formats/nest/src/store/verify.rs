//! Verification of all bytes of a store.

use crate::Invariant;
use crate::memory::try_zeroed;
use std::io;
use std::ops::ControlFlow;

use super::error::StoreError;
use super::format::HEADER_BYTES;
use super::hash::Hasher;
use super::header::Header;
use super::index::Extent;
use super::read::Store;
use super::shards::shard_header;

/// Maximum bytes per read.
const CHUNK_BYTES: usize = 1 << 20;

/// Progress of a verification.
#[derive(Clone, Copy, Debug)]
pub struct VerifyProgress {
    /// Bytes checked so far.
    pub done_bytes: u64,
    /// Total bytes to check.
    pub total_bytes: u64,
}

/// Result of a verification.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Number of checked extents.
    pub extents: usize,
    /// Number of checked bytes, including header, index and padding.
    pub bytes: u64,
    /// Number of unchecked bytes after the last complete section of a partial store.
    pub unchecked_bytes: u64,
    /// All damage found, in file order.
    pub damage: Vec<StoreError>,
}

impl Store {
    /// Reads all present extents and the padding between them, and lists all damage.
    ///
    /// Header and index were checked when the store was opened. Extents of a derived store are computed once;
    /// sources that cannot be read count as damage, too.
    ///
    /// # Errors
    /// [`StoreError::Io`] and [`StoreError::Changed`] abort the verification; [`StoreError::Cancelled`] if
    /// `progress` breaks. Damage is reported in the result, not as an error.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        self.verify_after(0, progress)
    }

    /// Verifies only the sections after the first `sections`, for example those added to a store; otherwise
    /// as [`Self::verify`].
    ///
    /// # Errors
    /// The errors of [`Self::verify`].
    pub fn verify_after(
        &self,
        sections: usize,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        let mut report = VerifyReport::default();
        let mut chunk = try_zeroed("a part of a store that is verified", self.chunk_bytes())?;
        let before = sections.checked_sub(1).and_then(|last| self.index.sections.get(last));
        let skipped = before.map_or(0, |section| section.end);
        let start = match before {
            Some(section) => section.end,
            None => {
                self.header.data_start().invariant("the header of an open store was checked")?
            }
        };
        let present = self.index.extents.iter().filter(|extent| self.is_present(extent));
        let present = present.filter(|extent| extent.offset >= start);
        let total_bytes = self.present_bytes();
        let mut at = start;
        for extent in present {
            // The only gap between extents is the header of another shard.
            if extent.offset > at {
                self.verify_shard_header(at, &mut report)?;
            }
            let end = self.verify_extent(extent, &mut chunk, &mut report)?;
            report.extents += 1;
            at = end;
            if progress(VerifyProgress { done_bytes: at, total_bytes }).is_break() {
                return Err(StoreError::Cancelled { file: self.name.clone() });
            }
        }
        report.bytes = at - skipped;
        report.unchecked_bytes = self.storage.len() - at;
        Ok(report)
    }

    /// Returns the size of the read buffer: at most the longest extent.
    fn chunk_bytes(&self) -> usize {
        // Default: without extents nothing is read.
        let longest = self.index.extents.iter().map(|extent| extent.length).max().unwrap_or(0);
        usize::try_from(longest).unwrap_or(usize::MAX).min(CHUNK_BYTES)
    }

    /// Returns the length in bytes of the complete sections.
    fn present_bytes(&self) -> u64 {
        let last = self.sections_present().checked_sub(1);
        last.and_then(|last| self.index.sections.get(last)).map_or(0, |section| section.end)
    }

    /// Checks one extent and its padding; returns the end of the padding.
    fn verify_extent(
        &self,
        extent: &Extent,
        chunk: &mut [u8],
        report: &mut VerifyReport,
    ) -> Result<u64, StoreError> {
        if self.is_derived() {
            return self.verify_derived(extent, report);
        }
        let seed = self.index.seed(extent);
        let mut hasher =
            Hasher::new(seed.invariant("every extent belongs to a group of its index")?);
        let (mut at, end) = (extent.offset, extent.offset + extent.length);
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(usize::MAX).min(chunk.len());
            let bytes = &mut chunk[..count];
            self.read_bytes(at, bytes)?;
            hasher.update(bytes);
            at += count as u64;
        }
        if hasher.finish() != extent.hash {
            report.damage.push(self.damaged(extent));
        }
        let padded = end.next_multiple_of(self.index.alignment);
        self.verify_zeros(end, padded, report)?;
        Ok(padded)
    }

    /// Computes one extent completely and compares it with earlier reads; returns the end of its padding.
    fn verify_derived(
        &self,
        extent: &Extent,
        report: &mut VerifyReport,
    ) -> Result<u64, StoreError> {
        match self.read_extent_vec(extent) {
            Ok(_) => {}
            Err(error @ StoreError::Differs { .. }) => report.damage.push(error),
            Err(StoreError::Io { file, action, offset, source })
                if source.kind() == io::ErrorKind::InvalidData =>
            {
                report.damage.push(StoreError::Io { file, action, offset, source });
            }
            Err(error) => return Err(error),
        }
        Ok((extent.offset + extent.length).next_multiple_of(self.index.alignment))
    }

    fn verify_zeros(
        &self,
        start: u64,
        end: u64,
        report: &mut VerifyReport,
    ) -> Result<(), StoreError> {
        // Less than the alignment, which is at most 16 MiB.
        let count = usize::try_from(end - start).invariant("an alignment fits in memory")?;
        let mut bytes = try_zeroed("padding of a store", count)?;
        self.read_bytes(start, &mut bytes)?;
        if let Some(at) = bytes.iter().position(|byte| *byte != 0) {
            let offset = start + at as u64;
            report.damage.push(StoreError::Padding { file: self.name.clone(), offset });
        }
        Ok(())
    }

    /// Checks the header of a later shard at `start`, and its padding.
    fn verify_shard_header(&self, start: u64, report: &mut VerifyReport) -> Result<(), StoreError> {
        let mut bytes = [0; HEADER_BYTES];
        self.read_bytes(start, &mut bytes)?;
        let mut shard_start = 0;
        let expected = (0u32..).zip(&self.index.shards).find_map(|(number, length)| {
            let found = (shard_start == start).then(|| shard_header(&self.index, number));
            shard_start += length;
            found.flatten()
        });
        let length = HEADER_BYTES as u64;
        if Header::decode(&bytes, start, &self.name).ok() != expected {
            let (file, what) = (self.name.clone(), "shard header".into());
            report.damage.push(StoreError::Damaged { file, what, offset: start, length });
        }
        self.verify_zeros(start + length, start + self.index.alignment, report)
    }
}

//! Checking every byte of a store.

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

/// Most bytes that are read at once.
const CHUNK_BYTES: usize = 1 << 20;

/// How far a check has come.
#[derive(Clone, Copy, Debug)]
pub struct VerifyProgress {
    /// Bytes checked.
    pub done_bytes: u64,
    /// Bytes to check.
    pub total_bytes: u64,
}

/// What a check found.
#[derive(Debug, Default)]
pub struct VerifyReport {
    /// Extents that were checked.
    pub extents: usize,
    /// Bytes that were checked, with header, index and padding.
    pub bytes: u64,
    /// Bytes after the last complete section of a partial store; they were not checked.
    pub unchecked_bytes: u64,
    /// Everything that is not as it was written, in file order.
    pub damage: Vec<StoreError>,
}

impl Store {
    /// Reads every present extent and the padding between them, and lists all damage.
    ///
    /// The header and the index were checked when the store was opened. Of a derived store every extent
    /// is made once: what it cannot be made of counts as damage, too.
    ///
    /// # Errors
    /// [`StoreError::Io`] and [`StoreError::Changed`] end the check; [`StoreError::Cancelled`] if
    /// `progress` breaks. Damage is not an error but in the report.
    pub fn verify(
        &self,
        progress: &mut dyn FnMut(VerifyProgress) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        self.verify_after(0, progress)
    }

    /// As [`Self::verify`], but for the sections after the first `sections`, such as those that
    /// were added to a store.
    ///
    /// # Errors
    /// As [`Self::verify`].
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
            // The only gap between extents is another shard's header.
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

    /// Bytes that are read at once: no more than the longest extent.
    fn chunk_bytes(&self) -> usize {
        // Default: without extents nothing is read.
        let longest = self.index.extents.iter().map(|extent| extent.length).max().unwrap_or(0);
        usize::try_from(longest).unwrap_or(usize::MAX).min(CHUNK_BYTES)
    }

    /// Bytes of the complete sections.
    fn present_bytes(&self) -> u64 {
        let last = self.sections_present().checked_sub(1);
        last.and_then(|last| self.index.sections.get(last)).map_or(0, |section| section.end)
    }

    /// Checks one extent and the zeros after it; returns where those end.
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

    /// Makes one extent, all at once, and compares it with what it was before; returns where the zeros
    /// after it end.
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

    /// Checks the header at `start` of a shard after the first, and the zeros after it.
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

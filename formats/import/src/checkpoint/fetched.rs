//! Blocks of matrices that are read from a file before they are transcoded.

use std::io;

use super::Checkpoint;
use super::slices::MatrixPlace;
use crate::ImportError;
use crate::read_at::RUN_BLOCK;
use crate::weight_files::read_error;

/// A run of consecutive bytes in a weight file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRun {
    /// Index of the file, as in [`super::TensorInfo::file`].
    file: usize,
    /// Byte offset in the file.
    offset: u64,
    /// Length in bytes.
    length: usize,
}

impl SourceRun {
    /// Returns the bytes of a buffer before the run, so that a direct read starts at a whole block.
    fn head(&self) -> usize {
        (self.offset % RUN_BLOCK as u64) as usize
    }

    /// Returns the buffer size in bytes for the run, a multiple of 4,096. Returns `None` on overflow.
    pub fn buffer_bytes(&self) -> Option<usize> {
        self.head().checked_add(self.length)?.checked_next_multiple_of(RUN_BLOCK)
    }
}

/// Runs whose bytes are in a buffer, one after another, each in [`SourceRun::buffer_bytes`] bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct FetchedRuns<'a> {
    runs: &'a [SourceRun],
    buffer: &'a [u8],
}

impl<'a> FetchedRuns<'a> {
    /// Names the runs in a buffer that [`Checkpoint::fetch_runs`] has filled.
    pub fn new(runs: &'a [SourceRun], buffer: &'a [u8]) -> Self {
        Self { runs, buffer }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns `length` bytes at `offset` of a file, or `None` if no run has all of them.
    pub(super) fn find(&self, file: usize, offset: u64, length: usize) -> Option<&'a [u8]> {
        let mut start = 0usize;
        for run in self.runs {
            let inside = offset.checked_sub(run.offset).and_then(|inside| inside.try_into().ok());
            let inside = inside.filter(|inside: &usize| {
                run.file == file && inside.checked_add(length).is_some_and(|end| end <= run.length)
            });
            if let Some(inside) = inside {
                let from = start + run.head() + inside;
                return self.buffer.get(from..from + length);
            }
            start = start.checked_add(run.buffer_bytes()?)?;
        }
        None
    }
}

impl Checkpoint {
    /// Returns the runs of a file that hold a matrix of blocks, one for each tensor. Returns `None` if rows of
    /// the matrix are not adjacent in the file, or if direct reads are not enabled: through the page cache,
    /// short reads into a core's cache are faster.
    pub fn source_runs(&self, place: &MatrixPlace<'_>) -> Option<Vec<SourceRun>> {
        let kind = place.blocks()?.kind;
        let of_part = |part: &super::slices::RowSlice<'_>| {
            let passes = self.file_of(part.tensor).is_ok_and(|file| file.passes_page_cache());
            if !passes || part.taken[0] > part.slice.rows.length {
                return None;
            }
            let first = part.first_element(part.slice.rows.place(0)) / kind.elements() as u64;
            let offset = part.tensor.offset.checked_add(first.checked_mul(kind.bytes() as u64)?)?;
            let of_row = part.source[1] / kind.elements() * kind.bytes();
            let length = part.taken[0].checked_mul(of_row)?;
            Some(SourceRun { file: part.tensor.file, offset, length })
        };
        place.parts.iter().map(of_part).collect()
    }

    /// Reads runs into a buffer, one after another. Direct reads require a buffer that is aligned to 4,096
    /// bytes; into other buffers, the bytes are read through the page cache.
    ///
    /// # Errors
    /// [`ImportError::Io`], also for a buffer that is too short, or [`ImportError::Changed`].
    pub fn fetch_runs(&self, runs: &[SourceRun], buffer: &mut [u8]) -> Result<(), ImportError> {
        let mut rest = buffer;
        for run in runs {
            let file = self.file_at(run.file)?;
            let split = run.buffer_bytes().and_then(|bytes| rest.split_at_mut_checked(bytes));
            let (out, later) = split.ok_or_else(|| {
                read_error(
                    file,
                    io::Error::new(io::ErrorKind::InvalidInput, "the buffer is too short"),
                )
            })?;
            file.read_blocks(run.offset, run.length, out)
                .map_err(|source| read_error(file, source))?;
            rest = later;
        }
        Ok(())
    }
}

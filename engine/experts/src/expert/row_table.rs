//! The rows of an embedding in its store, and those that a step wants.

use std::io::ErrorKind;

use nestling_formats::Level;
use nestling_formats::store::{RowError, RowScratch, StoreError, StoredRows};

use nestling_core::error::EngineError;

/// How often a row is tried again after an interruption.
const RETRIES_MAX: usize = 64;

/// Rows of a step; keeps its memory.
#[derive(Debug, Default)]
pub struct EmbeddedRows {
    /// `[T, hidden_size]`.
    pub values: Vec<f32>,
    pub(super) wanted: Vec<WantedRow>,
    pub(super) scratch: RowScratch,
}

/// A row, and the prefix of its codes.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRow {
    pub row: u32,
    pub prefix: Level,
}

/// The rows themselves.
#[derive(Debug)]
pub(super) struct RowTable {
    pub rows: StoredRows,
}

impl RowTable {
    /// Puts a row into `out`, `[hidden_size]`; what was interrupted is tried again.
    pub fn read(
        &self,
        wanted: WantedRow,
        scratch: &mut RowScratch,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        let mut retries = 0;
        loop {
            match self.rows.read(wanted.prefix, wanted.row as usize, scratch, out) {
                Err(RowError::Store(StoreError::Io { source, .. }))
                    if source.kind() == ErrorKind::Interrupted && retries < RETRIES_MAX =>
                {
                    retries += 1;
                }
                read => return read.map_err(failed),
            }
        }
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.rows.cols()
    }

    /// What is said of a row that takes too long.
    #[cfg(not(target_family = "wasm"))]
    pub fn stalled(&self, wanted: Option<&WantedRow>, seconds: f64) -> EngineError {
        let (file, offset, length) =
            self.rows.place(wanted.map_or(0, |wanted| wanted.row as usize));
        EngineError::ReadStalled { file, offset, length, seconds }
    }
}

pub(super) fn failed(error: RowError) -> EngineError {
    match error {
        RowError::Nested(error) => error.into(),
        RowError::Store(error) => error.into(),
        _ => EngineError::mismatch("a row of the embedding", "readable", error),
    }
}

//! Rows of an embedding in a store, and the rows requested by a step.

use std::io::ErrorKind;

use nestling_formats::Level;
use nestling_formats::store::{RowError, RowScratch, StoreError, StoredRows};

use nestling_core::error::EngineError;

const RETRIES_MAX: usize = 64;

/// Embedding rows of a step, with reusable memory.
#[derive(Debug, Default)]
pub struct EmbeddedRows {
    /// Row values, `[T, hidden_size]`.
    pub values: Vec<f32>,
    pub(super) wanted: Vec<WantedRow>,
    pub(super) scratch: RowScratch,
}

/// A requested row, and the prefix of its codes to decode.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedRow {
    pub row: u32,
    pub prefix: Level,
}

#[derive(Debug)]
pub(super) struct RowTable {
    pub rows: StoredRows,
}

impl RowTable {
    /// Reads a row into `out`, `[hidden_size]`. Interrupted reads are retried.
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

    pub fn cols(&self) -> usize {
        self.rows.cols()
    }

    /// Returns the error for a row that timed out.
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

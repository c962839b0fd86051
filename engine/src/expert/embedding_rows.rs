//! Rows of an embedding that stays in its store.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::store::{Group, RowError, RowScratch, Store, StoredRows};

use crate::batch::StepRows;
use crate::error::EngineError;

/// An embedding of which every step reads the rows of its tokens.
#[derive(Debug)]
pub struct EmbeddingRows {
    rows: StoredRows,
    /// The prefix that each level of the model means.
    levels: [Level; 5],
}

/// Rows of a step; keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct EmbeddedRows {
    /// `[T, hidden_size]`.
    pub values: Vec<f32>,
    scratch: RowScratch,
}

impl EmbeddingRows {
    /// Reads and verifies the embedding of a store once, and keeps what its rows are checked by.
    /// None if it cannot be read row by row.
    ///
    /// # Errors
    /// An embedding that is damaged or cannot be read.
    pub(super) fn open(
        store: &Arc<Store>,
        group: &Group,
        (levels, level_max): ([Level; 5], Level),
    ) -> Result<Option<Self>, EngineError> {
        let top = levels[level_max.index()];
        let rows = StoredRows::open(store, group, top).map_err(failed)?;
        Ok(rows.map(|rows| Self { rows, levels }))
    }

    /// `vocab_size`.
    pub fn rows(&self) -> usize {
        self.rows.rows()
    }

    /// `hidden_size`.
    pub fn cols(&self) -> usize {
        self.rows.cols()
    }

    /// Bytes that a row is read with.
    pub fn row_bytes(&self) -> u64 {
        self.rows.row_bytes()
    }

    /// Puts the rows of a step's tokens into `out.values`, at the levels of their dense matrices.
    ///
    /// # Errors
    /// [`EngineError::TokenOutOfRange`]; [`EngineError::LevelMissing`]; a row that cannot be read or
    /// is not what it was when the model was opened.
    pub fn read(&self, rows: &StepRows, out: &mut EmbeddedRows) -> Result<(), EngineError> {
        let (cols, held) = (self.cols(), self.rows.level());
        let EmbeddedRows { values, scratch } = out;
        values.resize(rows.len() * cols, 0.0);
        let tokens = rows.tokens.iter().zip(&rows.dense_levels);
        for ((&token, level), out) in tokens.zip(values.chunks_exact_mut(cols.max(1))) {
            if token as usize >= self.rows() {
                return Err(EngineError::TokenOutOfRange { token, vocab_size: self.rows() });
            }
            let prefix = self.levels[level.index()];
            if prefix > held {
                let (asked, held) = (prefix.bits(), held.bits());
                return Err(EngineError::LevelMissing { asked, held });
            }
            self.rows.read(prefix, token as usize, scratch, out).map_err(failed)?;
        }
        Ok(())
    }
}

fn failed(error: RowError) -> EngineError {
    match error {
        RowError::Nested(error) => error.into(),
        RowError::Store(error) => error.into(),
        other => EngineError::mismatch("a row of the embedding", "readable", other),
    }
}

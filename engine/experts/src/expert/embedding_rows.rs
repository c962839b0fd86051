//! Embedding rows read from a store on demand.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::memory::try_reserve;
use nestling_formats::nested::Layout;
use nestling_formats::store::{Encoding, Group, GroupId, Index, Store, StoredRows};

#[cfg(not(target_family = "wasm"))]
use super::row_reader::RowReader;
use super::row_table::{EmbeddedRows, RowTable, WantedRow, failed};
#[cfg(not(target_family = "wasm"))]
use crate::reads::ReadMethod;
use crate::reads::ReadOptions;
use nestling_core::batch::StepRows;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// Returns the number of embedding rows that can stay in the store. `None` unless the embedding is coded row
/// by row and is not shared with the head.
pub fn rows_that_stay(index: &Index) -> Option<u64> {
    index.group(&GroupId::Head)?;
    let matrix = index.group(&GroupId::Embedding)?.matrices.first()?;
    match matrix.encoding {
        Encoding::Nested { layout: Layout::RowMajor, .. } => Some(matrix.rows as u64),
        _ => None,
    }
}

/// An embedding whose rows are read from the store in each step.
#[derive(Debug)]
pub struct EmbeddingRows {
    table: Arc<RowTable>,
    /// Prefix of the codes at each level of the model.
    levels: [Level; 5],
    /// Reader thread; `None` if rows are read inline.
    #[cfg(not(target_family = "wasm"))]
    reader: Option<RowReader>,
}

impl EmbeddingRows {
    /// Reads and verifies the embedding of a store once, and keeps checksums for its rows. Returns `None` if
    /// it cannot be read row by row.
    ///
    /// # Errors
    /// [`EngineError::Thread`]. Also returns an error if the embedding is damaged or cannot be read.
    pub(super) fn open(
        store: &Arc<Store>,
        group: &Group,
        levels: [Level; 5],
        level_max: Level,
        options: &ReadOptions,
    ) -> Result<Option<Self>, EngineError> {
        let top = levels[level_max.index()];
        let Some(rows) = StoredRows::open(store, group, top).map_err(failed)? else {
            return Ok(None);
        };
        let table = Arc::new(RowTable { rows });
        #[cfg(not(target_family = "wasm"))]
        let reader = match options.method {
            ReadMethod::Inline => None,
            _ => Some(RowReader::start(&table, options.timeout)?),
        };
        #[cfg(target_family = "wasm")]
        let _ = options;
        Ok(Some(Self {
            table,
            levels,
            #[cfg(not(target_family = "wasm"))]
            reader,
        }))
    }

    /// Returns the number of rows, `vocab_size`.
    pub fn rows(&self) -> usize {
        self.table.rows.rows()
    }

    /// Returns the row length, `hidden_size`.
    pub fn cols(&self) -> usize {
        self.table.cols()
    }

    /// Returns the bytes read per row.
    pub fn row_bytes(&self) -> u64 {
        self.table.rows.row_bytes()
    }

    /// Reads the rows of a step's tokens into `out.values`, at the rows' dense levels.
    ///
    /// # Errors
    /// [`EngineError::TokenOutOfRange`], [`EngineError::LevelMissing`] or [`EngineError::Cancelled`]. Also
    /// returns an error if a row cannot be read, times out or differs from its state when the model was
    /// opened.
    pub fn read(
        &self,
        rows: &StepRows,
        out: &mut EmbeddedRows,
        cancel: &CancelToken,
    ) -> Result<(), EngineError> {
        let held = self.table.rows.level();
        out.wanted.clear();
        for (&token, level) in rows.tokens.iter().zip(&rows.dense_levels) {
            if token as usize >= self.rows() {
                return Err(EngineError::TokenOutOfRange { token, vocab_size: self.rows() });
            }
            let prefix = self.levels[level.index()];
            if prefix > held {
                let (asked, held) = (prefix.bits(), held.bits());
                return Err(EngineError::LevelMissing { asked, held });
            }
            out.wanted.push(WantedRow { row: token, prefix });
        }
        #[cfg(not(target_family = "wasm"))]
        if let Some(reader) = &self.reader {
            return reader.read(&self.table, out, cancel);
        }
        if cancel.is_cancelled() {
            return Err(EngineError::Cancelled);
        }
        let EmbeddedRows { values, wanted, scratch } = out;
        let count = wanted.len() * self.cols();
        try_reserve(values, "embeddings of a step", count.saturating_sub(values.len()))?;
        values.resize(count, 0.0);
        let mut all = wanted.iter().zip(values.chunks_exact_mut(self.cols().max(1)));
        all.try_for_each(|(row, out)| self.table.read(*row, scratch, out))
    }
}

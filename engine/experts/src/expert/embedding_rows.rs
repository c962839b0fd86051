//! Rows of an embedding that stays in its store.

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

/// Rows of an embedding that stays in its store: one that is coded row by row, and is not what the
/// head is made of.
pub fn rows_that_stay(index: &Index) -> Option<u64> {
    index.group(&GroupId::Head)?;
    let matrix = index.group(&GroupId::Embedding)?.matrices.first()?;
    match matrix.encoding {
        Encoding::Nested { layout: Layout::RowMajor, .. } => Some(matrix.rows as u64),
        _ => None,
    }
}

/// An embedding of which every step reads the rows of its tokens.
#[derive(Debug)]
pub struct EmbeddingRows {
    table: Arc<RowTable>,
    /// The prefix that each level of the model means.
    levels: [Level; 5],
    /// Who reads; none for whoever asks.
    #[cfg(not(target_family = "wasm"))]
    reader: Option<RowReader>,
}

impl EmbeddingRows {
    /// Reads and verifies the embedding of a store once, and keeps what its rows are checked by.
    /// None if it cannot be read row by row.
    ///
    /// # Errors
    /// An embedding that is damaged or cannot be read; [`EngineError::Thread`].
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

    /// `vocab_size`.
    pub fn rows(&self) -> usize {
        self.table.rows.rows()
    }

    /// `hidden_size`.
    pub fn cols(&self) -> usize {
        self.table.cols()
    }

    /// Bytes that a row is read with.
    pub fn row_bytes(&self) -> u64 {
        self.table.rows.row_bytes()
    }

    /// Puts the rows of a step's tokens into `out.values`, at the levels of their dense matrices.
    ///
    /// # Errors
    /// [`EngineError::TokenOutOfRange`]; [`EngineError::LevelMissing`]; [`EngineError::Cancelled`];
    /// a row that cannot be read, takes too long or is not what it was when the model was opened.
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

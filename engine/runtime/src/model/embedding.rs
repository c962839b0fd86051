//! Token embedding, on the device or read from the store.

use nestling_formats::Level;

use nestling_core::backend::{Backend, Encoder, HasShape, Linear};
use nestling_core::batch::StepRows;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_experts::expert::{EmbeddedRows, EmbeddingRows};

/// The token embedding, `[vocab_size, hidden_size]`.
pub enum Embedding<B: Backend> {
    /// A matrix on the device, of which a rank of several holds rows.
    Held(Linear<B>),
    /// The head, to which the embedding is tied.
    Head,
    /// A table in the store, of which a step reads the rows it needs.
    Stored(EmbeddingRows),
}

impl<B: Backend> Embedding<B> {
    /// Writes the embeddings of a step's tokens to `x`, `[T, hidden_size]`.
    pub(super) fn embed(
        &self,
        head: &Linear<B>,
        enc: &mut B::Encoder<'_>,
        rows: &StepRows,
        read: &mut EmbeddedRows,
        x: &mut B::Buffer,
        cancel: &CancelToken,
    ) -> Result<(), EngineError> {
        match self {
            Self::Held(table) => enc.embed(table, rows, x),
            Self::Head => enc.embed(head, rows, x),
            Self::Stored(table) => {
                table.read(rows, read, cancel)?;
                enc.write(&read.values, x)
            }
        }
    }

    /// Returns the bytes read per row at a level.
    pub(super) fn row_bytes(&self, head: &Linear<B>, level: Level) -> u64 {
        let table = match self {
            Self::Held(table) => table,
            Self::Head => head,
            Self::Stored(table) => return table.row_bytes(),
        };
        B::matrix_bytes(&table.matrix, level) / table.matrix.shape().rows.max(1) as u64
    }
}

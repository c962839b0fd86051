//! What can go wrong while a model runs.

/// An error of the engine. Each text names what was wrong, the value found and the value expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A cancel token was used, or the handle of a generation was dropped.
    #[error("cancelled")]
    Cancelled,
    /// A limit of a backend or of the options would be exceeded.
    #[error("{what}: {found} is over the limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// A sequence has no room for more tokens.
    #[error("the context holds {limit} tokens, and {wanted} are wanted")]
    ContextFull {
        /// Tokens that fit.
        limit: u64,
        /// Tokens that were asked for.
        wanted: u64,
    },
    /// Every page of the key/value pool is in use.
    #[error("all {pages} pages of the key/value pool are in use")]
    OutOfPages {
        /// Pages that the pool has.
        pages: usize,
    },
    /// A sequence computed a NaN or an infinity: damaged weights or a model that overflows.
    #[error("sequence {sequence}: the logits at position {position} are not finite")]
    NotFinite {
        /// Index of the sequence in its batch.
        sequence: usize,
        /// Position of the row.
        position: u32,
    },
    /// A level was asked for that the opened weights do not hold.
    #[error("level {asked} was asked for, but only level {held} is loaded")]
    LevelMissing {
        /// Level asked for, in bits.
        asked: u8,
        /// Highest level that is held, in bits.
        held: u8,
    },
    /// A batch, buffer or weight does not have the size that the graph needs.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// What was checked.
        what: String,
        /// What the graph needs.
        expected: String,
        /// What was there.
        found: String,
    },
    /// Planes, scales or tables that are not a matrix in the nested code.
    #[error("nested matrix: {0}")]
    Nested(#[from] nestling_formats::nested::NestedError),
    /// A checkpoint that cannot be used.
    #[error(transparent)]
    Import(#[from] nestling_formats::ImportError),
    /// A token id that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
}

impl EngineError {
    /// A [`EngineError::Mismatch`] of two things that can be shown.
    pub fn mismatch(
        what: impl Into<String>,
        expected: impl std::fmt::Display,
        found: impl std::fmt::Display,
    ) -> Self {
        Self::Mismatch {
            what: what.into(),
            expected: expected.to_string(),
            found: found.to_string(),
        }
    }
}

//! What can go wrong in a conversion.

use nestling_formats::MatrixId;
use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::NestedError;
use nestling_formats::store::StoreError;
use nestling_import::ImportError;

use nestling_core::error::EngineError;

/// An error of a conversion.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The cancel token was used. What is written stays for the next attempt.
    #[error("cancelled")]
    Cancelled,
    /// The checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] ImportError),
    /// The store being written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Something that cannot be converted, found before any work.
    #[error("cannot convert {what}: {reason}")]
    Refused {
        /// The checkpoint, or a part of it.
        what: String,
        /// Why, and what to do.
        reason: String,
    },
    /// A destination that cannot or must not be written, found before any work.
    #[error("cannot write {path}: {reason}")]
    Destination {
        /// The destination.
        path: String,
        /// Why, and what to do.
        reason: String,
    },
    /// The calibration pass.
    #[error("calibration: {0}")]
    Calibrate(#[source] EngineError),
    /// A budget that not even the smallest store fits in.
    #[error("a store needs at least {least} bytes, the budget is {asked}")]
    Budget {
        /// Bytes that were given.
        asked: u64,
        /// The least that is possible.
        least: u64,
    },
    /// The system gave no memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A matrix that cannot be coded.
    #[error("matrix {matrix:?}: {source}")]
    Quantize {
        /// Which one.
        matrix: MatrixId,
        /// Why.
        source: NestedError,
    },
}

impl From<EngineError> for ConvertError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Cancelled => Self::Cancelled,
            error => Self::Calibrate(error),
        }
    }
}

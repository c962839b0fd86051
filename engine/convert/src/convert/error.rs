//! Errors of a conversion.

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
    /// The conversion was cancelled. Written data stays for the next attempt.
    #[error("cancelled")]
    Cancelled,
    /// An error of the checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] ImportError),
    /// An error of the store that is being written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Input that cannot be converted, detected before any work.
    #[error("cannot convert {what}: {reason}")]
    Refused {
        /// The checkpoint or a part of it.
        what: String,
        /// Reason, and a remedy.
        reason: String,
    },
    /// A destination that cannot or must not be written, detected before any work.
    #[error("cannot write {path}: {reason}")]
    Destination {
        /// Path of the destination.
        path: String,
        /// Reason, and a remedy.
        reason: String,
    },
    /// A destination that exists and may not be replaced.
    #[error("cannot write {path}: it exists already")]
    DestinationExists {
        /// Path of the destination.
        path: String,
    },
    /// An error of the calibration pass.
    #[error("calibration: {0}")]
    Calibrate(#[source] EngineError),
    /// A budget below the size of the smallest possible store.
    #[error("a store needs at least {least} bytes, but the budget is {asked}")]
    Budget {
        /// The budget in bytes.
        asked: u64,
        /// The minimum in bytes.
        least: u64,
    },
    /// Memory could not be allocated.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A matrix that cannot be coded.
    #[error("matrix {matrix:?}: {source}")]
    Quantize {
        /// Id of the matrix.
        matrix: MatrixId,
        /// Cause of the failure.
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

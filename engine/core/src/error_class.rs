//! Classes of errors.

use serde::{Deserialize, Serialize};

/// Class of an error, by the party that can resolve it.
///
/// ```
/// use nestling_core::{EngineError, ErrorClass};
///
/// fn may_retry(error: &EngineError) -> bool {
///     matches!(error.class(), ErrorClass::Busy | ErrorClass::NoRoom)
/// }
/// assert!(!may_retry(&EngineError::Cancelled));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorClass {
    /// Invalid or oversized request; repeating it fails again.
    Caller,
    /// Temporary failure; a retry may succeed.
    Busy,
    /// Insufficient memory, pages or threads; a smaller request or more resources may help.
    NoRoom,
    /// Cancelled generation or engine shutdown.
    Stopped,
    /// Damaged, missing or unsuitable file, or failing disk.
    Source,
    /// Failure of the model, its device or the program: reopen the model and report the error.
    Broken,
}

//! Errors of the ranks of a model.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error_class::ErrorClass;

/// Error of a collective call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RankError {
    /// A rank ended or was silent for longer than the timeout. The group cannot be used any more. A model whose ranks are
    /// threads replaces the rank instead of returning this error.
    #[error("rank {rank} was lost: {cause}")]
    Lost {
        /// The lost rank.
        rank: usize,
        /// Observation by which the loss was noticed.
        cause: LossCause,
    },
    /// The step of a rank failed. The group can be used further.
    #[error("rank {rank} failed: {}", failure.reason)]
    Failed {
        /// The rank whose step failed.
        rank: usize,
        /// Error of that rank.
        failure: Failure,
    },
    /// A rank was lost and could not be replaced, for example because memory is short. The group cannot be used any
    /// more.
    #[error("rank {rank} was lost ({cause}) and cannot be replaced: {}", failure.reason)]
    NotReplaced {
        /// The lost rank.
        rank: usize,
        /// Observation by which the loss was noticed.
        cause: LossCause,
        /// Error of the replacement.
        failure: Failure,
    },
    /// A rank is at another exchange, or sent a message of a wrong size. The group cannot be used any more.
    #[error("message of rank {rank}: expected {expected}, found {found}")]
    Mismatch {
        /// The sender.
        rank: usize,
        /// Required value.
        expected: String,
        /// Actual value.
        found: String,
    },
}

/// Error of a rank, as the other ranks know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Message of the error, for people.
    pub reason: String,
    /// Class of the error.
    pub class: ErrorClass,
    /// True if the model has to be opened again.
    pub needs_reopening: bool,
}

/// Observation by which the loss of a rank was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LossCause {
    /// The rank ended.
    #[error("it ended")]
    Ended,
    /// The rank was silent for longer than the timeout.
    #[error("it was silent for {} s", .0.as_secs_f64())]
    Silent(Duration),
    /// Another rank noticed the loss.
    #[error("another rank noticed it")]
    Reported,
}

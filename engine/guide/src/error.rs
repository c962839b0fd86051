//! What can be wrong with what an answer is asked to look like.

use thiserror::Error;

use crate::limits::REASON_CHARS_MAX;

/// Why there is no guide.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GuideError {
    /// More than a limit allows.
    #[error("{what}: {found} is over the limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// A schema that is no JSON, or an option that makes no sense.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// Which part.
        what: String,
        /// What would have been right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A schema with something that answers cannot be kept to.
    #[error("{place}: {reason}")]
    Unsupported {
        /// Where, as a JSON pointer.
        place: String,
        /// What.
        reason: String,
    },
    /// The grammar cannot be compiled.
    #[error("{what} cannot be compiled: {reason}")]
    NotCompiled {
        /// What kind of grammar.
        what: &'static str,
        /// Why, in the words of the grammar engine.
        reason: String,
    },
    /// A vocabulary whose tokens have no bytes of their own, or is too large.
    #[error("the model's vocabulary: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// A model that does not write tool calls so that they could be constrained.
    #[error("tool calls cannot be constrained: {reason}")]
    ToolCalls {
        /// Why.
        reason: String,
    },
}

impl GuideError {
    pub(crate) fn check(what: &'static str, found: usize, limit: usize) -> Result<(), Self> {
        match found <= limit {
            true => Ok(()),
            false => Err(Self::Limit { what, limit: limit as u64, found: found as u64 }),
        }
    }

    pub(crate) fn not_compiled(what: &'static str, reason: &str) -> Self {
        // The engine appends its state, which says nothing to whoever wrote the grammar.
        let reason = reason.split("\n<non-verbose/>").next().unwrap_or(reason);
        let reason = reason.split("\n<backtrace>").next().unwrap_or(reason);
        Self::NotCompiled { what, reason: reason.chars().take(REASON_CHARS_MAX).collect() }
    }
}

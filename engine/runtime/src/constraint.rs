//! Constraints on the output: before each token is chosen, they define which tokens are allowed.
//!
//! The engine itself knows no grammar. `nestling-guide` implements [`Constraint`] for JSON schemas, regular
//! expressions and grammars.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use nestling_core::sync::{Mutex, whole};
use nestling_text::{OutputFormat, Tokenizer};
use thiserror::Error;

use nestling_text::TokenMask;

/// Position in the output at which a constraint starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Starts {
    /// At the first token of the answer, without reasoning before it. For a model that writes messages in
    /// channels: at the text of the final channel.
    WithAnswer,
    /// After the reasoning, or at the first token if there is none.
    #[default]
    AfterReasoning,
    /// After the marker that opens a tool call, restarted for each call. All other output is unconstrained.
    AtToolCall,
}

/// Kind of output produced under a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Writes {
    /// Answer text, in which markers have no meaning.
    #[default]
    Text,
    /// Tool calls including their markers.
    Calls,
}

/// Decides which tokens a generation may produce next.
///
/// The engine calls [`Self::start`] once. For each token it then calls [`Self::mask`] on another thread while
/// the model computes, and [`Self::accept`] with the chosen token. An error ends the generation: the engine
/// never continues without the constraint.
pub trait Constraint: Send {
    /// Returns the position at which the constraint starts.
    fn starts(&self) -> Starts {
        Starts::default()
    }

    /// Returns the kind of output produced under the constraint.
    fn writes(&self) -> Writes {
        Writes::default()
    }

    /// Starts the constraint, or restarts it at the next tool call. `call` is the function name if the marker
    /// contains it. Returns false to leave this call unconstrained.
    ///
    /// # Errors
    /// An error ends the generation.
    fn start(&mut self, call: Option<&str>) -> Result<bool, ConstraintError>;

    /// Reports the number of tokens that the output may still have, before each mask. A constraint may use
    /// it to complete the output in time.
    fn set_tokens_left(&mut self, _tokens: usize) {}

    /// Sets the allowed tokens in `mask`, which is empty on entry.
    ///
    /// The end of the output is not part of it: the engine allows the end-of-sequence tokens according to
    /// [`Self::may_end`].
    ///
    /// # Errors
    /// An error ends the generation.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Advances the constraint by the chosen token.
    ///
    /// # Errors
    /// Returns an error if the token is not allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Returns the tokens that must come next, up to the first choice.
    ///
    /// The engine computes them in one step and passes each to [`Self::accept`].
    ///
    /// # Errors
    /// An error ends the generation.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(Vec::new())
    }

    /// Returns true if the accepted tokens form a complete output.
    ///
    /// # Errors
    /// An error ends the generation.
    fn may_end(&mut self) -> Result<bool, ConstraintError>;

    /// Returns true if the output must end here. It then ends without an end-of-sequence token.
    ///
    /// # Errors
    /// An error ends the generation.
    fn is_done(&mut self) -> Result<bool, ConstraintError> {
        Ok(false)
    }
}

/// Creates a constraint for each generation whose options refer to it.
pub trait ConstraintSource: Debug + Send + Sync {
    /// Creates a constraint in its initial state.
    ///
    /// # Errors
    /// Returns an error if the constraint is not available for this model or conversation.
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError>;
}

/// Model and output format of the generation to be constrained.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ConstraintContext<'a> {
    /// Tokenizer of the model, if it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Vocabulary size: token ids below it may be chosen.
    pub vocab_size: usize,
    /// Markers of reasoning and tool calls.
    pub format: &'a OutputFormat,
    /// Cache for constraints, stored with the model.
    pub cache: &'a ConstraintCache,
}

impl<'a> ConstraintContext<'a> {
    /// Creates a context without a generation, for tests and benchmarks.
    pub fn new(
        tokenizer: Option<&'a Tokenizer>,
        vocab_size: usize,
        format: &'a OutputFormat,
        cache: &'a ConstraintCache,
    ) -> Self {
        Self { tokenizer, vocab_size, format, cache }
    }
}

/// Values that constraints cache with a model, such as a preprocessed vocabulary. It holds one value per
/// type.
#[derive(Default)]
pub struct ConstraintCache {
    values: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
}

impl Debug for ConstraintCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ConstraintCache")
    }
}

impl ConstraintCache {
    /// Returns the cached value of type `T`, creating it with `make` if it is missing. Concurrent callers
    /// wait for it.
    ///
    /// # Errors
    /// Returns the error of `make`. The next caller tries again.
    pub fn get<T: Any + Send + Sync, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
    ) -> Result<Arc<T>, E> {
        let mut values = whole(self.values.lock());
        let found = values.iter().find_map(|value| Arc::clone(value).downcast().ok());
        if let Some(value) = found {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        values.push(Arc::clone(&value) as Arc<dyn Any + Send + Sync>);
        Ok(value)
    }
}

/// Error of a constraint, which ends its generation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// The constraint is not available for this model or conversation.
    #[error("the constraint cannot be created: {reason}")]
    Unavailable {
        /// Reason.
        reason: String,
    },
    /// The constraint failed.
    #[error("the constraint failed: {reason}")]
    Failed {
        /// Reason.
        reason: String,
    },
    /// A token that the constraint does not allow.
    #[error("the constraint does not allow token {token}")]
    Refused {
        /// Token id.
        token: u32,
    },
    /// The constraint allows neither a token nor the end.
    #[error("the constraint allows no token")]
    NothingAllowed,
    /// The output ended before the constraint was satisfied.
    #[error("the answer ended before the constraint was satisfied")]
    Unfinished,
    /// The constraint panicked.
    #[error("the constraint panicked")]
    Panicked,
}

impl ConstraintError {
    /// Creates a [`Self::Unavailable`] error.
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    /// Creates a [`Self::Failed`] error.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed { reason: reason.into() }
    }
}

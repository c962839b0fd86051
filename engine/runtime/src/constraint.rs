//! What an answer must look like: tokens that may come next, asked for before every choice.
//!
//! The engine knows no grammar. `nestling-guide` implements [`Constraint`] for JSON schemas, regular expressions and
//! grammars.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

use nestling_core::sync::{Mutex, whole};
use nestling_text::{OutputFormat, Tokenizer};
use thiserror::Error;

use nestling_text::TokenMask;

/// When a constraint begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Starts {
    /// With the first token of the answer: there is no reasoning before it. Where a model writes messages in channels,
    /// with the text of the final one.
    WithAnswer,
    /// After the reasoning, if there is any; else with the first token.
    #[default]
    AfterReasoning,
    /// Behind the marker that opens a tool call, for every call anew. Everything else is free.
    AtToolCall,
}

/// What is written under a constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Writes {
    /// The answer's text, in which no marker means anything.
    #[default]
    Text,
    /// Tool calls with their markers.
    Calls,
}

/// Decides for one generation which tokens may come next.
///
/// The engine calls [`Self::start`], and then for every token [`Self::mask`] on another thread while the model computes,
/// and [`Self::accept`]. An error ends the generation: nothing is ever generated without the constraint.
pub trait Constraint: Send {
    /// When it begins.
    fn starts(&self) -> Starts {
        Starts::default()
    }

    /// What is written under it.
    fn writes(&self) -> Writes {
        Writes::default()
    }

    /// Begins, or begins anew at the next tool call, whose name is `call` where the marker says it. False leaves this
    /// call free.
    ///
    /// # Errors
    /// What ends the generation.
    fn start(&mut self, call: Option<&str>) -> Result<bool, ConstraintError>;

    /// Allows in `mask`, which comes empty, the tokens that may come next. Whether the answer may end here is not part
    /// of it: the engine sets the tokens that end an answer by [`Self::may_end`].
    ///
    /// # Errors
    /// What ends the generation.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError>;

    /// Takes the token that was chosen.
    ///
    /// # Errors
    /// A token that was not allowed.
    fn accept(&mut self, token: u32) -> Result<(), ConstraintError>;

    /// Tokens that must come next, as far as no choice is left; the engine computes them in one step, and gives each to
    /// [`Self::accept`].
    ///
    /// # Errors
    /// What ends the generation.
    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        Ok(Vec::new())
    }

    /// Whether what was accepted may be all.
    ///
    /// # Errors
    /// What ends the generation.
    fn may_end(&mut self) -> Result<bool, ConstraintError>;

    /// Whether it must be all: the answer ends then, without a token that says so.
    ///
    /// # Errors
    /// What ends the generation.
    fn is_done(&mut self) -> Result<bool, ConstraintError> {
        Ok(false)
    }
}

/// Makes a constraint for every generation whose options name it.
pub trait ConstraintSource: Debug + Send + Sync {
    /// A constraint that has accepted nothing yet.
    ///
    /// # Errors
    /// One that cannot be had for this model or this conversation.
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError>;
}

/// What a generation is like that is going to be constrained.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ConstraintContext<'a> {
    /// The model's tokenizer, if it has one.
    pub tokenizer: Option<&'a Tokenizer>,
    /// Tokens that may be chosen: ids below.
    pub vocab_size: usize,
    /// How reasoning and tool calls are marked.
    pub format: &'a OutputFormat,
    /// Kept with the model.
    pub cache: &'a ConstraintCache,
}

impl<'a> ConstraintContext<'a> {
    /// Where there is no generation: in tests and measurements.
    pub fn new(
        tokenizer: Option<&'a Tokenizer>,
        vocab_size: usize,
        format: &'a OutputFormat,
        cache: &'a ConstraintCache,
    ) -> Self {
        Self { tokenizer, vocab_size, format, cache }
    }
}

/// What constraints keep with a model: its vocabulary in another form, say. One value of each type.
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
    /// The value of a type, which `make` makes where there is none. Whoever asks meanwhile waits for it.
    ///
    /// # Errors
    /// What `make` says; the next one to ask has it made again.
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

/// Why a generation cannot go on under its constraint.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ConstraintError {
    /// It cannot be had here.
    #[error("the constraint cannot be had: {reason}")]
    Unavailable {
        /// Why.
        reason: String,
    },
    /// It failed.
    #[error("the constraint failed: {reason}")]
    Failed {
        /// How.
        reason: String,
    },
    /// A token that it does not allow.
    #[error("the constraint does not allow token {token}")]
    Refused {
        /// The token.
        token: u32,
    },
    /// It allows no token, and not the end either.
    #[error("the constraint allows no token")]
    NothingAllowed,
    /// The answer ended before it was complete.
    #[error("the answer ended before the constraint was met")]
    Unfinished,
    /// It panicked.
    #[error("the constraint panicked")]
    Panicked,
}

impl ConstraintError {
    /// A [`Self::Unavailable`].
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into() }
    }

    /// A [`Self::Failed`].
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::Failed { reason: reason.into() }
    }
}

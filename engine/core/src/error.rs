//! What can go wrong while a model runs.

use nestling_formats::InternalError;
use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::NestedError;
use nestling_formats::store::StoreError;
use nestling_import::ImportError;

use crate::budget::Bytes;

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
    #[error("the context holds {limit} tokens, and at least {wanted} are wanted")]
    ContextFull {
        /// Tokens that fit.
        limit: u64,
        /// Tokens that were asked for; of a text that is too long by its bytes alone, the fewest
        /// that it can have.
        wanted: u64,
    },
    /// Every page of the key/value pool is in use.
    #[error("all {pages} pages of the key/value pool are in use")]
    OutOfPages {
        /// Pages that the pool has.
        pages: usize,
    },
    /// Every recurrent state of the pool is in use.
    #[error("all {states} recurrent states of the pool are in use")]
    OutOfStates {
        /// States that the pool has.
        states: usize,
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
    /// Operands of an operation that do not fit each other.
    #[error("{operation}: {operand}: expected {expected}, found {found}")]
    Shape {
        /// The operation.
        operation: &'static str,
        /// What was checked.
        operand: &'static str,
        /// What fits the other operands.
        expected: String,
        /// What was there.
        found: String,
    },
    /// A path with nothing to run behind it.
    #[error("{path}: {reason}")]
    NotAModel {
        /// The path.
        path: String,
        /// What is wrong with it, and what would be right.
        reason: String,
    },
    /// A path cannot be read, for example because it does not exist.
    #[error("{path}: {}", unreadable(source))]
    Unreadable {
        /// The path.
        path: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The memory budget has no room.
    #[error(transparent)]
    Budget(#[from] crate::budget::BudgetExceeded),
    /// A budget that not even a model with streamed experts fits in.
    #[error(transparent)]
    MemoryTooSmall(Box<MemoryTooSmall>),
    /// A budget for weights that not even the smallest allocation of levels fits in.
    #[error("the weights need at least {least} bytes, the budget is {asked}")]
    WeightBudget {
        /// Bytes that were given.
        asked: u64,
        /// The least that is possible.
        least: u64,
    },
    /// A budget for experts that one token's experts of one layer do not fit in.
    #[error(
        "experts take {least} bytes at the least (one token's of one layer), and the budget for them is {asked}"
    )]
    ExpertBudget {
        /// Bytes that were given.
        asked: u64,
        /// The least that would do.
        least: u64,
    },
    /// A memory budget below what is held and cannot be given back.
    #[error(
        "a memory budget of {} is too small: {} ({held} bytes) are held and are not given back \
         before a model is closed",
        Bytes(*asked),
        Bytes(*held)
    )]
    MemoryHeld {
        /// Bytes that were given.
        asked: u64,
        /// Bytes that stay held, the least that streamed experts need among them: no smaller budget
        /// would do.
        held: u64,
    },
    /// A file that is no routing trace, or damaged.
    #[error("{file}, line {line}: {reason}")]
    Trace {
        /// The file.
        file: String,
        /// Which line, from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Tokenizer, chat template or stop strings: a `TextError` of `nestling-text`.
    #[error(transparent)]
    Text(Box<dyn std::error::Error + Send + Sync>),
    /// Sampling options, or logits that are no numbers: a `SampleError` of `nestling-runtime`.
    #[error(transparent)]
    Sample(Box<dyn std::error::Error + Send + Sync>),
    /// A constraint that cannot be had, or failed: a `ConstraintError` of `nestling-runtime`. Nothing was
    /// generated without it.
    #[error(transparent)]
    Constraint(Box<dyn std::error::Error + Send + Sync>),
    /// Text was given to, or wanted from, a model that has no tokenizer.
    #[error("this model has no tokenizer; give token ids instead of text")]
    NoTokenizer,
    /// A prompt without a single token.
    #[error("the prompt is empty; the model needs at least one token to go on from")]
    EmptyPrompt,
    /// A session's history was touched while a generation adds to it.
    #[error("the session is generating; wait for the end or cancel the generation first")]
    SessionBusy,
    /// Results of tools that do not answer a conversation's open calls, each once.
    #[error("results of tool calls: expected those of {expected}, found {found}")]
    ToolReplies {
        /// Ids of the open calls.
        expected: String,
        /// Ids that were answered.
        found: String,
    },
    /// Bytes that are no snapshot of a session of this model.
    #[error("session snapshot, {what}: expected {expected}, found {found}")]
    Snapshot {
        /// Which part.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A snapshot that cannot be read or written where it lies.
    #[error("session snapshot: {0}")]
    SnapshotFile(#[source] std::io::Error),
    /// A text that is too short for what is to be learnt from it.
    #[error("the {what} text has {found} tokens, at least {needed} are needed")]
    TooFewTokens {
        /// What the text is for.
        what: &'static str,
        /// Tokens of the text.
        found: usize,
        /// The fewest that do.
        needed: usize,
    },
    /// More generations than may wait, or one that was not to wait and would have to.
    #[error(
        "busy: {waiting} generations wait, and of the {pages_wanted} pages of keys and values that are wanted \
         {pages_free} are free"
    )]
    Busy {
        /// Generations that wait.
        waiting: usize,
        /// Pages that the prompt and some of its answer take.
        pages_wanted: usize,
        /// Pages that are neither held by generations nor promised to them.
        pages_free: usize,
    },
    /// The engine was shut down.
    #[error("the engine has been shut down")]
    EngineClosed,
    /// The directory of a page store cannot be used.
    #[error("pages on disk in {}: {source}", directory.display())]
    PageStore {
        /// The directory; empty for a place of another kind.
        directory: std::path::PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The platform gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A part of the program panicked, and one generation was lost with it.
    #[error("internal error: {what} panicked")]
    Panicked {
        /// Which part.
        what: &'static str,
    },
    /// A step of the model panicked, or a device was lost: the model computes no more.
    #[error("a step of the model failed badly; open the model again")]
    ModelBroken,
    /// A device that failed, or has no room.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// A device that is gone, with all that it held: open the model again.
    #[error(transparent)]
    DeviceLost(Box<dyn std::error::Error + Send + Sync>),
    /// The platform gave no memory.
    #[error("cannot get {bytes} bytes of memory: {source}")]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: u64,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A read of a store that the system neither finishes nor refuses.
    #[error(
        "{file}: reading {length} bytes at byte {offset} has taken more than {seconds} s; is the \
         disk still there?"
    )]
    ReadStalled {
        /// The store.
        file: String,
        /// Where the read begins.
        offset: u64,
        /// Its bytes.
        length: u64,
        /// Seconds after which it was given up.
        seconds: f64,
    },
    /// Planes, scales or tables that are not a matrix in the nested code.
    #[error("nested matrix: {0}")]
    Nested(#[from] NestedError),
    /// A checkpoint that cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A store that cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A token id that the vocabulary does not have.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// The system gave no memory for something whose size the input decides.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A condition of the program itself that does not hold.
    #[error(transparent)]
    Internal(#[from] InternalError),
}

/// Who can do something about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// What was asked for makes no sense, or is too long: the same again fails again.
    Caller,
    /// Later, it may work.
    Busy,
    /// Memory, pages or threads are not enough: less may work, or more of them.
    NoRoom,
    /// Somebody wanted it to stop: a generation, or the engine.
    Stopped,
    /// A file that is damaged, missing or not what it should be, or a disk that fails.
    Source,
    /// The model, its device or the program itself: open the model again, and report it.
    Broken,
}

fn unreadable(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".into(),
        _ => source.to_string(),
    }
}

impl EngineError {
    /// Who can do something about it.
    pub fn class(&self) -> ErrorClass {
        match self {
            _ if self.internal().is_some() => ErrorClass::Broken,
            Self::Limit { .. }
            | Self::ContextFull { .. }
            | Self::LevelMissing { .. }
            | Self::Text(_)
            | Self::Sample(_)
            | Self::Constraint(_)
            | Self::NoTokenizer
            | Self::EmptyPrompt
            | Self::ToolReplies { .. }
            | Self::Snapshot { .. }
            | Self::PageStore { .. }
            | Self::TooFewTokens { .. }
            | Self::TokenOutOfRange { .. } => ErrorClass::Caller,
            Self::SessionBusy | Self::Busy { .. } => ErrorClass::Busy,
            Self::OutOfPages { .. }
            | Self::OutOfStates { .. }
            | Self::Budget(_)
            | Self::MemoryTooSmall(_)
            | Self::WeightBudget { .. }
            | Self::ExpertBudget { .. }
            | Self::MemoryHeld { .. }
            | Self::Thread(_)
            | Self::OutOfMemory { .. }
            | Self::Memory(_) => ErrorClass::NoRoom,
            Self::Cancelled | Self::EngineClosed => ErrorClass::Stopped,
            Self::NotAModel { .. }
            | Self::Unreadable { .. }
            | Self::SnapshotFile(_)
            | Self::Trace { .. }
            | Self::ReadStalled { .. }
            | Self::Nested(_)
            | Self::Import(_)
            | Self::Store(_) => ErrorClass::Source,
            Self::NotFinite { .. }
            | Self::Mismatch { .. }
            | Self::Shape { .. }
            | Self::Panicked { .. }
            | Self::ModelBroken
            | Self::Device(_)
            | Self::DeviceLost(_)
            | Self::Internal(_) => ErrorClass::Broken,
        }
    }

    /// Whether the model fails every request until it is opened again: its file changed, a step failed badly, or its device
    /// is lost.
    pub fn needs_reopening(&self) -> bool {
        matches!(
            self,
            Self::Store(StoreError::Changed { .. })
                | Self::Import(ImportError::Changed { .. })
                | Self::ModelBroken
                | Self::DeviceLost(_)
        )
    }

    /// The same error with the names of files in place of their paths, for readers who must not learn where the files are.
    /// Errors of the system keep their texts.
    #[must_use]
    pub fn without_folders(mut self) -> Self {
        let shorten = |file: &mut String| {
            if let Some(name) = std::path::Path::new(&*file).file_name() {
                *file = name.to_string_lossy().into_owned();
            }
        };
        match &mut self {
            Self::Store(error) => error.file_mut().into_iter().for_each(shorten),
            Self::Import(error) => error.file_mut().into_iter().for_each(shorten),
            Self::NotAModel { path: file, .. }
            | Self::Unreadable { path: file, .. }
            | Self::Trace { file, .. }
            | Self::ReadStalled { file, .. } => shorten(file),
            Self::PageStore { directory, .. } => {
                // Default: a root has no name.
                *directory = directory.file_name().unwrap_or_default().into();
            }
            _ => {}
        }
        self
    }

    /// Whether all pages or all recurrent states are in use.
    pub fn is_full_pool(&self) -> bool {
        matches!(self, Self::OutOfPages { .. } | Self::OutOfStates { .. })
    }

    /// The condition of the program itself that does not hold, if that is the error.
    pub fn internal(&self) -> Option<&InternalError> {
        match self {
            Self::Internal(error)
            | Self::Nested(NestedError::Internal(error))
            | Self::Store(StoreError::Internal(error))
            | Self::Import(ImportError::Internal(error)) => Some(error),
            _ => None,
        }
    }

    /// An [`EngineError::Text`].
    pub fn text(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Text(Box::new(error))
    }

    /// An [`EngineError::Sample`].
    pub fn sample(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Sample(Box::new(error))
    }

    /// An [`EngineError::Constraint`].
    pub fn constraint(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Constraint(Box::new(error))
    }

    /// An [`EngineError::Mismatch`] of two things that can be shown.
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

/// A budget that not even a streamed model fits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTooSmall {
    /// The budget.
    pub given: u64,
    /// Weights that every token uses.
    pub dense_bytes: u64,
    /// Pages of keys and values, and recurrent states.
    pub kv_bytes: u64,
    /// Activations of a step.
    pub scratch_bytes: u64,
    /// One token's experts of one layer.
    pub expert_bytes: u64,
    /// Kept free for what the process has beside.
    pub program_bytes: u64,
    /// Tokens of the context that the keys and values are for.
    pub context_length: usize,
}

impl MemoryTooSmall {
    /// The least that would do.
    pub fn least(&self) -> u64 {
        let parts = [self.dense_bytes, self.kv_bytes, self.scratch_bytes, self.expert_bytes];
        parts.iter().fold(self.program_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl std::fmt::Display for MemoryTooSmall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a memory budget of {} is too small: the least is {} ({} bytes), of which dense weights \
             take {}, one token's experts of one layer {}, keys and values of {} tokens {}, \
             scratch {}, and the program {}",
            Bytes(self.given),
            Bytes(self.least()),
            self.least(),
            Bytes(self.dense_bytes),
            Bytes(self.expert_bytes),
            self.context_length,
            Bytes(self.kv_bytes),
            Bytes(self.scratch_bytes),
            Bytes(self.program_bytes),
        )
    }
}

impl std::error::Error for MemoryTooSmall {}

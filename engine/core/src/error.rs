//! Errors of running a model.

use nestling_formats::InternalError;
use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::NestedError;
use nestling_formats::store::StoreError;
use nestling_import::ImportError;

use crate::budget::Bytes;
pub use crate::error_class::ErrorClass;
use crate::rank_error::{Failure, RankError};

/// An error of the engine. Messages state the problem, the value found and the value expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The request was cancelled by a token, or the handle of a generation was dropped.
    #[error("cancelled")]
    Cancelled,
    /// A limit of a backend or of the options was exceeded.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit {
        /// Name of the limited quantity.
        what: &'static str,
        /// Maximum value.
        limit: u64,
        /// Requested value.
        found: u64,
    },
    /// The context of a sequence is full.
    #[error("the context holds {limit} tokens, but at least {wanted} are needed")]
    ContextFull {
        /// Maximum number of tokens.
        limit: u64,
        /// Requested number of tokens. For a text whose byte length alone exceeds the limit, a lower bound.
        wanted: u64,
    },
    /// All pages of the KV cache are in use.
    #[error("all {pages} pages of the key/value pool are in use")]
    OutOfPages {
        /// Number of pages in the pool.
        pages: usize,
    },
    /// All recurrent states of the pool are in use.
    #[error("all {states} recurrent states of the pool are in use")]
    OutOfStates {
        /// Number of states in the pool.
        states: usize,
    },
    /// A sequence produced a NaN or an infinity, because weights are damaged or the model overflows.
    #[error("sequence {sequence}: the logits at position {position} are not finite")]
    NotFinite {
        /// Index of the sequence in its batch.
        sequence: usize,
        /// Position of the row.
        position: u32,
    },
    /// A requested level is not held by the opened weights.
    #[error("level {asked} was requested, but only level {held} is loaded")]
    LevelMissing {
        /// Requested level in bits.
        asked: u8,
        /// Highest level held, in bits.
        held: u8,
    },
    /// A batch, buffer or weight does not have the size that the graph requires.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// Name of the checked item.
        what: String,
        /// Required value.
        expected: String,
        /// Actual value.
        found: String,
    },
    /// The operands of an operation do not match.
    #[error("{operation}: {operand}: expected {expected}, found {found}")]
    Shape {
        /// Name of the operation.
        operation: &'static str,
        /// Name of the checked operand.
        operand: &'static str,
        /// Value that matches the other operands.
        expected: String,
        /// Actual value.
        found: String,
    },
    /// A path does not contain a model.
    #[error("{path}: {reason}")]
    NotAModel {
        /// Path that was given.
        path: String,
        /// Problem with the path, and how to fix it.
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
    /// The memory budget is exceeded.
    #[error(transparent)]
    Budget(#[from] crate::budget::BudgetExceeded),
    /// The memory budget is too small even with streamed experts.
    #[error(transparent)]
    MemoryTooSmall(Box<MemoryTooSmall>),
    /// The budget for weights is below the smallest allocation of levels.
    #[error("the weights need at least {least} bytes, the budget is {asked}")]
    WeightBudget {
        /// Budget in bytes.
        asked: u64,
        /// Minimum possible bytes.
        least: u64,
    },
    /// The budget for experts is below one token's experts of one layer.
    #[error(
        "experts take {least} bytes at the least (one token's of one layer), and the budget for them is {asked}"
    )]
    ExpertBudget {
        /// Budget in bytes.
        asked: u64,
        /// Minimum possible bytes.
        least: u64,
    },
    /// The memory budget is below the bytes that are held and cannot be released.
    #[error(
        "a memory budget of {} is too small: {} ({held} bytes) are held and are not given back \
         before a model is closed",
        Bytes(*asked),
        Bytes(*held)
    )]
    MemoryHeld {
        /// Budget in bytes.
        asked: u64,
        /// Bytes held, including the minimum for streamed experts; the minimum possible budget.
        held: u64,
    },
    /// A file is not a routing trace or is damaged.
    #[error("{file}, line {line}: {reason}")]
    Trace {
        /// File name.
        file: String,
        /// Line number, from 1.
        line: usize,
        /// Description of the problem.
        reason: String,
    },
    /// The tokenizer, chat template or stop strings failed: a `TextError` of `nestling-text`.
    #[error(transparent)]
    Text(Box<dyn std::error::Error + Send + Sync>),
    /// Sampling options are invalid, or logits are NaN: a `SampleError` of `nestling-runtime`.
    #[error(transparent)]
    Sample(Box<dyn std::error::Error + Send + Sync>),
    /// A constraint failed or did not compile: a `ConstraintError` of `nestling-runtime`. No output was
    /// generated without the constraint.
    #[error(transparent)]
    Constraint(Box<dyn std::error::Error + Send + Sync>),
    /// Text was given to, or requested from, a model without a tokenizer.
    #[error("this model has no tokenizer; give token ids instead of text")]
    NoTokenizer,
    /// The prompt has no tokens.
    #[error("the prompt is empty; at least one token is needed")]
    EmptyPrompt,
    /// A session's history was modified while a generation is running.
    #[error("the session is generating; wait for the end or cancel the generation first")]
    SessionBusy,
    /// The tool results do not answer each open call of the conversation exactly once.
    #[error("results of tool calls: expected those of {expected}, found {found}")]
    ToolReplies {
        /// Ids of the open calls.
        expected: String,
        /// Ids of the answered calls.
        found: String,
    },
    /// The bytes are not a session snapshot of this model.
    #[error("session snapshot, {what}: expected {expected}, found {found}")]
    Snapshot {
        /// Name of the checked part.
        what: &'static str,
        /// Expected value.
        expected: String,
        /// Actual value.
        found: String,
    },
    /// A snapshot file cannot be read or written.
    #[error("session snapshot: {0}")]
    SnapshotFile(#[source] std::io::Error),
    /// A text has too few tokens for its purpose.
    #[error("the {what} text has {found} tokens, but at least {needed} are needed")]
    TooFewTokens {
        /// Purpose of the text.
        what: &'static str,
        /// Number of tokens in the text.
        found: usize,
        /// Minimum number of tokens.
        needed: usize,
    },
    /// Too many generations are waiting, or a generation with no-wait semantics would have to wait.
    #[error(
        "busy: {waiting} generations wait, and of the {pages_wanted} pages of keys and values that are wanted \
         {pages_free} are free"
    )]
    Busy {
        /// Number of waiting generations.
        waiting: usize,
        /// Number of pages for the prompt and part of the output.
        pages_wanted: usize,
        /// Number of pages neither held by nor promised to generations.
        pages_free: usize,
    },
    /// The engine was shut down.
    #[error("the engine has been shut down")]
    EngineClosed,
    /// The directory of a page store cannot be used.
    #[error("pages on disk in {}: {source}", directory.display())]
    PageStore {
        /// Directory of the page store; empty for stores in other locations.
        directory: std::path::PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// The platform cannot start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] std::io::Error),
    /// A component panicked, and one generation failed with it.
    #[error("internal error: {what} panicked")]
    Panicked {
        /// Name of the component.
        what: &'static str,
    },
    /// A forward pass panicked or a device was lost, so the model cannot compute any more.
    #[error("a step of the model panicked; open the model again")]
    ModelBroken,
    /// A device failed or is out of memory.
    #[error(transparent)]
    Device(Box<dyn std::error::Error + Send + Sync>),
    /// A device that was requested by name is not available on this machine.
    #[error(transparent)]
    NoDevice(Box<dyn std::error::Error + Send + Sync>),
    /// A device was lost with its contents; reopen the model.
    #[error(transparent)]
    DeviceLost(Box<dyn std::error::Error + Send + Sync>),
    /// The platform cannot allocate memory.
    #[error("cannot get {bytes} bytes of memory: {source}")]
    OutOfMemory {
        /// Requested bytes.
        bytes: u64,
        /// System error.
        source: std::io::Error,
    },
    /// Experts that are sliced over ranks cannot be streamed: every rank would read a slice of each expert that a step
    /// uses, whose hash is that of the whole.
    #[error(
        "experts that are sliced over ranks are held in memory, and {layers} layers of these are streamed; divide \
         whole experts over the ranks, or give each rank memory for its slices"
    )]
    SlicesStreamed {
        /// Number of layers with experts.
        layers: usize,
    },
    /// Replicas of experts on ranks cannot be streamed.
    #[error(
        "replicas of experts are held in memory, and there is too little for {replicas} of each layer beside a rank's own \
         experts, which would be streamed; request fewer replicas, or give each rank memory for them"
    )]
    ReplicasStreamed {
        /// Requested replicas of each layer.
        replicas: usize,
    },
    /// Another rank of the model failed or was lost.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// A read of a store neither completes nor fails.
    #[error(
        "{file}: reading {length} bytes at byte {offset} has taken more than {seconds} s; is the \
         disk still there?"
    )]
    ReadStalled {
        /// Name of the store.
        file: String,
        /// Byte offset of the read.
        offset: u64,
        /// Length of the read in bytes.
        length: u64,
        /// Timeout in seconds.
        seconds: f64,
    },
    /// Planes, scales or tables are invalid as a nested matrix.
    #[error("nested matrix: {0}")]
    Nested(#[from] NestedError),
    /// A checkpoint cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A token id is outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// Token id.
        token: u32,
        /// Number of rows of the embedding.
        vocab_size: usize,
    },
    /// A memory allocation failed whose size depends on the input.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// An invariant of the program is violated.
    #[error(transparent)]
    Internal(#[from] InternalError),
}

fn unreadable(source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::NotFound => "there is no such file or folder".into(),
        _ => source.to_string(),
    }
}

impl EngineError {
    /// Returns the class of the error.
    pub fn class(&self) -> ErrorClass {
        match self {
            _ if self.internal().is_some() => ErrorClass::Broken,
            Self::Rank(
                RankError::Failed { failure, .. } | RankError::NotReplaced { failure, .. },
            ) => failure.class,
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
            | Self::TokenOutOfRange { .. }
            | Self::NoDevice(_) => ErrorClass::Caller,
            Self::SessionBusy | Self::Busy { .. } => ErrorClass::Busy,
            Self::OutOfPages { .. }
            | Self::OutOfStates { .. }
            | Self::Budget(_)
            | Self::MemoryTooSmall(_)
            | Self::SlicesStreamed { .. }
            | Self::ReplicasStreamed { .. }
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
            | Self::Rank(_)
            | Self::Internal(_) => ErrorClass::Broken,
        }
    }

    /// Returns true if the model fails all requests until it is reopened: its file changed, a forward pass
    /// failed internally, or its device or one of its ranks was lost.
    pub fn needs_reopening(&self) -> bool {
        if let Self::Rank(error) = self {
            return !matches!(error, RankError::Failed { failure, .. } if !failure.needs_reopening);
        }
        matches!(
            self,
            Self::Store(StoreError::Changed { .. })
                | Self::Import(ImportError::Changed { .. })
                | Self::ModelBroken
                | Self::DeviceLost(_)
        )
    }

    /// Returns what the other ranks of a model know of the error.
    pub fn as_failure(&self) -> Failure {
        let (class, needs_reopening) = (self.class(), self.needs_reopening());
        Failure { reason: self.to_string(), class, needs_reopening }
    }

    /// Replaces file paths in the error by file names, for readers who must not learn the location of files.
    /// Messages of system errors are unchanged.
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
                // Default: the root directory has no name.
                *directory = directory.file_name().unwrap_or_default().into();
            }
            _ => {}
        }
        self
    }

    /// Returns true if all pages or all recurrent states are in use.
    pub fn is_full_pool(&self) -> bool {
        matches!(self, Self::OutOfPages { .. } | Self::OutOfStates { .. })
    }

    /// Returns the violated invariant, if the error is one.
    pub fn internal(&self) -> Option<&InternalError> {
        match self {
            Self::Internal(error)
            | Self::Nested(NestedError::Internal(error))
            | Self::Store(StoreError::Internal(error))
            | Self::Import(ImportError::Internal(error)) => Some(error),
            _ => None,
        }
    }

    /// Creates an [`EngineError::Text`].
    pub fn text(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Text(Box::new(error))
    }

    /// Creates an [`EngineError::Sample`].
    pub fn sample(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Sample(Box::new(error))
    }

    /// Creates an [`EngineError::Constraint`].
    pub fn constraint(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Constraint(Box::new(error))
    }

    /// Creates an [`EngineError::Mismatch`] from two displayable values.
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

/// A memory budget too small for a dense model, or for streamed experts, with the bytes required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTooSmall {
    /// Budget in bytes.
    pub given: u64,
    /// Bytes of the dense weights, which all tokens use.
    pub dense_bytes: u64,
    /// Bytes of the KV cache and of recurrent states.
    pub kv_bytes: u64,
    /// Bytes of the activations of a step.
    pub scratch_bytes: u64,
    /// Bytes of one token's experts of one layer; 0 for a dense model.
    pub expert_bytes: u64,
    /// Bytes kept free for the rest of the process.
    pub program_bytes: u64,
    /// Context length in tokens of the KV cache.
    pub context_length: usize,
}

impl MemoryTooSmall {
    /// Returns the minimum budget in bytes.
    pub fn least(&self) -> u64 {
        let parts = [self.dense_bytes, self.kv_bytes, self.scratch_bytes, self.expert_bytes];
        parts.iter().fold(self.program_bytes, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl std::fmt::Display for MemoryTooSmall {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let experts = match self.expert_bytes {
            0 => String::new(),
            bytes => format!("one token's experts of one layer {}, ", Bytes(bytes)),
        };
        write!(
            f,
            "a memory budget of {} is too small: the least is {} ({} bytes), of which dense weights \
             take {}, {experts}keys and values of {} tokens {}, \
             scratch {}, and the program {}",
            Bytes(self.given),
            Bytes(self.least()),
            self.least(),
            Bytes(self.dense_bytes),
            self.context_length,
            Bytes(self.kv_bytes),
            Bytes(self.scratch_bytes),
            Bytes(self.program_bytes),
        )
    }
}

impl std::error::Error for MemoryTooSmall {}

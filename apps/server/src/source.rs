//! Models that are opened when somebody asks for them: the seam to the program that knows where they are.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use nestling::{CancelToken, Model};

/// What lists models and opens them. Names come from the listing alone: no request names a path.
pub trait ModelSource: fmt::Debug + Send + Sync + 'static {
    /// All models that there are now. Called on a thread that may wait.
    fn list(&self) -> Vec<ListedModel>;

    /// Opens one of the list within `room` bytes of memory; none where nothing bounds it. Called on a thread that may
    /// wait, once at a time; a token that is cancelled ends it soon.
    ///
    /// # Errors
    /// Why it cannot be opened, for the client.
    fn open(
        &self,
        name: &str,
        room: Option<u64>,
        cancel: &CancelToken,
    ) -> Result<OpenedModel, OpenModelError>;
}

/// A model as it is listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// What clients call it.
    pub name: String,
    /// Bytes of its files.
    pub bytes: u64,
    /// When they were written, in seconds since 1970.
    pub created: u64,
    /// What they are, such as `gguf`.
    pub format: &'static str,
}

/// A model that was opened, with what must live as long.
pub struct OpenedModel {
    /// The model.
    pub model: Model,
    /// Locks and files; dropped after the model.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for OpenedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedModel").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Why a model could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpenModelError {
    /// What happened, for the client.
    pub message: String,
    /// Whether more memory would have helped: then it is tried again once idle models are closed.
    pub lacks_memory: bool,
}

/// How long models stay open, and what they may take together.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How long a model stays open that nobody asks; none is forever.
    pub keep_alive: Option<Duration>,
    /// Bytes of memory that all open models take together; none where nothing bounds them.
    pub memory_bytes: Option<u64>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { keep_alive: Some(Duration::from_secs(300)), memory_bytes: None }
    }
}

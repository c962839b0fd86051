//! Models that are opened on demand: the interface to the program that stores them.

use std::any::Any;
use std::fmt;
use std::time::Duration;

use nestling::{CancelToken, Model};

/// A collection of models that can be listed and opened. Requests contain names of the listing only, never
/// paths.
pub trait ModelSource: fmt::Debug + Send + Sync + 'static {
    /// Returns all available models. Called on a thread that may block.
    fn list(&self) -> Vec<ListedModel>;

    /// Opens a listed model within `room` bytes of memory, or without a bound. Called on a thread that may
    /// block; calls never overlap. Cancelling the token ends the call early.
    ///
    /// # Errors
    /// Returns the reason as text for the client.
    fn open(
        &self,
        name: &str,
        room: Option<u64>,
        cancel: &CancelToken,
    ) -> Result<OpenedModel, OpenModelError>;
}

/// A listed model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedModel {
    /// Name used by clients.
    pub name: String,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Modification time in seconds since 1970.
    pub created: u64,
    /// File format, such as `gguf`.
    pub format: &'static str,
}

/// An open model with the resources that it depends on.
pub struct OpenedModel {
    /// The model.
    pub model: Model,
    /// Locks and files, dropped after the model.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl fmt::Debug for OpenedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedModel").field("model", &self.model).finish_non_exhaustive()
    }
}

/// An error that occurred while opening a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpenModelError {
    /// Description for the client.
    pub message: String,
    /// True if more memory would help. Opening is then retried after idle models are closed.
    pub lacks_memory: bool,
}

/// Lifetime and memory budget of the models of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Time after which an unused model is closed; `None` means never.
    pub keep_alive: Option<Duration>,
    /// Total memory of all open models in bytes; `None` means unlimited.
    pub memory_bytes: Option<u64>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self { keep_alive: Some(Duration::from_secs(300)), memory_bytes: None }
    }
}

//! Errors of locating and downloading models, with advice.

use nestling_formats::InternalError;
use nestling_formats::store::StoreError;
use nestling_import::ImportError;
use std::io;
use std::path::{Path, PathBuf};

/// Result type of this crate.
pub type Result<T> = std::result::Result<T, HubError>;

/// An error message with optional advice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Description of the error, without the final full stop.
    pub message: String,
    /// Suggested action, without the final full stop.
    pub advice: Option<String>,
}

/// An error while locating, downloading or storing a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// General failure.
    #[error("{}", .0.message)]
    Failed(Explanation),
    /// Invalid request, independent of the network.
    #[error("{}", .0.message)]
    Usage(Explanation),
    /// Failed operation on a file.
    #[error("cannot {action} {}: {}", .path.display(), plain(.source))]
    File {
        /// Verb of the operation.
        action: &'static str,
        /// Path of the file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Store that cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Checkpoint or GGUF file that cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// Violated invariant of the program.
    #[error(transparent)]
    Internal(#[from] InternalError),
}

impl HubError {
    /// Creates a failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(Explanation { message: message.into(), advice: None })
    }

    /// Creates an error for an invalid request.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(Explanation { message: message.into(), advice: None })
    }

    /// Creates an error for a failed file operation.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.into(), source }
    }

    /// Returns the advice, if any.
    pub fn advice(&self) -> Option<&str> {
        match self {
            Self::Failed(explanation) | Self::Usage(explanation) => explanation.advice.as_deref(),
            _ => None,
        }
    }

    /// Adds advice. Errors of files and of other crates are returned unchanged.
    #[must_use]
    pub fn advise(mut self, text: impl Into<String>) -> Self {
        if let Self::Failed(explanation) | Self::Usage(explanation) = &mut self {
            explanation.advice = Some(text.into());
        }
        self
    }
}

/// Returns the message of an I/O error without the suffix `(os error N)`.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(&*text, |(text, _)| text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.kind().to_string(),
    }
}

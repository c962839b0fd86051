//! Why a model could not be brought here, with what to do about it.

use nestling_formats::InternalError;
use nestling_formats::store::StoreError;
use nestling_import::ImportError;
use std::io;
use std::path::{Path, PathBuf};

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, HubError>;

/// A sentence about what happened, and one about what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What happened, without the final stop.
    pub message: String,
    /// What to do about it, without the final stop.
    pub advice: Option<String>,
}

/// A model that cannot be found, fetched or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HubError {
    /// Something failed.
    #[error("{}", .0.message)]
    Failed(Explanation),
    /// What was asked for makes no sense, whatever the network says.
    #[error("{}", .0.message)]
    Usage(Explanation),
    /// The operating system refused.
    #[error("cannot {action} {}: {}", .path.display(), plain(.source))]
    File {
        /// What was tried.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A store that cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A checkpoint or a GGUF file that cannot be used.
    #[error(transparent)]
    Import(#[from] ImportError),
    /// A condition of the program itself that does not hold.
    #[error(transparent)]
    Internal(#[from] InternalError),
}

impl HubError {
    /// A failure that is described by a sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(Explanation { message: message.into(), advice: None })
    }

    /// A mistake of whoever asked.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(Explanation { message: message.into(), advice: None })
    }

    /// A failed operation on a file.
    pub fn file(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::File { action, path: path.into(), source }
    }

    /// What to do about it, where that is known here.
    pub fn advice(&self) -> Option<&str> {
        match self {
            Self::Failed(explanation) | Self::Usage(explanation) => explanation.advice.as_deref(),
            _ => None,
        }
    }

    /// Adds what to do about it; errors of files and of other crates keep their own.
    #[must_use]
    pub fn advise(mut self, text: impl Into<String>) -> Self {
        if let Self::Failed(explanation) | Self::Usage(explanation) = &mut self {
            explanation.advice = Some(text.into());
        }
        self
    }
}

/// The message of an I/O error without the `(os error N)` that only a programmer reads.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split_once(" (os error").map_or(&*text, |(text, _)| text);
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.kind().to_string(),
    }
}

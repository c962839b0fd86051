//! Errors.

use std::error::Error;
use std::{io, iter};

use nestling::{ConversationJsonError, EngineError, ErrorClass};

/// An error of the library. The variant is its class, and the message has the details.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, uniffi::Error)]
#[uniffi(flat_error)]
#[non_exhaustive]
pub enum NestlingError {
    /// Invalid arguments, or a prompt that is too long.
    #[error("{0}")]
    Caller(String),
    /// A requested GPU that does not exist on this device.
    #[error("{0}")]
    NoDevice(String),
    /// A handle that another call uses, or too many waiting generations.
    #[error("{0}")]
    Busy(String),
    /// Insufficient memory, pages or threads.
    #[error("{0}")]
    NoRoom(String),
    /// A cancelled call, or an engine that was shut down.
    #[error("{0}")]
    Stopped(String),
    /// A damaged or unreadable file.
    #[error("{0}")]
    Source(String),
    /// A file that does not exist.
    #[error("{0}")]
    MissingFile(String),
    /// A failure of the model, its device or the library.
    #[error("{0}")]
    Broken(String),
}

impl NestlingError {
    /// Creates an error for a handle that another call uses.
    pub(crate) fn in_use(what: &str) -> Self {
        Self::Busy(format!("another call uses this {what} at this moment"))
    }
}

impl From<EngineError> for NestlingError {
    fn from(error: EngineError) -> Self {
        let text = error.to_string();
        match error.class() {
            _ if matches!(error, EngineError::NoDevice(_)) => Self::NoDevice(text),
            ErrorClass::Caller => Self::Caller(text),
            ErrorClass::Busy => Self::Busy(text),
            ErrorClass::NoRoom => Self::NoRoom(text),
            ErrorClass::Stopped => Self::Stopped(text),
            ErrorClass::Source if is_missing(&error) => Self::MissingFile(text),
            ErrorClass::Source => Self::Source(text),
            _ => Self::Broken(text),
        }
    }
}

impl From<ConversationJsonError> for NestlingError {
    fn from(error: ConversationJsonError) -> Self {
        Self::Caller(error.to_string())
    }
}

/// An error of a listener, which ends the work that it hears of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, uniffi::Error)]
pub enum ListenerError {
    /// A request to stop. The call fails with `Stopped` and the reason.
    #[error("{reason}")]
    Stop {
        /// Message of the error.
        reason: String,
    },
    /// Any other exception. The call fails with `Caller` and the reason.
    #[error("the listener failed: {reason}")]
    Unexpected {
        /// Text of the exception.
        reason: String,
    },
}

impl From<uniffi::UnexpectedUniFFICallbackError> for ListenerError {
    fn from(error: uniffi::UnexpectedUniFFICallbackError) -> Self {
        Self::Unexpected { reason: error.reason }
    }
}

impl From<ListenerError> for NestlingError {
    fn from(error: ListenerError) -> Self {
        let text = error.to_string();
        match error {
            ListenerError::Stop { .. } => Self::Stopped(text),
            ListenerError::Unexpected { .. } => Self::Caller(text),
        }
    }
}

/// Returns true if the first error of the operating system in the chain of sources is a missing file.
fn is_missing(error: &EngineError) -> bool {
    let first: Option<&(dyn Error + 'static)> = Some(error);
    let mut chain = iter::successors(first, |error| (**error).source());
    let system = chain.find_map(|error| error.downcast_ref::<io::Error>());
    system.is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
}

//! Errors, raised as exceptions of `nestling`.

use std::any::Any;
use std::error::Error;
use std::{io, iter};

use nestling::{ConversationJsonError, EngineError, ErrorClass};
use pyo3::prelude::*;
use pyo3::types::PyType;

#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of `nestling`, with the name of its class there.
    Told { class: &'static str, text: String },
    /// An error of the operating system, with its number.
    System { class: &'static str, text: String, errno: i32 },
    /// What Python raised meanwhile: an interrupt, or an error of a callback.
    Raised(PyErr),
}

impl Failure {
    /// Creates an error for invalid arguments.
    pub(crate) fn caller(text: impl Into<String>) -> Self {
        Self::Told { class: "CallerError", text: text.into() }
    }

    /// Creates an error for a handle that another thread is using.
    pub(crate) fn in_use(what: &str) -> Self {
        let text = format!("another thread uses this {what} at this moment");
        Self::Told { class: "BusyError", text }
    }

    pub(crate) fn no_room(text: String) -> Self {
        Self::Told { class: "NoRoomError", text }
    }

    /// Creates an error for a failed file or server.
    pub(crate) fn source(text: String) -> Self {
        Self::Told { class: "SourceError", text }
    }

    pub(crate) fn closed(what: &str) -> Self {
        Self::caller(format!("this {what} is closed"))
    }

    /// Creates an error for a handle of the parent process, used after fork().
    pub(crate) fn forked(what: &str) -> Self {
        let text =
            format!("this {what} belongs to the parent process; open the model again after fork()");
        Self::Told { class: "StoppedError", text }
    }

    /// Creates an error for an interpreter that is shutting down.
    pub(crate) fn ends() -> Self {
        Self::Told { class: "StoppedError", text: "the interpreter ends".into() }
    }

    pub(crate) fn panicked(payload: &(dyn Any + Send)) -> Self {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        // Default: a panic payload of another type has no message.
        let text = format!("the library panicked: {}", words.unwrap_or("without words"));
        Self::Told { class: "BrokenError", text }
    }

    pub(crate) fn raise(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Told { class, text } => match class_of(py, class) {
                Ok(class) => PyErr::from_type(class, (text,)),
                Err(error) => error,
            },
            Self::System { class, text, errno } => match class_of(py, class) {
                Ok(class) => with_errno(py, PyErr::from_type(class, (text,)), errno),
                Err(error) => error,
            },
        }
    }
}

/// Sets `errno`, which `OSError` has only from constructors whose message is another one.
fn with_errno(py: Python<'_>, error: PyErr, errno: i32) -> PyErr {
    match error.value(py).setattr("errno", errno) {
        Ok(()) => error,
        Err(failed) => failed,
    }
}

/// Returns the first error of the operating system in a chain of sources.
fn system_error(error: &EngineError) -> Option<&io::Error> {
    let first: Option<&(dyn Error + 'static)> = Some(error);
    let mut chain = iter::successors(first, |error| (**error).source());
    chain.find_map(|error| error.downcast_ref::<io::Error>())
}

fn class_of<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    Ok(py.import("nestling._errors")?.getattr(name)?.cast_into::<PyType>()?)
}

impl From<ConversationJsonError> for Failure {
    fn from(error: ConversationJsonError) -> Self {
        Self::caller(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let class = match error.class() {
            _ if matches!(error, EngineError::NoDevice(_)) => "NoDeviceError",
            ErrorClass::Caller => "CallerError",
            ErrorClass::Busy => "BusyError",
            ErrorClass::NoRoom => "NoRoomError",
            ErrorClass::Stopped => "StoppedError",
            ErrorClass::Source => return source(&error),
            _ => "BrokenError",
        };
        Self::Told { class, text: error.to_string() }
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

fn source(error: &EngineError) -> Failure {
    let (text, system) = (error.to_string(), system_error(error));
    let Some(errno) = system.and_then(io::Error::raw_os_error) else {
        return Failure::source(text);
    };
    let is_missing = system.is_some_and(|error| error.kind() == io::ErrorKind::NotFound);
    let class = if is_missing { "MissingFileError" } else { "SourceError" };
    Failure::System { class, text, errno }
}

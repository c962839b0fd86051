//! Errors of parsing and rendering.

use std::time::Duration;

use thiserror::Error;

/// An error of parsing or rendering a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {kind}")]
pub struct TemplateError {
    /// Line of the template, from 1; 0 if the error has no line.
    pub line: usize,
    /// Kind of the error.
    pub kind: TemplateErrorKind,
}

/// Kind of a template error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateErrorKind {
    /// A syntax error, or a template that exceeds the size or nesting limit.
    #[error("{0}")]
    Syntax(String),
    /// An operation that failed on its operands.
    #[error("{0}")]
    Failed(String),
    /// An error that the template itself raised (`raise_exception`).
    #[error("refused by the template: {0}")]
    Refused(String),
    /// The work limit was exceeded.
    #[error("exceeded the limit of {limit} units of work")]
    Work {
        /// The limit in units of work.
        limit: u64,
    },
    /// The memory limit was exceeded.
    #[error("more than {limit} bytes of memory")]
    Memory {
        /// The limit in bytes.
        limit: usize,
    },
    /// A text or the output exceeded the length limit.
    #[error("a text of more than {limit} bytes")]
    Text {
        /// The limit in bytes.
        limit: usize,
    },
    /// The time limit was exceeded.
    #[error("more than {limit:?}")]
    Deadline {
        /// The time limit.
        limit: Duration,
    },
    /// The caller cancelled the rendering.
    #[error("cancelled")]
    Cancelled,
}

/// An error before its line is known.
#[derive(Debug)]
pub(crate) enum Fault {
    Failed(String),
    Refused(String),
    Work,
    Memory,
    Text,
    Deadline,
    Cancelled,
}

impl Fault {
    pub(crate) fn failed(why: impl Into<String>) -> Self {
        Self::Failed(why.into())
    }

    /// Reports a broken invariant of the interpreter. `what` is a clause. Panics if debug assertions are
    /// enabled.
    #[cold]
    pub(crate) fn broken(what: &'static str) -> Self {
        debug_assert!(false, "violated invariant: {what}");
        Self::Failed(format!("internal error: violated invariant: {what}"))
    }
}

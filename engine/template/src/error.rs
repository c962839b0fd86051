//! Why a template was not parsed or not rendered.

use std::time::Duration;

use thiserror::Error;

/// A template that was not parsed or not rendered.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("line {line}: {kind}")]
pub struct TemplateError {
    /// Line of the template, from 1; 0 where the error belongs to none.
    pub line: usize,
    /// What happened.
    pub kind: TemplateErrorKind,
}

/// What ended the parsing or the rendering of a template.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateErrorKind {
    /// The template does not parse, or is larger or nested deeper than is accepted.
    #[error("{0}")]
    Syntax(String),
    /// An operation failed on these values.
    #[error("{0}")]
    Failed(String),
    /// The template itself refused (`raise_exception`).
    #[error("refused by the template: {0}")]
    Refused(String),
    /// More work than allowed.
    #[error("more than {limit} units of work")]
    Work {
        /// The limit.
        limit: u64,
    },
    /// More memory than allowed.
    #[error("more than {limit} bytes of memory")]
    Memory {
        /// The limit.
        limit: usize,
    },
    /// A text or the output is longer than allowed.
    #[error("a text of more than {limit} bytes")]
    Text {
        /// The limit.
        limit: usize,
    },
    /// The time is over.
    #[error("more than {limit:?}")]
    Deadline {
        /// The time that was allowed.
        limit: Duration,
    },
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
}

/// An error whose line is not known yet.
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

    /// A condition of the interpreter itself that does not hold, as a clause; a panic where debug assertions are on.
    #[cold]
    pub(crate) fn broken(what: &'static str) -> Self {
        debug_assert!(false, "it does not hold that {what}");
        Self::Failed(format!("internal error: it does not hold that {what}"))
    }
}

//! Errors of guides.

use thiserror::Error;

use crate::limits::REASON_CHARS_MAX;

/// An error of compiling a guide.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GuideError {
    /// A limit was exceeded.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit {
        /// Name of the limited quantity.
        what: &'static str,
        /// The maximum.
        limit: u64,
        /// The requested amount.
        found: u64,
    },
    /// A schema that is not JSON, a grammar with an error of syntax, or an invalid option.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// Invalid part.
        what: String,
        /// Description of a valid value.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// A schema with a keyword, or a grammar with an element, that cannot be enforced.
    #[error("{place}: {reason}")]
    Unsupported {
        /// Location, as a JSON pointer into a schema or a line of a grammar.
        place: String,
        /// Reason.
        reason: String,
    },
    /// A schema for which no value is valid.
    #[error("no value is valid for the schema: {reason}")]
    Unsatisfiable {
        /// Location of the contradiction, as far as known.
        reason: String,
    },
    /// A grammar that cannot be compiled.
    #[error("{what} cannot be compiled: {reason}")]
    NotCompiled {
        /// Kind of grammar.
        what: &'static str,
        /// Message of the grammar engine.
        reason: String,
    },
    /// An unsupported vocabulary: its tokens do not map to bytes, or it is too large.
    #[error("the model's vocabulary: {reason}")]
    Vocabulary {
        /// Reason.
        reason: String,
    },
    /// A model whose syntax of tool calls cannot be constrained.
    #[error("tool calls cannot be constrained: {reason}")]
    ToolCalls {
        /// Reason.
        reason: String,
    },
}

impl GuideError {
    pub(crate) fn check(what: &'static str, found: usize, limit: usize) -> Result<(), Self> {
        match found <= limit {
            true => Ok(()),
            false => Err(Self::Limit { what, limit: limit as u64, found: found as u64 }),
        }
    }

    pub(crate) fn not_compiled(what: &'static str, reason: &str) -> Self {
        Self::NotCompiled { what, reason: in_one_line(reason) }
    }
}

/// Reduces a message of the grammar engine to one line: removes its internal state and keeps only the error
/// of a regular expression's diagnostic.
fn in_one_line(reason: &str) -> String {
    // The engine appends its state, which is useless to the author of the grammar.
    let ends = ["\n<non-verbose/>", "\n<backtrace>", "\n  while processing"];
    let end = ends.iter().filter_map(|mark| reason.find(mark)).min();
    let reason = &reason[..end.unwrap_or(reason.len())];
    let mut lines = reason.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = lines.clone().find_map(|line| line.strip_prefix("error: "));
    let line = said.or_else(|| lines.next());
    // Default: an empty message.
    let line = line.unwrap_or_default();
    line.chars().filter(|c| !c.is_control()).take(REASON_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line() {
        let parse =
            "regex parse error:\n    a(\n     ^\nerror: unclosed group\n<non-verbose/>\nstate";
        for (reason, wanted) in [
            (parse, "unclosed group"),
            ("Unsatisfiable schema: x\n  while processing #/$defs/d0", "Unsatisfiable schema: x"),
            ("a\u{1b}[31m", "a[31m"),
            ("", ""),
        ] {
            let error = GuideError::not_compiled("the schema", reason);
            let GuideError::NotCompiled { reason, .. } = error else { panic!("{error}") };
            assert_eq!(reason, wanted);
        }
    }
}

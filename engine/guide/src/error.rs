//! What can be wrong with what an answer is asked to look like.

use thiserror::Error;

use crate::limits::REASON_CHARS_MAX;

/// Why there is no guide.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GuideError {
    /// More than a limit allows.
    #[error("{what}: {found} is over the limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The most that is possible.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// A schema that is no JSON, or an option that makes no sense.
    #[error("{what}: expected {expected}, found {found}")]
    Invalid {
        /// Which part.
        what: String,
        /// What would have been right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A schema with something that answers cannot be kept to.
    #[error("{place}: {reason}")]
    Unsupported {
        /// Where, as a JSON pointer.
        place: String,
        /// What.
        reason: String,
    },
    /// A schema that no value is valid for.
    #[error("no value is valid for the schema: {reason}")]
    Unsatisfiable {
        /// Where it contradicts itself, as far as is known.
        reason: String,
    },
    /// The grammar cannot be compiled.
    #[error("{what} cannot be compiled: {reason}")]
    NotCompiled {
        /// What kind of grammar.
        what: &'static str,
        /// Why, in the words of the grammar engine.
        reason: String,
    },
    /// A vocabulary whose tokens have no bytes of their own, or is too large.
    #[error("the model's vocabulary: {reason}")]
    Vocabulary {
        /// What is wrong with it.
        reason: String,
    },
    /// A model that does not write tool calls so that they could be constrained.
    #[error("tool calls cannot be constrained: {reason}")]
    ToolCalls {
        /// Why.
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

/// The words of the grammar engine in one line: without its state, and of a picture of where a regular expression is
/// wrong what is wrong.
fn in_one_line(reason: &str) -> String {
    // The engine appends its state, which says nothing to whoever wrote the grammar.
    let ends = ["\n<non-verbose/>", "\n<backtrace>", "\n  while processing"];
    let end = ends.iter().filter_map(|mark| reason.find(mark)).min();
    let reason = &reason[..end.unwrap_or(reason.len())];
    let mut lines = reason.lines().map(str::trim).filter(|line| !line.is_empty());
    let said = lines.clone().find_map(|line| line.strip_prefix("error: "));
    let line = said.or_else(|| lines.next());
    // Default: the engine has said nothing.
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

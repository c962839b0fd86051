//! Conditions that cannot fail unless the program itself is wrong.
//!
//! A broken invariant panics if debug assertions are on, hence in every test. Otherwise it becomes an
//! [`InternalError`] with file, line and condition, never a default value that would silently corrupt
//! results. Conditions that input can violate are typed errors, not invariants.

use std::panic::Location;

/// A violated invariant of the program itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error at {file}:{line}: violated invariant: {what}")]
pub struct InternalError {
    /// The source file that states the condition.
    pub file: &'static str,
    /// Line number in that file.
    pub line: u32,
    /// The condition, as a clause such as "every row has a page".
    pub what: &'static str,
}

impl InternalError {
    /// Returns the error for a condition that the caller found violated. Panics if debug assertions are on.
    #[cold]
    #[track_caller]
    pub fn new(what: &'static str) -> Self {
        debug_assert!(false, "violated invariant: {what}");
        Self::at(Location::caller(), what)
    }

    fn at(place: &'static Location<'static>, what: &'static str) -> Self {
        Self { file: place.file(), line: place.line(), what }
    }
}

/// Extraction of values that exist unless the program has a bug.
pub trait Invariant {
    /// Type of the extracted value.
    type Value;

    /// Returns the value; `what` is the condition that guarantees it.
    ///
    /// # Errors
    /// [`InternalError`] if there is no value; panics instead if debug assertions are on.
    fn invariant(self, what: &'static str) -> Result<Self::Value, InternalError>;
}

impl<T> Invariant for Option<T> {
    type Value = T;

    #[inline]
    #[track_caller]
    fn invariant(self, what: &'static str) -> Result<T, InternalError> {
        match self {
            Some(value) => Ok(value),
            None => Err(InternalError::new(what)),
        }
    }
}

impl<T, E> Invariant for Result<T, E> {
    type Value = T;

    #[inline]
    #[track_caller]
    fn invariant(self, what: &'static str) -> Result<T, InternalError> {
        self.ok().invariant(what)
    }
}

/// Returns an [`InternalError`] from the function, converted by `?`, unless a condition holds:
/// `invariant!(rows <= cols, "a matrix is wide")`. Panics if debug assertions are on.
#[macro_export]
macro_rules! invariant {
    ($condition:expr, $what:literal) => {
        if !$condition {
            Err($crate::InternalError::new($what))?;
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halved(number: u32) -> Result<u32, InternalError> {
        crate::invariant!(number.is_multiple_of(2), "the number is even");
        (number / 2).checked_sub(1).invariant("the number is at least two")
    }

    /// Returns the result of a call, or its panic message as the error.
    fn outcome(number: u32) -> Result<u32, String> {
        match std::panic::catch_unwind(|| halved(number)) {
            Ok(found) => found.map_err(|error| error.to_string()),
            Err(panic) => Err(panic.downcast_ref::<String>().unwrap().clone()),
        }
    }

    #[test]
    fn a_broken_invariant_is_told_by_its_condition() {
        assert_eq!(outcome(4), Ok(1));
        assert!(outcome(3).unwrap_err().ends_with("violated invariant: the number is even"));
        assert!(
            outcome(0).unwrap_err().ends_with("violated invariant: the number is at least two")
        );
    }

    #[test]
    fn the_error_names_where_the_condition_is_stated() {
        let error = InternalError::at(Location::caller(), "one is two");
        assert!(error.file.ends_with("invariant.rs") && error.line > 80, "{error:?}");
        let text = format!("internal error at {}:{}: ", error.file, error.line);
        assert_eq!(error.to_string(), text + "violated invariant: one is two");
    }
}

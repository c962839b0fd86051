//! Conditions that cannot fail unless the program itself is wrong.
//!
//! A broken one is loud: it panics where debug assertions are on, so in every test, and elsewhere it
//! is an [`InternalError`] that names file, line and condition. It is never a default value, with
//! which wrong numbers would go on unnoticed. What input can cause is no invariant but a typed error.

use std::panic::Location;

/// A condition of the program itself that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error at {file}:{line}: it does not hold that {what}")]
pub struct InternalError {
    /// The source file that states the condition.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// The condition, as a clause such as "every row has a page".
    pub what: &'static str,
}

impl InternalError {
    /// The error of a condition of the caller that does not hold; a panic where debug assertions are
    /// on.
    #[cold]
    #[track_caller]
    pub fn new(what: &'static str) -> Self {
        debug_assert!(false, "it does not hold that {what}");
        Self::at(Location::caller(), what)
    }

    fn at(place: &'static Location<'static>, what: &'static str) -> Self {
        Self { file: place.file(), line: place.line(), what }
    }
}

/// Values that are there unless the program itself is wrong.
pub trait Invariant {
    /// What is there.
    type Value;

    /// The value; `what` is the condition by which there is one.
    ///
    /// # Errors
    /// [`InternalError`] if there is none; a panic where debug assertions are on.
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

/// Returns an [`InternalError`] from the function, as whatever it becomes with `?`, unless a
/// condition holds: `invariant!(rows <= cols, "a matrix is wide")`. It panics where debug assertions
/// are on.
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

    /// What a call panics with, or what it returns.
    fn outcome(number: u32) -> Result<u32, String> {
        match std::panic::catch_unwind(|| halved(number)) {
            Ok(found) => found.map_err(|error| error.to_string()),
            Err(panic) => Err(panic.downcast_ref::<String>().unwrap().clone()),
        }
    }

    #[test]
    fn a_broken_invariant_is_told_by_its_condition() {
        assert_eq!(outcome(4), Ok(1));
        assert!(outcome(3).unwrap_err().ends_with("it does not hold that the number is even"));
        assert!(outcome(0).unwrap_err().ends_with("that the number is at least two"));
    }

    #[test]
    fn the_error_names_where_the_condition_is_stated() {
        let error = InternalError::at(Location::caller(), "one is two");
        assert!(error.file.ends_with("invariant.rs") && error.line > 80, "{error:?}");
        let text = format!("internal error at {}:{}: ", error.file, error.line);
        assert_eq!(error.to_string(), text + "it does not hold that one is two");
    }
}

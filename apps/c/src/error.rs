//! Status codes and errors.
#![expect(unsafe_code, reason = "functions that C calls")]

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use nestling::{ConversationJsonError, EngineError, ErrorClass};

use crate::text::c_text;

/// Status of a call. Each status except NESTLING_STATUS_OK comes with an error, if the caller requested one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum NestlingStatus {
    /// Success.
    Ok = 0,
    /// Invalid or too long arguments; the same call fails again.
    Caller = 1,
    /// Later, it may work.
    Busy = 2,
    /// Memory, pages or threads are not enough: less may work, or more of them.
    NoRoom = 3,
    /// Cancelled, or the engine was shut down.
    Stopped = 4,
    /// Damaged, missing or unsuitable file, or a failing disk.
    Source = 5,
    /// The model, its device or the library itself: open the model again, and report it.
    Broken = 6,
}

/// Reason for the failure of a call.
#[derive(Debug)]
pub struct NestlingError {
    status: NestlingStatus,
    text: CString,
}

/// Returns the class of an error, or NESTLING_STATUS_OK for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_error_status(error: Option<&NestlingError>) -> NestlingStatus {
    error.map_or(NestlingStatus::Ok, |error| error.status)
}

/// Returns the text of an error in UTF-8, which lives as long as the error. Returns "" for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_error_text(error: Option<&NestlingError>) -> *const c_char {
    error.map_or(c"".as_ptr(), |error| error.text.as_ptr())
}

/// Frees an error; nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_error_free(error: Option<Box<NestlingError>>) {
    quietly(|| drop(error));
}

/// Failure of a call, before it is written to the caller's error.
#[derive(Debug)]
pub(crate) struct Failure {
    status: NestlingStatus,
    text: String,
}

impl Failure {
    pub(crate) fn new(status: NestlingStatus, text: impl Into<String>) -> Self {
        Self { status, text: text.into() }
    }

    /// Creates a failure for invalid arguments.
    pub(crate) fn caller(text: impl Into<String>) -> Self {
        Self { status: NestlingStatus::Caller, text: text.into() }
    }

    /// A handle that another thread works with at this moment.
    pub(crate) fn in_use(what: &str) -> Self {
        let text = format!("another thread uses this {what} at this moment");
        Self { status: NestlingStatus::Busy, text }
    }

    fn panicked(payload: &(dyn Any + Send)) -> Self {
        let words = payload.downcast_ref::<&str>().copied();
        let words = words.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        // Default: a payload of another type has no words.
        let text = format!("the library panicked: {}", words.unwrap_or("without words"));
        Self { status: NestlingStatus::Broken, text }
    }
}

impl From<ConversationJsonError> for Failure {
    fn from(error: ConversationJsonError) -> Self {
        Self::caller(error.to_string())
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        let status = match error.class() {
            ErrorClass::Caller => NestlingStatus::Caller,
            ErrorClass::Busy => NestlingStatus::Busy,
            ErrorClass::NoRoom => NestlingStatus::NoRoom,
            ErrorClass::Stopped => NestlingStatus::Stopped,
            ErrorClass::Source => NestlingStatus::Source,
            _ => NestlingStatus::Broken,
        };
        Self { status, text: error.to_string() }
    }
}

/// Does what cannot fail, such as freeing a handle. A panic ends there.
pub(crate) fn quietly(work: impl FnOnce()) {
    let _ = catch_unwind(AssertUnwindSafe(work));
}

/// Does the work of a call. A panic is an error, and an error is put where the caller wants it, else NULL.
///
/// # Safety
/// `error` is NULL, or a pointer can be written there.
pub(crate) unsafe fn call(
    error: *mut *mut NestlingError,
    work: impl FnOnce() -> Result<(), Failure>,
) -> NestlingStatus {
    let done = catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|payload| Err(Failure::panicked(payload.as_ref())));
    let (status, told) = match done {
        Ok(()) => (NestlingStatus::Ok, ptr::null_mut()),
        Err(failure) => {
            let text = c_text(failure.text);
            let told = NestlingError { status: failure.status, text };
            (failure.status, Box::into_raw(Box::new(told)))
        }
    };
    if error.is_null() {
        if !told.is_null() {
            // SAFETY: it was made by `Box::into_raw` above, and nobody else has it.
            drop(unsafe { Box::from_raw(told) });
        }
    } else {
        // SAFETY: the caller says that a pointer can be written there.
        unsafe { error.write(told) };
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    fn words(error: *mut NestlingError) -> String {
        // SAFETY: what a call that failed has written.
        let error = unsafe { Box::from_raw(error) };
        // SAFETY: a text of the error, which is still there.
        let text = unsafe { CStr::from_ptr(nestling_error_text(Some(&error))) };
        text.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_error_with_its_words() {
        let mut error = ptr::null_mut();
        // SAFETY: a pointer can be written to `error`.
        let status = unsafe { call(&raw mut error, || panic!("at plane {}", 3)) };
        assert_eq!(status, NestlingStatus::Broken);
        assert_eq!(words(error), "the library panicked: at plane 3");
        quietly(|| panic!("unheard"));
        // SAFETY: nobody asks for the error.
        let status = unsafe { call(ptr::null_mut(), || panic!("nobody asked")) };
        assert_eq!(status, NestlingStatus::Broken);
    }

    #[test]
    fn an_error_is_null_where_all_went_well_and_has_no_zero_within() {
        let mut error = ptr::dangling_mut();
        // SAFETY: a pointer can be written to `error`.
        assert_eq!(unsafe { call(&raw mut error, || Ok(())) }, NestlingStatus::Ok);
        assert!(error.is_null());
        // SAFETY: as above.
        unsafe { call(&raw mut error, || Err(Failure::caller("a\0b"))) };
        assert_eq!(words(error), "a\u{fffd}b");
    }
}

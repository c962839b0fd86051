//! Cancel tokens.
#![expect(unsafe_code, reason = "functions that C calls")]

use nestling::CancelToken;

use crate::error::quietly;

/// A cancel token for openings of models and for generations. Any thread may use it, any number of times. It stays
/// cancelled.
#[derive(Debug, Default)]
pub struct NestlingCancel {
    pub(crate) token: CancelToken,
}

/// A token that is not cancelled. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_cancel_new() -> Box<NestlingCancel> {
    Box::new(NestlingCancel::default())
}

/// Cancels; returns at once. Nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_cancel_cancel(cancel: Option<&NestlingCancel>) {
    if let Some(cancel) = cancel {
        quietly(|| cancel.token.cancel());
    }
}

/// Frees a cancel token, which then cancels nothing. NULL is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_cancel_free(cancel: Option<Box<NestlingCancel>>) {
    quietly(|| drop(cancel));
}

//! Cancel tokens.
#![expect(unsafe_code, reason = "functions that C calls")]

use nestling::CancelToken;

use crate::error::quietly;

/// Stops what it was given to: the opening of a model, a generation. It may be used from any thread and any number of
/// times, and stays cancelled.
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

/// Frees a token; what it was given to can no longer be cancelled by it. Nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_cancel_free(cancel: Option<Box<NestlingCancel>>) {
    quietly(|| drop(cancel));
}

//! Tokens of texts, and texts of tokens.
#![expect(unsafe_code, reason = "functions that C calls")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::c_char;

use nestling::engine::text::{EncodeOptions, Tokenizer};
use nestling::{EngineError, SpecialText};

use crate::error::{Failure, NestlingError, NestlingStatus, call, quietly};
use crate::given::{self, put, require};
use crate::model::NestlingModel;
use crate::session::NestlingBytes;

/// Tokens that the library returned; freed with nestling_tokens_free.
#[derive(Debug)]
pub struct NestlingTokens {
    tokens: Vec<u32>,
}

/// Returns the token ids, which belong to the handle.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_tokens_data(tokens: Option<&NestlingTokens>) -> *const u32 {
    tokens.map_or(std::ptr::null(), |tokens| tokens.tokens.as_ptr())
}

/// Returns the number of tokens.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_tokens_length(tokens: Option<&NestlingTokens>) -> usize {
    // Default: NULL has no tokens.
    tokens.map_or(0, |tokens| tokens.tokens.len())
}

/// Frees tokens; nothing for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_tokens_free(tokens: Option<Box<NestlingTokens>>) {
    quietly(|| drop(tokens));
}

fn tokenizer(model: &NestlingModel) -> Result<&Tokenizer, Failure> {
    Ok(model.model.tokenizer().ok_or(EngineError::NoTokenizer)?)
}

/// Encodes `length` bytes of UTF-8, which may contain zero bytes. With `add_special` not 0 the tokens that the model
/// expects before a text are added; with `parse_special` not 0 the texts of special tokens become these tokens.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_encode(
    model: Option<&NestlingModel>,
    text: *const c_char,
    length: usize,
    add_special: u32,
    parse_special: u32,
    tokens: *mut *mut NestlingTokens,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        let model = require("model", model)?;
        // SAFETY: as the caller says.
        let bytes = unsafe { given::slice("text", text.cast::<u8>(), length) }?;
        let text = std::str::from_utf8(bytes);
        let text = text.map_err(|error| Failure::caller(format!("text: {error}")))?;
        let special_text = match parse_special {
            0 => SpecialText::Plain,
            _ => SpecialText::Parse,
        };
        let options = EncodeOptions { add_special_tokens: add_special != 0, special_text };
        let tokens = tokenizer(model)?.encode(text, options).map_err(EngineError::text)?;
        Ok(NestlingTokens { tokens })
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("tokens", tokens, make)) }
}

/// Decodes tokens to UTF-8, without a zero at the end. Special tokens are left out unless `keep_special` is not 0. Bytes
/// that are no UTF-8 become U+FFFD. A token outside the vocabulary is NESTLING_STATUS_CALLER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_decode(
    model: Option<&NestlingModel>,
    tokens: *const u32,
    count: usize,
    keep_special: u32,
    bytes: *mut *mut NestlingBytes,
    error: *mut *mut NestlingError,
) -> NestlingStatus {
    let make = || {
        let model = require("model", model)?;
        // SAFETY: as the caller says.
        let tokens = unsafe { given::slice("tokens", tokens, count) }?;
        let text = tokenizer(model)?.decode(tokens, keep_special != 0);
        Ok(NestlingBytes::new(text.map_err(EngineError::text)?.into_bytes()))
    };
    // SAFETY: as the caller says of every pointer.
    unsafe { call(error, || put("bytes", bytes, make)) }
}

/// Returns the bytes of one token, such as one of `top`, possibly part of a character. They do not end with a zero, and
/// belong to the model. NULL and a length of 0 for a token outside the vocabulary, and for all tokens of a vocabulary whose
/// tokens have no bytes of their own. `length` must not be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_model_token_bytes(
    model: Option<&NestlingModel>,
    token: u32,
    length: *mut usize,
) -> *const u8 {
    let found = model.and_then(|model| tokenizer(model).ok()?.token_bytes(token));
    if !length.is_null() {
        // Default: a token without bytes has a length of 0.
        // SAFETY: not NULL, so a number can be written there, as the caller says.
        unsafe { length.write(found.map_or(0, <[u8]>::len)) };
    }
    found.map_or(std::ptr::null(), <[u8]>::as_ptr)
}

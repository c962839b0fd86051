//! Texts for C.
#![expect(unsafe_code, reason = "C frees texts")]
#![expect(
    clippy::missing_safety_doc,
    reason = "the header's introduction says what callers promise"
)]

use std::ffi::{CString, c_char};

/// Frees a text or bytes that the library gave; nothing for NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nestling_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: the library gives texts by `CString::into_raw` alone, and they are freed once.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// A text for C. A zero in it, which no text of C can have, becomes U+FFFD.
pub(crate) fn c_text(text: String) -> CString {
    let text = if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text };
    // Default: no zero is left in it.
    CString::new(text).unwrap_or_default()
}

//! Which library this is.
#![expect(unsafe_code, reason = "a function that C calls")]

use std::ffi::{CStr, c_char};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(version) => version,
        Err(_) => c"",
    };

/// The library's version, such as "0.1.0". It belongs to the library.
#[unsafe(no_mangle)]
pub extern "C" fn nestling_version() -> *const c_char {
    VERSION.as_ptr()
}

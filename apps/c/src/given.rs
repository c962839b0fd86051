//! Arguments from C: texts, lists, and places for handles.
#![expect(unsafe_code, reason = "texts and lists of C are read")]

use std::ffi::{CStr, c_char};

use crate::error::Failure;
use crate::owner::{self, HasOwner};

/// A text that must be there.
///
/// # Safety
/// NULL, or a text that ends with a zero and is not changed meanwhile.
pub(crate) unsafe fn text<'a>(name: &str, text: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: as the caller says.
    let found = unsafe { optional(name, text) }?;
    found.ok_or_else(|| Failure::caller(format!("{name} is NULL")))
}

/// A text that may be absent.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional<'a>(
    name: &str,
    text: *const c_char,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not NULL, so as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|error| Failure::caller(format!("{name}: {error}")))?;
    Ok(Some(text))
}

/// A list of texts.
///
/// # Safety
/// `count` pointers as for [`text`] at `list`, or none at all.
pub(crate) unsafe fn texts(
    name: &str,
    list: *const *const c_char,
    count: usize,
) -> Result<Vec<String>, Failure> {
    // SAFETY: as the caller says.
    let list = unsafe { slice(name, list, count) }?;
    // SAFETY: as the caller says.
    list.iter().map(|one| unsafe { text(name, *one) }.map(str::to_owned)).collect()
}

/// A list of values.
///
/// # Safety
/// `count` values at `list`, which are not changed meanwhile; or none at all.
pub(crate) unsafe fn slice<'a, T>(
    name: &str,
    list: *const T,
    count: usize,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
    if list.is_null() || bytes.is_none() {
        return Err(Failure::caller(format!("{name}: {count} of them at {list:p}")));
    }
    // SAFETY: not NULL and of a size that can be, so as the caller says.
    Ok(unsafe { std::slice::from_raw_parts(list, count) })
}

/// A handle that must be there and belong to this process.
pub(crate) fn require<'a, T: HasOwner>(
    name: &str,
    handle: Option<&'a T>,
) -> Result<&'a T, Failure> {
    let handle = handle.ok_or_else(|| Failure::caller(format!("{name} is NULL")))?;
    owner::check(handle)?;
    Ok(handle)
}

/// Puts a handle where the caller wants it: NULL where it is not made.
///
/// # Safety
/// NULL, or a pointer can be written there.
pub(crate) unsafe fn put<T>(
    name: &str,
    to: *mut *mut T,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::caller(format!("{name} is NULL")));
    }
    // SAFETY: not NULL, so a pointer can be written there.
    unsafe { to.write(std::ptr::null_mut()) };
    let made = Box::into_raw(Box::new(make()?));
    // SAFETY: as above.
    unsafe { to.write(made) };
    Ok(())
}

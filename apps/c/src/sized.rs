//! Structs that may grow: each begins with its own size, as the caller's header has it.
#![expect(unsafe_code, reason = "structs of C are read and written")]

use crate::error::Failure;

/// A struct whose first field, a `usize` named `size`, says how much of it the caller knows.
///
/// # Safety
/// `repr(C)`, with that field first, and every bit pattern of the fields after it is a value.
pub(crate) unsafe trait Growing: Copy {
    /// What the fields are that the caller does not know.
    fn unset() -> Self;
}

/// The options at `from`; those that are NULL are unset.
///
/// # Safety
/// NULL, or as many bytes can be read there as its first field says.
pub(crate) unsafe fn read<T: Growing>(name: &str, from: *const T) -> Result<T, Failure> {
    let mut options = T::unset();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the size comes first, and is there as the caller says.
    let size = unsafe { from.cast::<usize>().read() };
    let whole = size_of::<T>();
    if !(size_of::<usize>()..=whole).contains(&size) {
        return Err(Failure::caller(format!(
            "{name}: their size is {size}, and this library knows {whole} bytes: set it with their _init function"
        )));
    }
    // SAFETY: `size` bytes can be read as the caller says, and `options` has at least as many; every bit pattern is
    // a value.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut options).cast::<u8>(), size);
    }
    Ok(options)
}

/// Writes as much of `value` as the caller knows, the size left as it is.
///
/// # Safety
/// NULL, or as many bytes can be written there as its first field says.
pub(crate) unsafe fn write<T: Growing>(name: &str, to: *mut T, value: &T) -> Result<(), Failure> {
    if to.is_null() {
        return Err(Failure::caller(format!("{name} is NULL")));
    }
    let first = size_of::<usize>();
    // SAFETY: the size comes first, and is there as the caller says.
    let size = unsafe { to.cast::<usize>().read() };
    if size < first {
        return Err(Failure::caller(format!("{name}: its size is {size}: set it to sizeof")));
    }
    let known = size.min(size_of::<T>()) - first;
    // SAFETY: `known` bytes after the first field are within both, as the caller says of `to`.
    unsafe {
        let from = (&raw const *value).cast::<u8>().add(first);
        std::ptr::copy_nonoverlapping(from, to.cast::<u8>().add(first), known);
    }
    Ok(())
}

/// Fills options of the caller with what is unset.
///
/// # Safety
/// NULL, or `size` bytes can be written at `to`.
pub(crate) unsafe fn init<T: Growing>(to: *mut T, size: usize) {
    if to.is_null() || size < size_of::<usize>() {
        return;
    }
    // SAFETY: `size` bytes can be written, the first field is of them.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        to.cast::<usize>().write(size.min(size_of::<T>()));
    }
    let unset = T::unset();
    // SAFETY: the size is there now, and so many bytes can be written. It can only fail for too small a size.
    let _ = unsafe { write("options", to, &unset) };
}

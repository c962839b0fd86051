//! Structs that may grow: each begins with its own size, as the caller's header has it.
#![expect(unsafe_code, reason = "structs of C are read and written")]

use crate::error::Failure;

/// A struct whose first field, a `usize` named `size`, says how much of it the caller knows.
///
/// # Safety
/// `repr(C)`, with that field first, every bit pattern of the fields after it is a value, and none of them is wider than
/// the struct's alignment.
pub(crate) unsafe trait SizedStruct: Copy {
    /// Returns the values of fields that the caller's header does not have.
    fn unset() -> Self;
}

/// Reads the options at `from`. NULL means unset options.
///
/// # Safety
/// `from` is NULL, or as many bytes can be read there as its first field says.
pub(crate) unsafe fn read<T: SizedStruct>(name: &str, from: *const T) -> Result<T, Failure> {
    let mut options = T::unset();
    if from.is_null() {
        return Ok(options);
    }
    // SAFETY: the size comes first, and is there as the caller says.
    let size = unsafe { from.cast::<usize>().read() };
    let whole = size_of::<T>();
    // No field is wider than the struct is aligned, so that none is cut.
    let is_whole = size.is_multiple_of(align_of::<T>());
    if !is_whole || !(size_of::<usize>()..=whole).contains(&size) {
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

/// How many bytes the caller knows of a struct that the library fills.
///
/// # Safety
/// NULL, or its first field is there.
pub(crate) unsafe fn room<T: SizedStruct>(name: &str, to: *const T) -> Result<usize, Failure> {
    if to.is_null() {
        return Err(Failure::caller(format!("{name} is NULL")));
    }
    let first = size_of::<usize>();
    // SAFETY: the size comes first, and is there as the caller says.
    let size = unsafe { to.cast::<usize>().read() };
    if size < first || !size.is_multiple_of(align_of::<T>()) {
        return Err(Failure::caller(format!("{name}: its size is {size}: set it to sizeof")));
    }
    Ok(size.min(size_of::<T>()))
}

/// Writes as much of `value` as the caller knows, the size left as it is.
///
/// # Safety
/// NULL, or as many bytes can be written there as its first field says.
pub(crate) unsafe fn write<T: SizedStruct>(
    name: &str,
    to: *mut T,
    value: &T,
) -> Result<(), Failure> {
    // SAFETY: as the caller says.
    let size = unsafe { room(name, to) }?;
    let first = size_of::<usize>();
    let known = size - first;
    // SAFETY: `known` bytes after the first field are within both, as the caller says of `to`.
    unsafe {
        let from = (&raw const *value).cast::<u8>().add(first);
        std::ptr::copy_nonoverlapping(from, to.cast::<u8>().add(first), known);
    }
    Ok(())
}

/// Fills the caller's options with unset values.
///
/// # Safety
/// `to` is NULL, or `size` bytes can be written there.
pub(crate) unsafe fn init<T: SizedStruct>(to: *mut T, size: usize) {
    if to.is_null() || size < size_of::<usize>() || !size.is_multiple_of(align_of::<T>()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Options {
        size: usize,
        first: u64,
        second: u32,
        third: u32,
    }

    // SAFETY: `repr(C)`, the size first, and numbers.
    unsafe impl SizedStruct for Options {
        fn unset() -> Self {
            Self { size: size_of::<Self>(), first: 10, second: 20, third: 30 }
        }
    }

    /// Layout of an older header.
    #[repr(C)]
    struct OlderHeader {
        size: usize,
        first: u64,
    }

    #[test]
    fn what_an_older_header_lacks_is_unset() {
        let older = OlderHeader { size: size_of::<OlderHeader>(), first: 1 };
        // SAFETY: as many bytes as the size says can be read.
        let found = unsafe { read("options", (&raw const older).cast::<Options>()) }.unwrap();
        assert_eq!((found.first, found.second, found.third), (1, 20, 30));
        let mut told = [
            OlderHeader { size: size_of::<OlderHeader>(), first: 0 },
            OlderHeader { size: 7, first: 7 },
        ];
        let values = Options { size: 0, first: 5, second: 6, third: 8 };
        // SAFETY: as many bytes as the size says can be written.
        unsafe { write("status", told.as_mut_ptr().cast::<Options>(), &values) }.unwrap();
        let [first, after] = &told;
        assert_eq!((first.size, first.first), (size_of::<OlderHeader>(), 5), "the size stays");
        assert_eq!((after.size, after.first), (7, 7), "nothing is written past the size");
    }

    #[test]
    fn a_newer_header_is_refused_where_it_asks_and_served_where_it_listens() {
        let newer = [Options { size: size_of::<Options>() * 2, ..Options::unset() }; 2];
        // SAFETY: as many bytes as the size says can be read.
        assert!(unsafe { read("options", newer.as_ptr()) }.is_err());
        let mut told = newer;
        let values = Options { first: 5, ..Options::unset() };
        // SAFETY: as many bytes as the size says can be written.
        unsafe { write("status", told.as_mut_ptr(), &values) }.unwrap();
        assert_eq!((told[0].first, told[1]), (5, newer[1]), "what is unknown stays as it was");
        let mut set = newer;
        // SAFETY: both structs can be written.
        unsafe { init(set.as_mut_ptr(), size_of_val(&newer)) };
        assert_eq!(set[0], Options::unset());
        assert_eq!((set[1].size, set[1].first), (0, 0), "what is unknown is zero");
    }

    #[test]
    fn sizes_that_cut_a_field_are_refused() {
        for size in [0, 1, size_of::<usize>() - 1, size_of::<usize>() + 4, usize::MAX] {
            let mut options = Options { size, ..Options::unset() };
            // SAFETY: the size is there, and nothing else is read.
            assert!(unsafe { read("options", &raw const options) }.is_err(), "{size}");
            if size < size_of::<Options>() {
                let values = Options { first: 5, ..Options::unset() };
                // SAFETY: as above.
                assert!(unsafe { write("status", &raw mut options, &values) }.is_err(), "{size}");
                // SAFETY: as above.
                unsafe { init(&raw mut options, size) };
                assert_eq!(options, Options { size, ..Options::unset() });
            }
        }
        // SAFETY: NULL is allowed.
        let none = unsafe { read::<Options>("options", std::ptr::null()) };
        assert_eq!(none.unwrap(), Options::unset());
    }
}

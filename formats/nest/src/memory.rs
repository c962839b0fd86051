//! Fallible allocation for sizes that come from input: running out of memory is an error instead of an abort.

use bytemuck::Zeroable;

/// A failed memory allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("out of memory: {what} would take {bytes} bytes")]
pub struct OutOfMemory {
    /// Purpose of the allocation.
    pub what: &'static str,
    /// Requested size in bytes.
    pub bytes: u64,
}

impl OutOfMemory {
    /// Returns the error for an allocation of `count` items of type `T`.
    pub fn of<T>(what: &'static str, count: usize) -> Self {
        Self { what, bytes: (count as u64).saturating_mul(size_of::<T>() as u64) }
    }
}

/// Returns an empty vector with capacity for `count` items.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_with_capacity<T>(what: &'static str, count: usize) -> Result<Vec<T>, OutOfMemory> {
    let mut items = Vec::new();
    items.try_reserve_exact(count).map_err(|_| OutOfMemory::of::<T>(what, count))?;
    Ok(items)
}

/// Reserves capacity for `more` additional items.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_reserve<T>(
    items: &mut Vec<T>,
    what: &'static str,
    more: usize,
) -> Result<(), OutOfMemory> {
    let count = items.len().saturating_add(more);
    items.try_reserve(more).map_err(|_| OutOfMemory::of::<T>(what, count))
}

/// Returns a vector of `count` zeros.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_zeroed<T: Zeroable>(what: &'static str, count: usize) -> Result<Vec<T>, OutOfMemory> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| OutOfMemory::of::<T>(what, count))
}

/// Returns a vector of `count` copies of a value.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_filled<T: Clone>(
    what: &'static str,
    value: T,
    count: usize,
) -> Result<Vec<T>, OutOfMemory> {
    let mut items = try_with_capacity(what, count)?;
    items.resize(count, value);
    Ok(items)
}

/// Copies a slice into a new vector.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_to_vec<T: Clone>(what: &'static str, items: &[T]) -> Result<Vec<T>, OutOfMemory> {
    let mut copy = try_with_capacity(what, items.len())?;
    copy.extend_from_slice(items);
    Ok(copy)
}

/// Copies a text into a new string.
///
/// # Errors
/// [`OutOfMemory`] if the allocation fails.
pub fn try_to_string(what: &'static str, text: &str) -> Result<String, OutOfMemory> {
    let mut copy = String::new();
    copy.try_reserve_exact(text.len()).map_err(|_| OutOfMemory::of::<u8>(what, text.len()))?;
    copy.push_str(text);
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::{OutOfMemory, try_filled, try_reserve, try_to_vec, try_with_capacity, try_zeroed};

    #[test]
    fn what_nobody_has_is_an_error_that_names_it() {
        let count = isize::MAX as usize / 4;
        let expected = OutOfMemory { what: "test", bytes: count as u64 * 4 };
        assert_eq!(try_with_capacity::<u32>("test", count), Err(expected));
        assert_eq!(try_zeroed::<u32>("test", count), Err(expected));
        assert_eq!(try_filled("test", 1u32, count), Err(expected));
        assert_eq!(try_reserve(&mut vec![1u32], "test", count - 1), Err(expected));
        assert!(expected.to_string().starts_with("out of memory: test would take"));
    }

    #[test]
    fn what_there_is_is_given() {
        assert_eq!(try_zeroed::<u16>("test", 3), Ok(vec![0; 3]));
        assert_eq!(try_filled("test", 7u8, 3), Ok(vec![7; 3]));
        assert_eq!(try_to_vec("test", &[1, 2]), Ok(vec![1, 2]));
        assert!(try_with_capacity::<u64>("test", 9).is_ok_and(|items| items.capacity() >= 9));
    }
}

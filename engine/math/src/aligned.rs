//! Float vectors aligned to cache lines.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};

use crate::math::LANES;
use nestling_formats::memory::{OutOfMemory, try_reserve};

/// Name of activations and other memory of a step in out-of-memory errors.
pub const STEP: &str = "a step of the model";

/// Truncates or extends a vector.
///
/// # Errors
/// Fails with [`OutOfMemory`].
pub fn try_resize<T: Clone>(items: &mut Vec<T>, count: usize, item: T) -> Result<(), OutOfMemory> {
    try_reserve(items, STEP, count.saturating_sub(items.len()))?;
    items.resize(count, item);
    Ok(())
}

#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

/// A vector of floats aligned to cache lines. No group of sixteen floats, counted from the start, crosses a
/// cache line: such loads and stores would cost twice as much.
#[derive(Clone, Debug, Default)]
pub struct AlignedFloats {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedFloats {
    /// Removes all floats and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Truncates or extends the vector. New floats are unspecified. It does not allocate after a sufficient
    /// [`Self::try_reserve`].
    pub fn resize(&mut self, len: usize) {
        let lines = len.div_ceil(LANES);
        if lines > self.lines.len() {
            self.lines.resize(lines, Line::zeroed());
        }
        self.len = len;
    }

    /// Reserves capacity for `len` floats in total.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn try_reserve(&mut self, len: usize) -> Result<(), OutOfMemory> {
        let more = len.div_ceil(LANES).saturating_sub(self.lines.len());
        try_reserve(&mut self.lines, STEP, more)
    }

    /// Appends floats.
    pub fn extend_from_slice(&mut self, values: &[f32]) {
        let start = self.len;
        self.resize(start + values.len());
        self[start..].copy_from_slice(values);
    }
}

impl Deref for AlignedFloats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl DerefMut for AlignedFloats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}

impl PartialEq for AlignedFloats {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_begin_at_a_cache_line_and_keep_their_values() {
        let mut floats = AlignedFloats::default();
        floats.resize(5);
        floats.extend_from_slice(&[1.0; 40]);
        assert_eq!(floats.as_ptr().align_offset(64), 0);
        assert_eq!((floats.len(), floats[4], floats[44]), (45, 0.0, 1.0));
        floats.resize(7);
        assert_eq!(*floats, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
        floats.clear();
        assert!(floats.is_empty());
        floats.try_reserve(1000).unwrap();
        floats.resize(1000);
        assert_eq!((floats.len(), floats.as_ptr().align_offset(64)), (1000, 0));
    }
}

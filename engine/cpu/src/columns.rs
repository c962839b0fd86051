//! Splits a row-major matrix into blocks of columns that threads may write concurrently.
#![expect(unsafe_code, reason = "blocks of columns interleave in memory, so slices cannot say it")]

use std::marker::PhantomData;
use std::ops::Range;

use super::math::LANES;
use super::nested::TileValues;
use super::vector::Vector;
use crate::threads::ThreadPool;

/// A block of columns of a matrix, equivalent to a mutable borrow.
#[derive(Debug)]
pub struct ColumnsMut<'a, T> {
    first: *mut T,
    rows: Range<usize>,
    stride: usize,
    range: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: no two blocks of one matrix share an element, so a block is like a `&mut [T]`.
unsafe impl<T: Send> Send for ColumnsMut<'_, T> {}

impl<T> ColumnsMut<'_, T> {
    /// Returns the columns of this block.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the rows of this block.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Returns this block's columns of one of its rows. `row` is counted from the block's first row.
    ///
    /// # Panics
    /// Panics if `row` is beyond the last row.
    #[inline]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows.len(), "row {row} of {}", self.rows.len());
        let row = self.rows.start + row;
        // SAFETY: the row and the columns are inside the matrix, and no other block contains them.
        unsafe {
            let start = self.first.add(row * self.stride + self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

/// Writes sixteen columns of a block from `col` on with non-temporal stores, `values` one for each of the
/// given rows. A [`fence`] is required before another thread reads them.
///
/// # Panics
/// Panics if rows or columns are beyond the block.
#[inline(always)]
pub(super) fn write_tile<V: Vector>(
    block: &mut ColumnsMut<'_, f32>,
    col: usize,
    rows: &[u32],
    values: &[TileValues],
) {
    for i in 0..rows.len().min(values.len()) {
        let out = &mut block.row(rows[i] as usize)[col..][..LANES];
        // SAFETY: both have sixteen floats.
        unsafe { V::load(values[i].as_ptr()).store_non_temporal(out.as_mut_ptr()) }
    }
}

/// Orders this thread's non-temporal stores before its later stores.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every such processor has it.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// A matrix of which each part of a job uses a different block.
struct SharedMatrix<T>(*mut T);

// SAFETY: `for_each_block` gives each block to a single part, and elements may move between threads.
unsafe impl<T: Send> Sync for SharedMatrix<T> {}

/// Division of rows or columns into blocks.
#[derive(Clone, Copy, Debug)]
pub enum Cut<'a> {
    /// At these ascending borders.
    At(&'a [usize]),
    /// Into blocks of this size; the last one may be smaller.
    Every(usize),
    /// Within the range from the first number to before the second, into blocks of the third number; the last
    /// one may be smaller.
    Within(usize, usize, usize),
}

impl Cut<'_> {
    /// Returns the number of blocks of `length` rows or columns.
    fn blocks(&self, length: usize) -> usize {
        match self {
            Self::At(borders) => {
                let ascend = borders.windows(2).all(|pair| pair[0] <= pair[1]);
                let inside = borders.last().is_none_or(|last| *last <= length);
                assert!(ascend && inside, "borders of {length}");
                borders.len().saturating_sub(1)
            }
            Self::Every(size) => length.div_ceil((*size).max(1)),
            Self::Within(start, end, size) => {
                assert!(start <= end && *end <= length, "borders of {length}");
                (end - start).div_ceil((*size).max(1))
            }
        }
    }

    fn block(&self, index: usize, length: usize) -> Range<usize> {
        match self {
            Self::At(borders) => borders[index]..borders[index + 1],
            Self::Every(size) => Self::Within(0, length, *size).block(index, length),
            Self::Within(start, end, size) => {
                let first = start + index * (*size).max(1);
                first..(first + (*size).max(1)).min(*end)
            }
        }
    }
}

/// Calls `job(column block, block)` for each block of `values`, `[rows, cols]`, last rows first. Without
/// `fork`, everything runs on this thread.
///
/// # Panics
/// Panics if borders descend or are outside the matrix, or if a part panicked.
pub fn for_each_block<T: Send>(
    pool: &ThreadPool,
    fork: bool,
    values: &mut [T],
    cols: usize,
    row_cut: Cut,
    col_cut: Cut,
    job: &(dyn Fn(usize, &mut ColumnsMut<'_, T>) + Sync),
) {
    // Default: a buffer without columns has no rows.
    let rows = values.len().checked_div(cols).unwrap_or(0);
    let (down, across) = (row_cut.blocks(rows), col_cut.blocks(cols));
    let shared = &SharedMatrix(values.as_mut_ptr());
    let part = |index: usize| {
        let (row, col) = (down - 1 - index / across, index % across);
        let mut block = ColumnsMut {
            first: shared.0,
            rows: row_cut.block(row, rows),
            stride: cols,
            range: col_cut.block(col, cols),
            borrowed: PhantomData,
        };
        job(col, &mut block);
    };
    match fork {
        true => pool.run(down * across, &part),
        false => (0..down * across).for_each(part),
    }
}

#[cfg(test)]
mod tests;

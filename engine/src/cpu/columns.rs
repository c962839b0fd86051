//! Cuts a row-major matrix into blocks of columns that threads may write at the same time.
#![expect(unsafe_code, reason = "blocks of columns interleave in memory, so slices cannot say it")]

use std::marker::PhantomData;
use std::ops::Range;

/// Some columns of all rows of a matrix, as if borrowed mutably.
#[derive(Debug)]
pub struct ColumnsMut<'a, T> {
    first: *mut T,
    rows: usize,
    stride: usize,
    range: Range<usize>,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: no two blocks of one matrix share an element, so a block is like a `&mut [T]`.
unsafe impl<T: Send> Send for ColumnsMut<'_, T> {}

impl<T> ColumnsMut<'_, T> {
    /// The columns of this block.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// This block's part of one row.
    ///
    /// # Panics
    /// Beyond the last row.
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        // SAFETY: the row and the columns are inside of the matrix, and no other block has them.
        unsafe {
            let start = self.first.add(row * self.stride + self.range.start);
            std::slice::from_raw_parts_mut(start, self.range.len())
        }
    }
}

/// Cuts `values`, `[rows, cols]`, at the columns `borders`, which ascend: block i has columns
/// `borders[i]..borders[i + 1]`.
///
/// # Panics
/// With borders that descend or lie beyond `cols`.
pub fn split_columns<'a, T>(
    values: &'a mut [T],
    cols: usize,
    borders: &[usize],
) -> Vec<ColumnsMut<'a, T>> {
    let rows = values.len().checked_div(cols).unwrap_or(0);
    let first = values.as_mut_ptr();
    let ascend = borders.windows(2).all(|pair| pair[0] <= pair[1]);
    assert!(ascend && borders.last().is_none_or(|last| *last <= cols), "borders of {cols} columns");
    let block = |pair: &[usize]| ColumnsMut {
        first,
        rows,
        stride: cols,
        range: pair[0]..pair[1],
        borrowed: PhantomData,
    };
    borders.windows(2).map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::ThreadPool;

    #[test]
    fn blocks_cover_the_matrix() {
        let mut values = vec![0; 3 * 7];
        let mut blocks = split_columns(&mut values, 7, &[0, 2, 2, 6, 7]);
        ThreadPool::new(2).for_each_mut(&mut blocks, &|index, block| {
            for row in 0..3 {
                block.row(row).fill(index + 10 * row);
            }
        });
        let row = |r: usize| [0, 0, 2, 2, 2, 2, 3].map(|index| index + 10 * r);
        assert_eq!(values, [row(0), row(1), row(2)].concat());
    }

    #[test]
    #[should_panic(expected = "row 1 of 1")]
    fn a_row_beyond_the_matrix_is_refused() {
        let mut values = vec![0; 4];
        split_columns(&mut values, 4, &[0, 4])[0].row(1);
    }
}

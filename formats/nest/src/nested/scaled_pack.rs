//! Scaled integers in row order, and the placement of their numbers in planes.

use super::layout::Grid;
use super::scaled::{Minima, ScaledForm};
use super::transposed::transposed;
use super::{Layout, NestedError, TILE_ROWS};
use crate::Plane;

/// A matrix of scaled integers in row order, before it is divided into planes.
///
/// `groups` is `ceil(cols / 32)`, `spans` is `ceil(groups / span)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaledRows {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix, the input dimension.
    pub cols: usize,
    /// Codes, most significant bit in bit 7, `[rows, cols]`.
    pub codes: Vec<u8>,
    /// Scales in the codec's type, little-endian, `[rows, spans]`.
    pub scales: Vec<u8>,
    /// Minima, or the factors that integer minima are multiplied with, in the type of the scales, `[rows,
    /// spans]`, or empty.
    pub minima: Vec<u8>,
    /// Sub-scales, `[rows, groups, sub-blocks]`, or empty.
    pub sub_scales: Vec<u8>,
    /// Integer minima, `[rows, groups, sub-blocks]`, or empty.
    pub sub_minima: Vec<u8>,
}

impl ScaledRows {
    /// Checks that the lengths of all fields match the shape and the form.
    pub(super) fn check(&self, form: &ScaledForm) -> Result<Grid, NestedError> {
        let grid = self.check_numbers(form)?;
        self.check_codes(self.rows * self.cols)?;
        Ok(grid)
    }

    pub(super) fn check_codes(&self, expected: usize) -> Result<(), NestedError> {
        match self.codes.len() {
            found if found == expected => Ok(()),
            found => Err(NestedError::Length { what: "codes", expected, found }),
        }
    }

    /// Checks like [`Self::check`], except for the codes.
    pub(super) fn check_numbers(&self, form: &ScaledForm) -> Result<Grid, NestedError> {
        form.check()?;
        let shape = NestedError::Shape { rows: self.rows, cols: self.cols };
        let grid = Grid::new(self.rows, self.cols).ok_or(shape)?;
        let spans = grid.groups.div_ceil(usize::from(form.span));
        let subs = self.rows * grid.groups * form.sub_blocks();
        let scales = self.rows * spans * form.scale.bytes();
        let has = |there: bool, bytes: usize| if there { bytes } else { 0 };
        for (what, expected, found) in [
            ("scales", scales, self.scales.len()),
            ("minima", has(form.minima != Minima::None, scales), self.minima.len()),
            ("sub-scales", subs * form.sub_scale.bytes(), self.sub_scales.len()),
            ("sub-minima", has(form.has_sub_minima(), subs), self.sub_minima.len()),
        ] {
            if found != expected {
                return Err(NestedError::Length { what, expected, found });
            }
        }
        Ok(grid)
    }
}

/// Layout of numbers that belong to rows.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub layout: Layout,
    /// Numbers per row.
    pub of_row: usize,
    /// Bytes per number.
    pub bytes: usize,
}

impl Run {
    /// Returns the position of a row's number, counted in numbers.
    pub fn index(&self, row: usize, number: usize) -> usize {
        debug_assert!(number < self.of_row);
        match self.layout {
            Layout::Tile16 => {
                (row / TILE_ROWS * self.of_row + number) * TILE_ROWS + row % TILE_ROWS
            }
            Layout::RowMajor => row * self.of_row + number,
        }
    }

    /// Packs the numbers of `rows` rows into the layout.
    pub fn pack(&self, numbers: &[u8], rows: usize, out: &mut [u8]) {
        if self.layout == Layout::RowMajor {
            out[..numbers.len()].copy_from_slice(numbers);
            return;
        }
        let tiles = rows.div_ceil(TILE_ROWS) * TILE_ROWS * self.of_row * self.bytes;
        let out = &mut out[..tiles];
        if !rows.is_multiple_of(TILE_ROWS) {
            out.fill(0);
        }
        match self.bytes {
            0 => (),
            1 => self.pack_tiles::<1>(numbers, out),
            2 => self.pack_tiles::<2>(numbers, out),
            _ => self.pack_tiles::<4>(numbers, out),
        }
    }

    /// Packs numbers of `BYTES` bytes.
    fn pack_tiles<const BYTES: usize>(&self, numbers: &[u8], out: &mut [u8]) {
        let of_row = self.of_row * BYTES;
        let tiles = out.chunks_exact_mut(TILE_ROWS * of_row);
        for (rows, out) in numbers.chunks(TILE_ROWS * of_row).zip(tiles) {
            let is_whole = rows.len() == TILE_ROWS * of_row;
            let words = if is_whole { of_row / 8 } else { 0 };
            let mut of_rows: [&[[u8; 8]]; TILE_ROWS] = [&[]; TILE_ROWS];
            for (words, row) in of_rows.iter_mut().zip(rows.chunks_exact(of_row)) {
                *words = row.as_chunks().0;
            }
            let (whole, rest) = out.split_at_mut(words * 8 * TILE_ROWS);
            let whole = whole.as_chunks_mut::<8>().0.as_chunks_mut().0;
            for (word, out) in whole.iter_mut().enumerate() {
                let words = of_rows.map(|row| u64::from_le_bytes(row[word]));
                *out = transposed::<BYTES>(words).map(u64::to_le_bytes);
            }
            for (lane, row) in rows.chunks_exact(of_row).enumerate() {
                let row = row[8 * words..].as_chunks::<BYTES>().0;
                let lanes = rest.as_chunks_mut::<BYTES>().0.chunks_exact_mut(TILE_ROWS);
                for (number, lanes) in row.iter().zip(lanes) {
                    lanes[lane] = *number;
                }
            }
        }
    }
}

/// Returns the right shift that moves a plane's bits to the bottom of a code.
pub(super) fn plane_shift(form: &ScaledForm, plane: Plane) -> u8 {
    8 - plane.level().bits().min(form.bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_lies_at_its_index() {
        for bytes in [1, 2, 4] {
            for of_row in 1..20 {
                for rows in [1, 16, 21, 32] {
                    let run = Run { layout: Layout::Tile16, of_row, bytes };
                    let numbers: Vec<u8> =
                        (0..rows * of_row * bytes).map(|at| ((at * 7919) >> 3) as u8).collect();
                    let mut out = vec![0xa5; rows.next_multiple_of(TILE_ROWS) * of_row * bytes];
                    run.pack(&numbers, rows, &mut out);
                    for (at, expected) in numbers.chunks(bytes).enumerate() {
                        let index = run.index(at / of_row, at % of_row) * bytes;
                        let found = &out[index..index + bytes];
                        assert_eq!(found, expected, "{bytes} bytes, {of_row} of {rows} rows: {at}");
                    }
                }
            }
        }
    }
}

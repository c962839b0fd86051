//! Scaled integers in row order, and the placement of their numbers in planes.

use super::layout::Grid;
use super::scaled::{Minima, ScaledForm};
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
        form.check()?;
        let shape = NestedError::Shape { rows: self.rows, cols: self.cols };
        let grid = Grid::new(self.rows, self.cols).ok_or(shape)?;
        let spans = grid.groups.div_ceil(usize::from(form.span));
        let subs = self.rows * grid.groups * form.sub_blocks();
        let scales = self.rows * spans * form.scale.bytes();
        let has = |there: bool, bytes: usize| if there { bytes } else { 0 };
        for (what, expected, found) in [
            ("codes", self.rows * self.cols, self.codes.len()),
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

    fn pack_tiles<const BYTES: usize>(&self, numbers: &[u8], out: &mut [u8]) {
        let (numbers, out) = (numbers.as_chunks::<BYTES>().0, out.as_chunks_mut::<BYTES>().0);
        let of_tile = TILE_ROWS * self.of_row;
        for (rows, out) in numbers.chunks(of_tile).zip(out.chunks_exact_mut(of_tile)) {
            for (lane, row) in rows.chunks_exact(self.of_row).enumerate() {
                for (number, lanes) in row.iter().zip(out.chunks_exact_mut(TILE_ROWS)) {
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

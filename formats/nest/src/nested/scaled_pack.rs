//! Writes scaled integers into their planes.

use super::layout::{Grid, ScaledParts, merged_bytes};
use super::scaled::{Minima, ScaledForm};
use super::{GROUP, Layout, NestedError, PlaneForm, TILE_ROWS};
use crate::Plane;

/// Bytes that hold four columns of sixteen rows in [`Layout::Tile16`].
const VECTOR_BYTES: usize = 4 * TILE_ROWS;

/// A matrix of scaled integers as files hold it: row by row, before it is cut into planes.
///
/// `groups` is `ceil(cols / 32)`, `spans` is `ceil(groups / span)`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScaledRows {
    /// Rows of the matrix.
    pub rows: usize,
    /// Columns of the matrix, the input dimension.
    pub cols: usize,
    /// Codes, their first bit in bit 7, `[rows, cols]`.
    pub codes: Vec<u8>,
    /// Scales as the codec's type has them, little-endian, `[rows, spans]`.
    pub scales: Vec<u8>,
    /// What minima are or are multiples of, in the scales' type, `[rows, spans]`, or nothing.
    pub minima: Vec<u8>,
    /// Sub-scales, `[rows, groups, sub-blocks]`, or nothing.
    pub sub_scales: Vec<u8>,
    /// Integers of minima, `[rows, groups, sub-blocks]`, or nothing.
    pub sub_minima: Vec<u8>,
}

impl ScaledRows {
    /// Checks that all fields have the lengths that the shape and the form ask for.
    fn check(&self, form: &ScaledForm) -> Result<Grid, NestedError> {
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

/// Writes one plane of scaled integers to `out`, which must have [`PlaneForm::plane_bytes`] bytes.
///
/// # Errors
/// [`NestedError::Length`], [`NestedError::PlaneLength`], [`NestedError::Shape`] where sizes do not
/// fit; [`NestedError::Codec`] for a form that there is not.
pub fn pack_scaled_plane(
    matrix: &ScaledRows,
    form: &ScaledForm,
    layout: Layout,
    plane: Plane,
    out: &mut [u8],
) -> Result<(), NestedError> {
    let grid = matrix.check(form)?;
    let (rows, cols) = (matrix.rows, matrix.cols);
    let shape = NestedError::Shape { rows, cols };
    let expected = PlaneForm::Scaled(*form).plane_bytes(layout, rows, cols, plane);
    let expected = expected.ok_or(shape.clone())?;
    if out.len() != expected {
        return Err(NestedError::PlaneLength { plane, expected, found: out.len() });
    }
    out.fill(0);
    let (bits, shift) = (form.plane_bits(plane), plane_shift(form, plane));
    let codes = Codes { matrix, grid, layout, bits, shift };
    if plane != Plane::P2 {
        codes.pack(out);
        return Ok(());
    }
    let parts = ScaledParts::new(form, layout, rows, cols).ok_or(shape)?;
    let spans = grid.groups.div_ceil(usize::from(form.span));
    let scale = Run { layout, of_row: spans, bytes: form.scale.bytes() };
    scale.pack(&matrix.scales, &mut out[parts.scales]);
    scale.pack(&matrix.minima, &mut out[parts.minima]);
    let sub = Run { layout, of_row: grid.groups * form.sub_blocks(), bytes: 1 };
    sub.pack(&matrix.sub_scales, &mut out[parts.sub_scales]);
    sub.pack(&matrix.sub_minima, &mut out[parts.sub_minima]);
    codes.pack(&mut out[parts.codes]);
    Ok(())
}

/// Writes planes P3 and P4 of scaled integers as one 2-bit digit to `out`, which must have
/// [`super::merged_bytes`] bytes: what [`super::merge_p3_p4`] makes of the two.
///
/// # Errors
/// As [`pack_scaled_plane`]; [`NestedError::Codec`] for codes that have no plane P4.
pub fn pack_scaled_merged(
    matrix: &ScaledRows,
    form: &ScaledForm,
    layout: Layout,
    out: &mut [u8],
) -> Result<(), NestedError> {
    let grid = matrix.check(form)?;
    if form.plane_bits(Plane::P4) == 0 {
        let (what, expected) = ("bits of a code", "4 or more, where P3 and P4 are merged");
        return Err(NestedError::Codec { what, found: form.bits.into(), expected });
    }
    let (rows, cols) = (matrix.rows, matrix.cols);
    let expected = merged_bytes(layout, rows, cols).ok_or(NestedError::Shape { rows, cols })?;
    if out.len() != expected {
        let (what, found) = ("merged plane", out.len());
        return Err(NestedError::Length { what, expected, found });
    }
    out.fill(0);
    // The bits of P3 and P4 are neighbours, that of P3 above.
    let shift = plane_shift(form, Plane::P4);
    Codes { matrix, grid, layout, bits: 2, shift }.pack(out);
    Ok(())
}

/// Where numbers that belong to rows lie.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub layout: Layout,
    /// Numbers of a row.
    pub of_row: usize,
    /// Bytes of a number.
    pub bytes: usize,
}

impl Run {
    /// The place of one number of a row, counted in numbers.
    pub fn index(&self, row: usize, number: usize) -> usize {
        debug_assert!(number < self.of_row);
        match self.layout {
            Layout::Tile16 => {
                (row / TILE_ROWS * self.of_row + number) * TILE_ROWS + row % TILE_ROWS
            }
            Layout::RowMajor => row * self.of_row + number,
        }
    }

    fn pack(&self, numbers: &[u8], out: &mut [u8]) {
        match (self.layout, self.bytes) {
            (_, 0) => (),
            (Layout::RowMajor, _) => out[..numbers.len()].copy_from_slice(numbers),
            (Layout::Tile16, 1) => self.pack_tiles::<1>(numbers, out),
            (Layout::Tile16, 2) => self.pack_tiles::<2>(numbers, out),
            (Layout::Tile16, _) => self.pack_tiles::<4>(numbers, out),
        }
    }

    fn pack_tiles<const BYTES: usize>(&self, numbers: &[u8], out: &mut [u8]) {
        if self.of_row == 0 {
            return;
        }
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

/// Digits of codes on their way into one plane.
struct Codes<'a> {
    matrix: &'a ScaledRows,
    grid: Grid,
    layout: Layout,
    /// Bits of a digit.
    bits: u8,
    /// How far a code is shifted right to bring its digit to the bottom.
    shift: u8,
}

impl Codes<'_> {
    fn pack(&self, out: &mut [u8]) {
        match (self.layout, self.bits) {
            (_, 0) => (),
            (Layout::Tile16, 1) => self.pack_tiles::<1>(out),
            (Layout::Tile16, _) => self.pack_tiles::<2>(out),
            (Layout::RowMajor, 1) => self.pack_rows::<1>(out),
            (Layout::RowMajor, _) => self.pack_rows::<2>(out),
        }
    }

    fn pack_tiles<const BITS: usize>(&self, out: &mut [u8]) {
        let (cols, shift) = (self.matrix.cols, self.shift);
        let tiles = out.chunks_exact_mut(self.grid.groups * BITS * VECTOR_BYTES);
        for (rows, out) in self.matrix.codes.chunks(TILE_ROWS * cols).zip(tiles) {
            for (lane, codes) in rows.chunks_exact(cols).enumerate() {
                let vectors = out.chunks_exact_mut(BITS * VECTOR_BYTES);
                for (codes, out) in codes.chunks(GROUP).zip(vectors) {
                    // The last group of a row may be short.
                    let mut padded = [0; GROUP];
                    let codes = codes.try_into().unwrap_or_else(|_| {
                        padded[..codes.len()].copy_from_slice(codes);
                        &padded
                    });
                    pack_group::<BITS>(codes, shift, lane, out);
                }
            }
        }
    }

    fn pack_rows<const BITS: usize>(&self, out: &mut [u8]) {
        let (cols, shift) = (self.matrix.cols, self.shift);
        let mask = (1u8 << BITS) - 1;
        let rows = out.chunks_exact_mut(self.grid.groups * (GROUP / 8) * BITS);
        for (codes, out) in self.matrix.codes.chunks_exact(cols).zip(rows) {
            for (codes, byte) in codes.chunks(8 / BITS).zip(out) {
                let digits = codes.iter().enumerate();
                *byte = digits.fold(0, |all, (k, code)| all | (code >> shift & mask) << (k * BITS));
            }
        }
    }
}

/// Writes the digits of one row's codes in a group into its lane of [`Layout::Tile16`].
fn pack_group<const BITS: usize>(codes: &[u8; GROUP], shift: u8, lane: usize, out: &mut [u8]) {
    let mask = u32::from_le_bytes([(1 << BITS) - 1; 4]);
    // Four neighbours lie in four neighbouring bytes; no digit leaves its byte.
    let chunks = codes.as_chunks::<4>().0.chunks_exact(8 / BITS);
    for (chunks, vector) in chunks.zip(out.chunks_exact_mut(VECTOR_BYTES)) {
        let word = chunks.iter().enumerate().fold(0, |all, (k, codes)| {
            all | (u32::from_le_bytes(*codes) >> shift & mask) << (k * BITS)
        });
        vector[4 * lane..4 * lane + 4].copy_from_slice(&word.to_le_bytes());
    }
}

/// How far a code is shifted right to bring a plane's bits to the bottom.
pub(super) fn plane_shift(form: &ScaledForm, plane: Plane) -> u8 {
    8 - plane.level().bits().min(form.bits)
}

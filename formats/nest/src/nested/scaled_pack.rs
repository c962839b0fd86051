//! Writes scaled integers into their planes.

use super::layout::{Grid, ScaledParts};
use super::scaled::{Minima, ScaledForm};
use super::{Layout, NestedError, PlaneForm, TILE_ROWS};
use crate::Plane;

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
    let codes = Codes { matrix, form, grid, layout, plane };
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
        if self.bytes == 0 {
            return;
        }
        for (at, number) in numbers.chunks_exact(self.bytes).enumerate() {
            let to = self.index(at / self.of_row, at % self.of_row) * self.bytes;
            out[to..to + self.bytes].copy_from_slice(number);
        }
    }
}

/// Codes on their way into one plane.
struct Codes<'a> {
    matrix: &'a ScaledRows,
    form: &'a ScaledForm,
    grid: Grid,
    layout: Layout,
    plane: Plane,
}

impl Codes<'_> {
    fn pack(&self, out: &mut [u8]) {
        let bits = self.form.plane_bits(self.plane);
        if bits == 0 {
            return;
        }
        let (shift, mask) = (plane_shift(self.form, self.plane), (1u8 << bits) - 1);
        for (row, codes) in self.matrix.codes.chunks_exact(self.matrix.cols).enumerate() {
            for (col, code) in codes.iter().enumerate() {
                let (byte, at) = self.grid.position(self.layout, bits, row, col);
                out[byte] |= (code >> shift & mask) << at;
            }
        }
    }
}

/// How far a code is shifted right to bring a plane's bits to the bottom.
pub(super) fn plane_shift(form: &ScaledForm, plane: Plane) -> u8 {
    8 - plane.level().bits().min(form.bits)
}

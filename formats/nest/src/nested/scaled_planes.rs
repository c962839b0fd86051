//! Packing of scaled integers into several planes at once, a batch of rows at a time.

use super::digits::{Digits, TileRows, write_tile};
use super::layout::{Grid, ScaledParts, merged_bytes};
use super::pairs::{PairPlanes, write_pairs};
use super::scaled_pack::{Run, plane_shift};
use super::{GROUP, Layout, NestedError, PlaneForm, ScaledForm, ScaledRows, TILE_ROWS};
use crate::Plane;

/// Packs one plane of scaled integers into `out`, which must have [`super::PlaneForm::plane_bytes`] bytes.
///
/// # Errors
/// [`NestedError::Length`], [`NestedError::PlaneLength`] or [`NestedError::Shape`] if sizes do not match;
/// [`NestedError::Codec`] if the form is invalid.
pub fn pack_scaled_plane(
    matrix: &ScaledRows,
    form: &ScaledForm,
    layout: Layout,
    plane: Plane,
    out: &mut [u8],
) -> Result<(), NestedError> {
    let mut planes = ScaledPlanes::new(form, layout, matrix.rows, matrix.cols)?;
    planes.add(plane, out)?;
    planes.write(0, matrix)
}

/// Packs planes P3 and P4 of scaled integers into `out` as one 2-bit digit, with the same result as
/// [`super::merge_p3_p4`]. `out` must have [`super::merged_bytes`] bytes.
///
/// # Errors
/// The errors of [`pack_scaled_plane`], and [`NestedError::Codec`] if the codes have no plane P4.
pub fn pack_scaled_merged(
    matrix: &ScaledRows,
    form: &ScaledForm,
    layout: Layout,
    out: &mut [u8],
) -> Result<(), NestedError> {
    let mut planes = ScaledPlanes::new(form, layout, matrix.rows, matrix.cols)?;
    planes.add_merged(out)?;
    planes.write(0, matrix)
}

/// A writer of several planes of a matrix of scaled integers. Each row is written to all of them while its
/// codes are in the cache.
pub struct ScaledPlanes<'a> {
    form: ScaledForm,
    layout: Layout,
    rows: usize,
    cols: usize,
    grid: Grid,
    numbers: Vec<Numbers<'a>>,
    digits: Vec<Digits<'a>>,
    /// Codes of an incomplete tile, padded with zeros.
    padded: Vec<[u8; GROUP]>,
    /// Codes from pairs, whose lower bits may be those of another code: no plane has them.
    unpacked: Vec<[u8; GROUP]>,
}

/// One kind of numbers that plane P2 holds besides its codes.
struct Numbers<'a> {
    of: fn(&ScaledRows) -> &[u8],
    run: Run,
    out: &'a mut [u8],
}

impl<'a> ScaledPlanes<'a> {
    /// Creates a writer without planes for a matrix of the given shape.
    ///
    /// # Errors
    /// [`NestedError::Shape`] if the shape is invalid; [`NestedError::Codec`] if the form is.
    pub fn new(
        form: &ScaledForm,
        layout: Layout,
        rows: usize,
        cols: usize,
    ) -> Result<Self, NestedError> {
        form.check()?;
        let grid = Grid::new(rows, cols).ok_or(NestedError::Shape { rows, cols })?;
        let (numbers, digits) = (Vec::new(), Vec::new());
        let (padded, unpacked) = (Vec::new(), Vec::new());
        Ok(Self { form: *form, layout, rows, cols, grid, numbers, digits, padded, unpacked })
    }

    /// Adds a plane to write to `out`, which must have [`PlaneForm::plane_bytes`] bytes.
    ///
    /// # Errors
    /// [`NestedError::PlaneLength`] if `out` has another length; [`NestedError::Shape`] if the size
    /// overflows.
    pub fn add(&mut self, plane: Plane, mut out: &'a mut [u8]) -> Result<(), NestedError> {
        let (rows, cols, layout) = (self.rows, self.cols, self.layout);
        let shape = NestedError::Shape { rows, cols };
        let expected = PlaneForm::Scaled(self.form).plane_bytes(layout, rows, cols, plane);
        let expected = expected.ok_or_else(|| shape.clone())?;
        if out.len() != expected {
            return Err(NestedError::PlaneLength { plane, expected, found: out.len() });
        }
        if plane == Plane::P2 {
            let parts = ScaledParts::new(&self.form, layout, rows, cols).ok_or(shape)?;
            let spans = self.grid.groups.div_ceil(usize::from(self.form.span));
            let scale = Run { layout, of_row: spans, bytes: self.form.scale.bytes() };
            let of_row = self.grid.groups * self.form.sub_blocks();
            let sub = Run { layout, of_row, bytes: 1 };
            let mut end = 0;
            for (range, run, of) in [
                (parts.scales, scale, (|rows| &rows.scales) as fn(&ScaledRows) -> &[u8]),
                (parts.minima, scale, |rows| &rows.minima),
                (parts.sub_scales, sub, |rows| &rows.sub_scales),
                (parts.sub_minima, sub, |rows| &rows.sub_minima),
            ] {
                // Parts are stored in this order, with alignment gaps between them.
                let (before, from) = out.split_at_mut(range.start - end);
                before.fill(0);
                let (part, later) = from.split_at_mut(range.len());
                (out, end) = (later, range.end);
                if !part.is_empty() {
                    self.numbers.push(Numbers { of, run, out: part });
                }
            }
            let (before, codes) = out.split_at_mut(parts.codes.start - end);
            before.fill(0);
            out = codes;
        }
        let bits = self.form.plane_bits(plane);
        if bits > 0 {
            self.digits.push(Digits { bits, shift: plane_shift(&self.form, plane), out });
        }
        Ok(())
    }

    /// Adds planes P3 and P4 to write as one 2-bit digit, with the same result as [`super::merge_p3_p4`].
    /// `out` must have [`super::merged_bytes`] bytes.
    ///
    /// # Errors
    /// [`NestedError::Length`] or [`NestedError::Shape`] if sizes do not match; [`NestedError::Codec`] if the
    /// codes have no plane P4.
    pub fn add_merged(&mut self, out: &'a mut [u8]) -> Result<(), NestedError> {
        if self.form.plane_bits(Plane::P4) == 0 {
            let (what, expected) = ("bits of a code", "4 or more, where P3 and P4 are merged");
            return Err(NestedError::Codec { what, found: self.form.bits.into(), expected });
        }
        let (rows, cols) = (self.rows, self.cols);
        let expected = merged_bytes(self.layout, rows, cols);
        let expected = expected.ok_or(NestedError::Shape { rows, cols })?;
        if out.len() != expected {
            let (what, found) = ("merged plane", out.len());
            return Err(NestedError::Length { what, expected, found });
        }
        // The bits of P3 and P4 are adjacent, P3 above P4.
        self.digits.push(Digits { bits: 2, shift: plane_shift(&self.form, Plane::P4), out });
        Ok(())
    }

    /// Writes consecutive rows of the matrix, starting at row `first`. In [`Layout::Tile16`] they must be
    /// whole tiles or extend to the last row. Rows that are not passed stay unchanged.
    ///
    /// # Errors
    /// [`NestedError::Length`] if parts have other lengths or rows are not whole tiles;
    /// [`NestedError::Shape`] if the rows do not fit in the matrix.
    pub fn write(&mut self, first: usize, rows: &ScaledRows) -> Result<(), NestedError> {
        rows.check(&self.form)?;
        self.check_place(first, rows)?;
        self.write_numbers(first, rows);
        self.write_codes(first, &rows.codes);
        Ok(())
    }

    /// Writes rows like [`Self::write`], with codes of 4 bits that lie two to a byte, as in blocks of Q4_K: each
    /// 32 bytes of `rows.codes` have the codes of two adjacent groups, those of the first group in the lower
    /// halves, `[rows, cols / 64, 32]`. In [`Layout::Tile16`] all tiles must be whole.
    ///
    /// # Errors
    /// The errors of [`Self::write`], with [`NestedError::Shape`] for incomplete tiles or pairs, and
    /// [`NestedError::Codec`] if codes have other bits.
    pub fn write_pairs(&mut self, first: usize, rows: &ScaledRows) -> Result<(), NestedError> {
        if self.form.bits != 4 {
            let (what, expected) = ("bits of a code", "4, where a byte has two codes");
            return Err(NestedError::Codec { what, found: self.form.bits.into(), expected });
        }
        rows.check_numbers(&self.form)?;
        self.check_place(first, rows)?;
        let are_whole = self.layout == Layout::RowMajor || rows.rows.is_multiple_of(TILE_ROWS);
        if !are_whole || !self.cols.is_multiple_of(2 * GROUP) {
            return Err(NestedError::Shape { rows: rows.rows, cols: rows.cols });
        }
        rows.check_codes(rows.rows * rows.cols / 2)?;
        self.write_numbers(first, rows);
        let pairs = rows.codes.as_chunks().0;
        if self.layout == Layout::Tile16 && self.write_tiles_of_pairs(first, pairs) {
            return Ok(());
        }
        let mut codes = std::mem::take(&mut self.unpacked);
        codes.clear();
        codes.extend(pairs.iter().flat_map(|pair| [pair.map(|byte| byte << 4), *pair]));
        self.write_codes(first, codes.as_flattened());
        self.unpacked = codes;
        Ok(())
    }

    /// Writes tiles to P2 and to the merged plane. Returns false for other planes.
    fn write_tiles_of_pairs(&mut self, first: usize, pairs: &[[u8; GROUP]]) -> bool {
        let [Digits { bits: 2, shift: 6, out: upper }, Digits { bits: 2, shift: 4, out: lower }] =
            &mut *self.digits
        else {
            return false;
        };
        let of_row = self.cols / (2 * GROUP);
        let vectors = 4 * of_row;
        let start = first / TILE_ROWS * vectors;
        let upper = upper.as_chunks_mut().0[start..].chunks_exact_mut(vectors);
        let lower = lower.as_chunks_mut().0[start..].chunks_exact_mut(vectors);
        let tiles = pairs.chunks_exact(TILE_ROWS * of_row);
        for ((pairs, upper), lower) in tiles.zip(upper).zip(lower) {
            let mut units: TileRows<'_> = [&[]; TILE_ROWS];
            for (row, pairs) in units.iter_mut().zip(pairs.chunks_exact(of_row)) {
                *row = pairs;
            }
            write_pairs(&units, &mut PairPlanes { upper, lower });
        }
        true
    }

    fn write_codes(&mut self, first: usize, codes: &[u8]) {
        match self.layout {
            Layout::Tile16 => self.write_tiles(first, codes),
            Layout::RowMajor => self.write_rows(first, codes),
        }
    }

    fn check_place(&self, first: usize, rows: &ScaledRows) -> Result<(), NestedError> {
        let end = first.saturating_add(rows.rows);
        if rows.cols != self.cols || end > self.rows {
            return Err(NestedError::Shape { rows: end, cols: rows.cols });
        }
        if self.layout == Layout::Tile16 {
            let is_whole = |row: usize| row.is_multiple_of(TILE_ROWS);
            if !is_whole(first) || (!is_whole(end) && end != self.rows) {
                let at = if is_whole(first) { end } else { first };
                let (what, expected) =
                    ("rows before the end of a tile", at.next_multiple_of(TILE_ROWS));
                return Err(NestedError::Length { what, expected, found: at });
            }
        }
        Ok(())
    }

    fn write_numbers(&mut self, first: usize, rows: &ScaledRows) {
        for Numbers { of, run, out } in &mut self.numbers {
            // `first` is a multiple of the tile height, so a row takes the same space in both layouts.
            run.pack(of(rows), rows.rows, &mut out[first * run.of_row * run.bytes..]);
        }
    }

    fn write_tiles(&mut self, first: usize, codes: &[u8]) {
        let cols = self.cols;
        for (tile, codes) in codes.chunks(TILE_ROWS * cols).enumerate() {
            let mut of_rows: TileRows<'_> = [&[]; TILE_ROWS];
            let is_whole = codes.len() == TILE_ROWS * cols && cols.is_multiple_of(GROUP);
            if is_whole {
                for (row, codes) in of_rows.iter_mut().zip(codes.chunks_exact(cols)) {
                    *row = codes.as_chunks().0;
                }
            } else {
                self.padded.clear();
                self.padded.resize(TILE_ROWS * self.grid.groups, [0; GROUP]);
                let padded = self.padded.chunks_exact_mut(self.grid.groups);
                for (padded, codes) in padded.zip(codes.chunks_exact(cols)) {
                    padded.as_flattened_mut()[..cols].copy_from_slice(codes);
                }
                for (row, codes) in
                    of_rows.iter_mut().zip(self.padded.chunks_exact(self.grid.groups))
                {
                    *row = codes;
                }
            }
            write_tile(&of_rows, first / TILE_ROWS + tile, &mut self.digits);
        }
    }

    fn write_rows(&mut self, first: usize, codes: &[u8]) {
        for Digits { bits, shift, out } in &mut self.digits {
            let bytes = self.grid.groups * (GROUP / 8) * usize::from(*bits);
            let out = &mut out[first * bytes..];
            for (codes, out) in codes.chunks_exact(self.cols).zip(out.chunks_exact_mut(bytes)) {
                match bits {
                    1 => digits_of_row::<1>(codes, *shift, out),
                    _ => digits_of_row::<2>(codes, *shift, out),
                }
            }
        }
    }
}

/// Writes the digits of a row's codes and fills the rest with zeros.
fn digits_of_row<const BITS: usize>(codes: &[u8], shift: u8, out: &mut [u8]) {
    let used = codes.len().div_ceil(8 / BITS).min(out.len());
    let (out, rest) = out.split_at_mut(used);
    rest.fill(0);
    // Eight codes form a word whose digits are gathered at once.
    let whole = out.as_chunks_mut::<BITS>().0.iter_mut();
    for (codes, bytes) in codes.as_chunks::<8>().0.iter().zip(whole) {
        let digits = u64::from_le_bytes(*codes) >> shift;
        match bytes.as_mut_slice() {
            [byte] => {
                let bits = digits & 0x0101_0101_0101_0101;
                *byte = (bits.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
            }
            bytes => {
                let pairs = digits & 0x0303_0303_0303_0303;
                let near = pairs | pairs >> 6 | pairs >> 12 | pairs >> 18;
                bytes.copy_from_slice(&[near as u8, (near >> 32) as u8]);
            }
        }
    }
    let (done, mask) = (codes.len() - codes.len() % 8, (1u8 << BITS) - 1);
    for (codes, byte) in codes[done..].chunks(8 / BITS).zip(&mut out[done * BITS / 8..]) {
        let digits = codes.iter().enumerate();
        *byte = digits.fold(0, |all, (k, code)| all | (code >> shift & mask) << (k * BITS));
    }
}

//! Bit layout of a coded matrix in its planes.
//!
//! Interleaved layouts store 16 rows side by side. One 64-byte vector holds four columns of sixteen rows, and
//! each plane unpacks with shift, and, or.

use std::ops::Range;

use super::scaled::{Minima, ScaledForm};
use super::{GROUP, TILE_ROWS};
use crate::Plane;

/// Alignment in bytes of the parts of plane P2.
pub const PART_ALIGN: usize = 64;

/// Layout of a matrix's planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Layout {
    /// Sixteen rows interleaved, for matrix products.
    Tile16 = 0,
    /// Row after row, for gathers.
    RowMajor = 1,
}

impl Layout {
    /// Returns the layout with a given number in a store.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Tile16),
            1 => Some(Self::RowMajor),
            _ => None,
        }
    }

    /// Returns the number of the layout in a store.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

/// Byte ranges of the parts of plane P2, each starting at a multiple of [`PART_ALIGN`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseParts {
    /// Row scales, f16 little-endian: `[tiles * 16]` in Tile16, `[rows]` in RowMajor.
    pub row_scales: Range<usize>,
    /// Table index of each tile, one byte: `[tiles]`.
    pub tile_tables: Range<usize>,
    /// Tile16: low nibbles of the steps, `[tiles][groups][8]`, byte j = row j | row j + 8 << 4.
    /// RowMajor: the steps, one byte each, `[rows][groups]`.
    pub steps: Range<usize>,
    /// Tile16: bit 4 of the steps, `[tiles][groups]` u16 little-endian, bit r = row r.
    /// RowMajor: empty.
    pub step_high: Range<usize>,
    /// The two leading bits of all codes.
    pub codes: Range<usize>,
}

impl BaseParts {
    /// Returns the size of the whole plane in bytes.
    pub const fn bytes(&self) -> usize {
        self.codes.end
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub rows: usize,
    pub tiles: usize,
    pub groups: usize,
}

impl Grid {
    /// Returns `None` if the matrix is empty or its padded size overflows.
    pub fn new(rows: usize, cols: usize) -> Option<Self> {
        if rows == 0 || cols == 0 {
            return None;
        }
        let (tiles, groups) = (rows.div_ceil(TILE_ROWS), cols.div_ceil(GROUP));
        tiles.checked_mul(TILE_ROWS)?.checked_mul(groups)?.checked_mul(GROUP)?;
        Some(Self { rows, tiles, groups })
    }

    /// Returns the byte and bit shift of a digit of `bits` bits within a plane's codes.
    pub fn position(&self, layout: Layout, bits: u8, row: usize, col: usize) -> (usize, usize) {
        let bits = usize::from(bits);
        match layout {
            Layout::Tile16 => {
                let block = (row / TILE_ROWS) * self.groups + col / GROUP;
                let (chunk, lane) = (col % GROUP / 4, row % TILE_ROWS * 4 + col % 4);
                let chunks_per_vector = 8 / bits;
                let vector = block * bits + chunk / chunks_per_vector;
                (vector * 64 + lane, chunk % chunks_per_vector * bits)
            }
            Layout::RowMajor => {
                let row_bytes = self.groups * (GROUP / 8) * bits;
                (row * row_bytes + col * bits / 8, col * bits % 8)
            }
        }
    }

    /// Returns the size in bytes of a plane's codes at `bits` per weight.
    fn code_bytes(&self, layout: Layout, bits: u8) -> Option<usize> {
        let rows = match layout {
            Layout::Tile16 => self.tiles * TILE_ROWS,
            Layout::RowMajor => self.rows,
        };
        (rows * self.groups * (GROUP / 8)).checked_mul(usize::from(bits))
    }
}

/// Returns the parts of plane P2, or `None` if the matrix is empty or too large.
pub fn base_parts(layout: Layout, rows: usize, cols: usize) -> Option<BaseParts> {
    let grid = Grid::new(rows, cols)?;
    let cells = grid.tiles * grid.groups;
    let (scales, steps, step_high) = match layout {
        Layout::Tile16 => (grid.tiles * TILE_ROWS, cells.checked_mul(8)?, cells.checked_mul(2)?),
        Layout::RowMajor => (rows, rows.checked_mul(grid.groups)?, 0),
    };
    let row_scales = part(0, scales.checked_mul(2)?)?;
    let tile_tables = part(row_scales.end, grid.tiles)?;
    let steps = part(tile_tables.end, steps)?;
    let step_high = part(steps.end, step_high)?;
    let codes = part(step_high.end, grid.code_bytes(layout, Plane::P2.bits())?)?;
    Some(BaseParts { row_scales, tile_tables, steps, step_high, codes })
}

fn part(end: usize, bytes: usize) -> Option<Range<usize>> {
    let start = end.checked_next_multiple_of(PART_ALIGN)?;
    Some(start..start.checked_add(bytes)?)
}

/// Returns the size in bytes of a plane of the nested code. Returns `None` if the matrix is empty or too
/// large.
pub fn plane_bytes(layout: Layout, rows: usize, cols: usize, plane: Plane) -> Option<usize> {
    match plane {
        Plane::P2 => Some(base_parts(layout, rows, cols)?.bytes()),
        _ => Grid::new(rows, cols)?.code_bytes(layout, plane.bits()),
    }
}

/// Returns the size in bytes of the merged digit of P3 and P4. Returns `None` if the matrix is empty or too
/// large.
pub fn merged_bytes(layout: Layout, rows: usize, cols: usize) -> Option<usize> {
    Grid::new(rows, cols)?.code_bytes(layout, 2)
}

/// Byte ranges of the parts of plane P2 of scaled integers, each starting at a multiple of [`PART_ALIGN`].
/// Parts that the codec does not have are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScaledParts {
    /// Scales: `[tiles, spans, 16]` in Tile16, `[rows, spans]` in RowMajor.
    pub scales: Range<usize>,
    /// Minima, or the factors that integer minima are multiplied with, in the type and order of the scales.
    pub minima: Range<usize>,
    /// Sub-scales: `[tiles, groups, sub-blocks, 16]` in Tile16, `[rows, groups, sub-blocks]` in
    /// RowMajor.
    pub sub_scales: Range<usize>,
    /// Integer minima, in the order of sub-scales.
    pub sub_minima: Range<usize>,
    /// The two leading bits of all codes.
    pub codes: Range<usize>,
}

impl ScaledParts {
    /// Returns the parts of a matrix, or `None` if it is empty or too large.
    pub fn new(form: &ScaledForm, layout: Layout, rows: usize, cols: usize) -> Option<Self> {
        let grid = Grid::new(rows, cols)?;
        let rows = match layout {
            Layout::Tile16 => grid.tiles * TILE_ROWS,
            Layout::RowMajor => rows,
        };
        let spans = grid.groups.div_ceil(usize::from(form.span));
        let scales = rows.checked_mul(spans)?.checked_mul(form.scale.bytes())?;
        let subs = rows.checked_mul(grid.groups)?.checked_mul(form.sub_blocks())?;
        let sub_scales = subs.checked_mul(form.sub_scale.bytes())?;
        let has = |there: bool, bytes: usize| if there { bytes } else { 0 };
        let minima = has(form.minima != Minima::None, scales);
        let scales = part(0, scales)?;
        let minima = part(scales.end, minima)?;
        let sub_scales = part(minima.end, sub_scales)?;
        let sub_minima = part(sub_scales.end, has(form.has_sub_minima(), subs))?;
        let codes = grid.code_bytes(layout, form.plane_bits(Plane::P2))?;
        let codes = part(sub_minima.end, codes)?;
        Some(Self { scales, minima, sub_scales, sub_minima, codes })
    }

    /// Returns the size of the whole plane in bytes.
    pub const fn bytes(&self) -> usize {
        self.codes.end
    }
}

/// Codec parameters that, with shape and layout, determine the sizes of a matrix's planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PlaneForm {
    /// Nested code.
    #[default]
    Nested,
    /// Scaled integers.
    Scaled(ScaledForm),
}

impl PlaneForm {
    /// Returns the bits that a plane holds per code; 0 if the plane does not exist.
    pub const fn plane_bits(&self, plane: Plane) -> u8 {
        match self {
            Self::Nested => plane.bits(),
            Self::Scaled(form) => form.plane_bits(plane),
        }
    }

    /// Returns the size of one plane in bytes, or `None` if the matrix is empty or too large.
    pub fn plane_bytes(
        &self,
        layout: Layout,
        rows: usize,
        cols: usize,
        plane: Plane,
    ) -> Option<usize> {
        match (self, plane) {
            (Self::Nested, _) => plane_bytes(layout, rows, cols, plane),
            (Self::Scaled(form), Plane::P2) => {
                Some(ScaledParts::new(form, layout, rows, cols)?.bytes())
            }
            (Self::Scaled(form), _) => {
                Grid::new(rows, cols)?.code_bytes(layout, form.plane_bits(plane))
            }
        }
    }
}

//! The scalar reference: reads values and weights straight from the planes.
//!
//! Faster readers are tested against this one, so it does one thing at a time.

use half::f16;

use super::layout::{BaseParts, Grid, base_parts, merged_bytes, plane_bytes};
use super::{GROUP, Layout, NestedCodec, NestedError, TILE_ROWS};
use crate::{Level, Plane};

/// The planes of a matrix that are present. P3 and P4 may be given apart or merged.
#[derive(Clone, Copy, Debug, Default)]
pub struct NestedPlanes<'a> {
    /// Plane P2 with the scales and tables.
    pub p2: &'a [u8],
    /// Plane P3.
    pub p3: Option<&'a [u8]>,
    /// Plane P4.
    pub p4: Option<&'a [u8]>,
    /// P3 and P4 merged; read instead of the two where present.
    pub p34: Option<&'a [u8]>,
    /// Plane P6.
    pub p6: Option<&'a [u8]>,
    /// Plane P8.
    pub p8: Option<&'a [u8]>,
}

/// A matrix in its planes, borrowed from wherever they lie.
#[derive(Clone, Debug)]
pub struct NestedView<'a> {
    codec: &'a NestedCodec,
    planes: NestedPlanes<'a>,
    sizes: CheckedSizes,
}

/// The sizes of a matrix whose planes have the lengths that they ask for.
#[derive(Clone, Debug)]
pub struct CheckedSizes {
    rows: usize,
    cols: usize,
    layout: Layout,
    grid: Grid,
    parts: BaseParts,
    level: Level,
}

impl CheckedSizes {
    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// How the planes are laid out.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The highest level whose planes are there.
    pub fn level(&self) -> Level {
        self.level
    }

    /// A view of the planes that were checked, or of others of the same lengths.
    pub fn view<'a>(&self, codec: &'a NestedCodec, planes: NestedPlanes<'a>) -> NestedView<'a> {
        NestedView { codec, planes, sizes: self.clone() }
    }
}

impl<'a> NestedView<'a> {
    /// Checks the length of every plane; [`Self::check`] checks what is in them.
    pub fn new(
        rows: usize,
        cols: usize,
        layout: Layout,
        codec: &'a NestedCodec,
        planes: NestedPlanes<'a>,
    ) -> Result<Self, NestedError> {
        let shape = || NestedError::Shape { rows, cols };
        let grid = Grid::new(rows, cols).ok_or_else(shape)?;
        let parts = base_parts(layout, rows, cols).ok_or_else(shape)?;
        let all = [Some(planes.p2), planes.p3, planes.p4, planes.p6, planes.p8];
        for (plane, bytes) in Plane::ALL.into_iter().zip(all) {
            let expected = plane_bytes(layout, rows, cols, plane).ok_or_else(shape)?;
            let found = bytes.map_or(expected, <[u8]>::len);
            if found != expected {
                return Err(NestedError::PlaneLength { plane, expected, found });
            }
        }
        let expected = merged_bytes(layout, rows, cols).ok_or_else(shape)?;
        let found = planes.p34.map_or(expected, <[u8]>::len);
        if found != expected {
            return Err(NestedError::Length { what: "merged plane", expected, found });
        }
        let level = planes.level();
        let sizes = CheckedSizes { rows, cols, layout, grid, parts, level };
        Ok(Self { codec, planes, sizes })
    }

    /// Its sizes, with which views of the same planes are made without a check.
    pub fn sizes(&self) -> &CheckedSizes {
        &self.sizes
    }

    /// Checks what is in plane P2: scales, steps, tables. Meant to be called once, after loading.
    ///
    /// A view of unchecked planes reads without error but not the weights that were meant.
    pub fn check(&self) -> Result<(), NestedError> {
        for row in 0..self.sizes.rows {
            let scale = self.row_scale(row).to_f32();
            if !(scale.is_finite() && scale >= 0.0) {
                return Err(NestedError::RowScale { row, scale });
            }
        }
        let tables = self.codec.tables.len();
        for tile in 0..self.sizes.grid.tiles {
            let table = self.tile_table(tile);
            if usize::from(table) >= tables {
                return Err(NestedError::TableIndex { tile, table, tables });
            }
        }
        if self.sizes.layout == Layout::RowMajor {
            let steps = &self.planes.p2[self.sizes.parts.steps.clone()];
            if let Some(at) = steps.iter().position(|step| *step > 31) {
                let (row, group) = (at / self.sizes.grid.groups, at % self.sizes.grid.groups);
                return Err(NestedError::Step { row, group, step: steps[at] });
            }
        }
        Ok(())
    }

    /// Rows of the matrix, without padding.
    pub fn rows(&self) -> usize {
        self.sizes.rows
    }

    /// Columns of the matrix, without padding.
    pub fn cols(&self) -> usize {
        self.sizes.cols
    }

    /// Tiles of 16 rows.
    pub fn tiles(&self) -> usize {
        self.sizes.grid.tiles
    }

    /// Groups of 32 columns.
    pub fn groups(&self) -> usize {
        self.sizes.grid.groups
    }

    /// How the planes are laid out.
    pub fn layout(&self) -> Layout {
        self.sizes.layout
    }

    /// The codec of the matrix.
    pub fn codec(&self) -> &'a NestedCodec {
        self.codec
    }

    /// The planes as they were given.
    pub fn planes(&self) -> &NestedPlanes<'a> {
        &self.planes
    }

    /// Where the parts of plane P2 lie.
    pub fn base_parts(&self) -> &BaseParts {
        &self.sizes.parts
    }

    /// The highest level for which all planes are present.
    pub fn level(&self) -> Level {
        self.sizes.level
    }

    /// The scale of a row; 0 outside of the matrix.
    pub fn row_scale(&self, row: usize) -> f16 {
        let bytes = &self.planes.p2[self.sizes.parts.row_scales.clone()];
        match bytes.get(2 * row..2 * row + 2) {
            Some([low, high]) => f16::from_le_bytes([*low, *high]),
            _ => f16::ZERO,
        }
    }

    /// The table that a tile uses; 0 outside of the matrix.
    pub fn tile_table(&self, tile: usize) -> u8 {
        // Default: as promised, 0 outside of the matrix.
        self.planes.p2[self.sizes.parts.tile_tables.clone()].get(tile).copied().unwrap_or(0)
    }

    /// The step of a group, 0..=31; 31, a zero group, outside of the matrix.
    pub fn step(&self, row: usize, group: usize) -> u8 {
        if row >= self.sizes.rows || group >= self.sizes.grid.groups {
            return super::ZERO_STEP;
        }
        let steps = &self.planes.p2[self.sizes.parts.steps.clone()];
        if self.sizes.layout == Layout::RowMajor {
            return steps[row * self.sizes.grid.groups + group] & 31;
        }
        let cell = row / TILE_ROWS * self.sizes.grid.groups + group;
        let lane = row % TILE_ROWS;
        let low = steps[cell * 8 + lane % 8] >> (lane / 8 * 4) & 15;
        let high = &self.planes.p2[self.sizes.parts.step_high.clone()];
        let high = u16::from_le_bytes([high[cell * 2], high[cell * 2 + 1]]);
        low | u8::from(high >> lane & 1 == 1) << 4
    }

    /// The factors from decoded values to weights for the 16 rows of a tile in one group.
    ///
    /// Rows outside of the matrix have 0.
    pub fn weight_scales(&self, level: Level, tile: usize, group: usize) -> [f32; TILE_ROWS] {
        std::array::from_fn(|lane| {
            let row = tile * TILE_ROWS + lane;
            self.codec.steps.weight_scale(self.row_scale(row), level, self.step(row, group))
        })
    }

    /// The codes of one row, `out` `[cols]`, with the bits below `level` zero.
    pub fn unpack_row_codes(
        &self,
        level: Level,
        row: usize,
        out: &mut [u8],
    ) -> Result<(), NestedError> {
        self.check_read(level, row, out.len())?;
        for (col, code) in out.iter_mut().enumerate() {
            *code = self.code(level, row, col);
        }
        Ok(())
    }

    /// The weights of one row, `out` `[cols]`.
    pub fn dequantize_row(
        &self,
        level: Level,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), NestedError> {
        self.check_read(level, row, out.len())?;
        let (table, row_scale) = (self.tile_table(row / TILE_ROWS), self.row_scale(row));
        for (group, weights) in out.chunks_mut(GROUP).enumerate() {
            let step = self.step(row, group);
            let scale = self.codec.steps.weight_scale(row_scale, level, step);
            for (k, weight) in weights.iter_mut().enumerate() {
                let code = self.code(level, row, group * GROUP + k);
                *weight = scale * f32::from(self.codec.value(level, table, code));
            }
        }
        Ok(())
    }

    /// The decoded values of one group of one tile, `out` `[16 rows][32 columns]`.
    ///
    /// Values of rows and columns beyond the matrix are whatever its padding decodes to: their
    /// scale or their activation is 0. Row-major planes hold no such rows; they give 0.
    pub fn decode_group_values(
        &self,
        level: Level,
        tile: usize,
        group: usize,
        out: &mut [i16; TILE_ROWS * GROUP],
    ) -> Result<(), NestedError> {
        self.check_level(level)?;
        in_range("tile", tile, self.sizes.grid.tiles)?;
        in_range("group", group, self.sizes.grid.groups)?;
        let table = self.tile_table(tile);
        for (index, value) in out.iter_mut().enumerate() {
            let row = tile * TILE_ROWS + index / GROUP;
            *value = if self.sizes.layout == Layout::RowMajor && row >= self.sizes.rows {
                0
            } else {
                self.codec.value(level, table, self.code(level, row, group * GROUP + index % GROUP))
            };
        }
        Ok(())
    }

    fn check_read(&self, level: Level, row: usize, found: usize) -> Result<(), NestedError> {
        self.check_level(level)?;
        in_range("row", row, self.sizes.rows)?;
        if found != self.sizes.cols {
            return Err(NestedError::Length { what: "row", expected: self.sizes.cols, found });
        }
        Ok(())
    }

    fn check_level(&self, wanted: Level) -> Result<(), NestedError> {
        if wanted > self.sizes.level {
            return Err(NestedError::LevelMissing { wanted, present: self.sizes.level });
        }
        Ok(())
    }

    /// The leading bits of one code; planes that are not present count as zero.
    fn code(&self, level: Level, row: usize, col: usize) -> u8 {
        let digit = |plane: Option<&[u8]>, bits: u8| {
            let (byte, shift) = self.sizes.grid.position(self.sizes.layout, bits, row, col);
            plane.map_or(0, |plane| plane[byte] >> shift & ((1 << bits) - 1))
        };
        let planes = &self.planes;
        let mut code = digit(Some(&planes.p2[self.sizes.parts.codes.clone()]), 2) << 6;
        if level >= Level::L3 {
            let (b3, b4) = match planes.p34 {
                Some(merged) => {
                    let both = digit(Some(merged), 2);
                    (both >> 1, both & 1)
                }
                None => (digit(planes.p3, 1), digit(planes.p4, 1)),
            };
            code |= b3 << 5;
            code |= if level >= Level::L4 { b4 << 4 } else { 0 };
        }
        code |= if level >= Level::L6 { digit(planes.p6, 2) << 2 } else { 0 };
        code | if level >= Level::L8 { digit(planes.p8, 2) } else { 0 }
    }
}

impl NestedPlanes<'_> {
    /// The highest level for which all planes are present.
    fn level(&self) -> Level {
        let merged = self.p34.is_some();
        let present = [
            (Level::L3, merged || self.p3.is_some()),
            (Level::L4, merged || self.p4.is_some()),
            (Level::L6, self.p6.is_some()),
            (Level::L8, self.p8.is_some()),
        ];
        present.iter().take_while(|(_, there)| *there).last().map_or(Level::L2, |(level, _)| *level)
    }
}

fn in_range(what: &'static str, index: usize, limit: usize) -> Result<(), NestedError> {
    if index < limit { Ok(()) } else { Err(NestedError::OutOfRange { what, index, limit }) }
}

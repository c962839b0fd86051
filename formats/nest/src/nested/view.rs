//! The scalar reference implementation, which reads values and weights directly from the planes.
//!
//! Faster readers are tested against this one, so it is kept simple.

use half::f16;

use super::layout::{BaseParts, Grid, ScaledParts, base_parts, merged_bytes};
use super::scaled::{Minima, ScaleType, ScaledCodec, SubScale};
use super::scaled_pack::{Run, plane_shift};
use super::{CodecRef, GROUP, Layout, NestedError, PlaneForm, TILE_ROWS};
use crate::{Invariant, Level, Plane};

/// The present planes of a matrix, with P3 and P4 either apart or merged.
#[derive(Clone, Copy, Debug, Default)]
pub struct NestedPlanes<'a> {
    /// Plane P2 with the scales and tables.
    pub p2: &'a [u8],
    /// Plane P3.
    pub p3: Option<&'a [u8]>,
    /// Plane P4.
    pub p4: Option<&'a [u8]>,
    /// P3 and P4 merged; takes precedence over `p3` and `p4`.
    pub p34: Option<&'a [u8]>,
    /// Plane P6.
    pub p6: Option<&'a [u8]>,
    /// Plane P8.
    pub p8: Option<&'a [u8]>,
}

#[derive(Clone, Debug)]
enum Parts {
    Nested(BaseParts),
    Scaled(ScaledParts),
}

/// Factors from decoded values to weights for the 16 rows of a tile in one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupScales {
    /// Number of sub-blocks in the group: one of 32 columns or two of 16.
    pub sub_blocks: usize,
    /// Weight scales, `[sub-blocks, 16]`; 0 in rows outside the matrix.
    pub scales: [[f32; TILE_ROWS]; 2],
    /// Minima to add to the weights, `[sub-blocks, 16]`, if the codec has minima.
    pub minima: Option<[[f32; TILE_ROWS]; 2]>,
}

/// A view of a matrix in borrowed planes.
#[derive(Clone, Debug)]
pub struct NestedView<'a> {
    codec: CodecRef<'a>,
    planes: NestedPlanes<'a>,
    sizes: CheckedSizes,
}

/// Sizes of a matrix whose planes have been checked for length.
#[derive(Clone, Debug)]
pub struct CheckedSizes {
    rows: usize,
    cols: usize,
    layout: Layout,
    grid: Grid,
    parts: Parts,
    form: PlaneForm,
    level: Level,
}

impl CheckedSizes {
    /// Returns the number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the layout of the planes.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Returns the codec parameters that determine the sizes.
    pub(super) fn form(&self) -> PlaneForm {
        self.form
    }

    /// Returns the highest level whose planes are all present.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns a view of the checked planes, or of others of the same lengths.
    ///
    /// # Panics
    /// Panics if the codec does not have the same form as the checked view.
    pub fn view<'a>(
        &self,
        codec: impl Into<CodecRef<'a>>,
        planes: NestedPlanes<'a>,
    ) -> NestedView<'a> {
        let codec = codec.into();
        assert!(codec.form() == self.form, "sizes of {:?}", self.form);
        NestedView { codec, planes, sizes: self.clone() }
    }
}

impl<'a> NestedView<'a> {
    /// Creates a view after checking the length of each plane; [`Self::check`] checks the contents.
    pub fn new(
        rows: usize,
        cols: usize,
        layout: Layout,
        codec: impl Into<CodecRef<'a>>,
        planes: NestedPlanes<'a>,
    ) -> Result<Self, NestedError> {
        let codec = codec.into();
        let shape = || NestedError::Shape { rows, cols };
        let grid = Grid::new(rows, cols).ok_or_else(shape)?;
        let parts = match codec.form() {
            PlaneForm::Nested => base_parts(layout, rows, cols).map(Parts::Nested),
            PlaneForm::Scaled(form) => {
                ScaledParts::new(&form, layout, rows, cols).map(Parts::Scaled)
            }
        };
        let parts = parts.ok_or_else(shape)?;
        let all = [Some(planes.p2), planes.p3, planes.p4, planes.p6, planes.p8];
        for (plane, bytes) in Plane::ALL.into_iter().zip(all) {
            let expected = codec.form().plane_bytes(layout, rows, cols, plane).ok_or_else(shape)?;
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
        let form = codec.form();
        let level = planes.level(form);
        let sizes = CheckedSizes { rows, cols, layout, grid, parts, form, level };
        Ok(Self { codec, planes, sizes })
    }

    /// Sizes of the view, from which further views of the same planes can be made without a check.
    pub fn sizes(&self) -> &CheckedSizes {
        &self.sizes
    }

    /// Checks the contents of plane P2: scales, steps, tables. Meant to be called once, after loading.
    ///
    /// Reading an unchecked view does not fail, but may return wrong weights.
    pub fn check(&self) -> Result<(), NestedError> {
        match (&self.sizes.parts, self.codec) {
            (Parts::Nested(parts), CodecRef::Nested(codec)) => {
                self.check_nested(parts, codec.tables.len())
            }
            (Parts::Scaled(parts), CodecRef::Scaled(codec)) => self.check_scaled(parts, codec),
            _ => Ok(None.invariant("sizes are those of the codec")?),
        }
    }

    fn check_nested(&self, parts: &BaseParts, tables: usize) -> Result<(), NestedError> {
        for row in 0..self.sizes.rows {
            let scale = self.row_scale(row).to_f32();
            if !(scale.is_finite() && scale >= 0.0) {
                return Err(NestedError::RowScale { row, scale });
            }
        }
        for tile in 0..self.sizes.grid.tiles {
            let table = self.tile_table(tile);
            if usize::from(table) >= tables {
                return Err(NestedError::TableIndex { tile, table, tables });
            }
        }
        if self.sizes.layout == Layout::RowMajor {
            let steps = &self.planes.p2[parts.steps.clone()];
            if let Some(at) = steps.iter().position(|step| *step > 31) {
                let (row, group) = (at / self.sizes.grid.groups, at % self.sizes.grid.groups);
                return Err(NestedError::Step { row, group, step: steps[at] });
            }
        }
        Ok(())
    }

    /// Checks that scales and minima and their products are finite.
    fn check_scaled(&self, parts: &ScaledParts, codec: &ScaledCodec) -> Result<(), NestedError> {
        let largest = codec.form.sub_scale.largest();
        let bytes = &self.planes.p2[parts.sub_scales.clone()];
        if largest < u8::MAX
            && let Some(at) = bytes.iter().position(|byte| *byte > largest)
        {
            let found = i64::from(bytes[at]);
            return Err(NestedError::Codec { what: "sub-scale", found, expected: "a number" });
        }
        let half = |range: &std::ops::Range<usize>| {
            let (numbers, _) = self.planes.p2[range.clone()].as_chunks::<2>();
            numbers.iter().all(|bytes| u16::from_le_bytes(*bytes) & 0x7c00 != 0x7c00)
        };
        // Products of finite half floats, one-byte integers and units are always finite.
        if codec.form.scale == ScaleType::F16
            && !matches!(codec.form.sub_scale, SubScale::E4m3 | SubScale::E8m0)
            && half(&parts.scales)
            && half(&parts.minima)
        {
            return Ok(());
        }
        let unit = Level::ALL.map(|level| codec.unit(level)).into_iter().fold(1.0, f32::max);
        for row in 0..self.sizes.rows {
            for group in 0..self.sizes.grid.groups {
                for sub in 0..codec.form.sub_blocks() {
                    let scale = self.scaled_factor(parts, codec, row, group, sub);
                    let minimum = self.scaled_minimum(parts, codec, row, group, sub);
                    let largest = scale * unit * 128.0;
                    if !largest.is_finite() || minimum.is_some_and(|minimum| !minimum.is_finite()) {
                        return Err(NestedError::GroupScale { row, group, scale, minimum });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the rows of the matrix, without padding.
    pub fn rows(&self) -> usize {
        self.sizes.rows
    }

    /// Returns the columns of the matrix, without padding.
    pub fn cols(&self) -> usize {
        self.sizes.cols
    }

    /// Returns the number of tiles of 16 rows.
    pub fn tiles(&self) -> usize {
        self.sizes.grid.tiles
    }

    /// Returns the number of groups of 32 columns.
    pub fn groups(&self) -> usize {
        self.sizes.grid.groups
    }

    /// Returns the layout of the planes.
    pub fn layout(&self) -> Layout {
        self.sizes.layout
    }

    /// Returns the codec of the matrix.
    pub fn codec(&self) -> CodecRef<'a> {
        self.codec
    }

    /// Returns the planes as given to [`Self::new`].
    pub fn planes(&self) -> &NestedPlanes<'a> {
        &self.planes
    }

    /// Returns the byte ranges of the parts of plane P2 in the nested code, or `None` with another codec.
    pub fn base_parts(&self) -> Option<&BaseParts> {
        match &self.sizes.parts {
            Parts::Nested(parts) => Some(parts),
            Parts::Scaled(_) => None,
        }
    }

    /// Returns the byte ranges of the parts of plane P2 with scaled integers, or `None` with another codec.
    pub fn scaled_parts(&self) -> Option<&ScaledParts> {
        match &self.sizes.parts {
            Parts::Nested(_) => None,
            Parts::Scaled(parts) => Some(parts),
        }
    }

    /// Returns the byte range of the codes in plane P2.
    fn base_codes(&self) -> std::ops::Range<usize> {
        match &self.sizes.parts {
            Parts::Nested(parts) => parts.codes.clone(),
            Parts::Scaled(parts) => parts.codes.clone(),
        }
    }

    /// Returns the highest level whose planes are all present.
    pub fn level(&self) -> Level {
        self.sizes.level
    }

    /// Returns the scale of a row in the nested code; 0 outside the matrix and with another codec.
    pub fn row_scale(&self, row: usize) -> f16 {
        let Parts::Nested(parts) = &self.sizes.parts else { return f16::ZERO };
        let bytes = &self.planes.p2[parts.row_scales.clone()];
        match bytes.get(2 * row..2 * row + 2) {
            Some([low, high]) => f16::from_le_bytes([*low, *high]),
            _ => f16::ZERO,
        }
    }

    /// Returns the table index of a tile; 0 outside the matrix and with another codec.
    pub fn tile_table(&self, tile: usize) -> u8 {
        let Parts::Nested(parts) = &self.sizes.parts else { return 0 };
        // Default: 0 outside the matrix, as documented.
        self.planes.p2[parts.tile_tables.clone()].get(tile).copied().unwrap_or(0)
    }

    /// Returns the scale step of a group, 0..=31. Outside the matrix and with another codec it is 31, a zero
    /// group.
    pub fn step(&self, row: usize, group: usize) -> u8 {
        let Parts::Nested(parts) = &self.sizes.parts else { return super::ZERO_STEP };
        if row >= self.sizes.rows || group >= self.sizes.grid.groups {
            return super::ZERO_STEP;
        }
        let steps = &self.planes.p2[parts.steps.clone()];
        if self.sizes.layout == Layout::RowMajor {
            return steps[row * self.sizes.grid.groups + group] & 31;
        }
        let cell = row / TILE_ROWS * self.sizes.grid.groups + group;
        let lane = row % TILE_ROWS;
        let low = steps[cell * 8 + lane % 8] >> (lane / 8 * 4) & 15;
        let high = &self.planes.p2[parts.step_high.clone()];
        let high = u16::from_le_bytes([high[cell * 2], high[cell * 2 + 1]]);
        low | u8::from(high >> lane & 1 == 1) << 4
    }

    /// Returns the factors from decoded values to weights for the 16 rows of a tile in one group.
    pub fn group_scales(&self, level: Level, tile: usize, group: usize) -> GroupScales {
        let (mut scales, mut minima) = ([[0.0; TILE_ROWS]; 2], [[0.0; TILE_ROWS]; 2]);
        let (sub_blocks, has_minima) = match self.codec {
            CodecRef::Nested(_) => (1, false),
            CodecRef::Scaled(codec) => (codec.form.sub_blocks(), codec.form.minima != Minima::None),
        };
        let rows = self.sizes.rows.saturating_sub(tile * TILE_ROWS).min(TILE_ROWS);
        for lane in 0..rows {
            for sub in 0..sub_blocks {
                let factors = self.factors(level, tile * TILE_ROWS + lane, group, sub);
                (scales[sub][lane], minima[sub][lane]) = (factors.scale, factors.minimum);
            }
        }
        GroupScales { sub_blocks, scales, minima: has_minima.then_some(minima) }
    }

    fn factors(&self, level: Level, row: usize, group: usize, sub: usize) -> Factors {
        match (&self.sizes.parts, self.codec) {
            (Parts::Scaled(parts), CodecRef::Scaled(codec)) => {
                let scale = self.scaled_factor(parts, codec, row, group, sub) * codec.unit(level);
                let minimum = self.scaled_minimum(parts, codec, row, group, sub);
                // Default: without minima, 0 is added.
                Factors { scale, minimum: minimum.unwrap_or(0.0) }
            }
            (Parts::Nested(_), CodecRef::Nested(codec)) => {
                let step = self.step(row, group);
                let scale = codec.steps.weight_scale(self.row_scale(row), level, step);
                Factors { scale, minimum: 0.0 }
            }
            _ => {
                debug_assert!(false, "sizes are those of the codec");
                // Default: unreachable, because sizes and codec have the same form.
                Factors { scale: 0.0, minimum: 0.0 }
            }
        }
    }

    /// Returns the product of the span's scale and the sub-block's sub-scale.
    fn scaled_factor(
        &self,
        parts: &ScaledParts,
        codec: &ScaledCodec,
        row: usize,
        group: usize,
        sub: usize,
    ) -> f32 {
        let span = self.span_run(codec).index(row, group / usize::from(codec.form.span));
        let scale = codec.form.scale.get(&self.planes.p2[parts.scales.clone()], span);
        if codec.form.sub_scale == SubScale::None {
            return scale;
        }
        let number = group * codec.form.sub_blocks() + sub;
        let byte = self.planes.p2[parts.sub_scales.clone()][self.sub_run(codec).index(row, number)];
        scale * codec.form.sub_scale.factor(byte)
    }

    /// Returns the minimum to add to the weights of a sub-block, if the codec has minima.
    fn scaled_minimum(
        &self,
        parts: &ScaledParts,
        codec: &ScaledCodec,
        row: usize,
        group: usize,
        sub: usize,
    ) -> Option<f32> {
        if codec.form.minima == Minima::None {
            return None;
        }
        let span = self.span_run(codec).index(row, group / usize::from(codec.form.span));
        let minimum = codec.form.scale.get(&self.planes.p2[parts.minima.clone()], span);
        if codec.form.minima == Minima::Spans {
            return Some(minimum);
        }
        let at = self.sub_run(codec).index(row, group * codec.form.sub_blocks() + sub);
        let factor = match codec.form.has_sub_minima() {
            true => self.planes.p2[parts.sub_minima.clone()][at],
            false => self.planes.p2[parts.sub_scales.clone()][at] >> 4,
        };
        Some(-(minimum * f32::from(factor)))
    }

    fn span_run(&self, codec: &ScaledCodec) -> Run {
        let of_row = self.sizes.grid.groups.div_ceil(usize::from(codec.form.span));
        Run { layout: self.sizes.layout, of_row, bytes: codec.form.scale.bytes() }
    }

    fn sub_run(&self, codec: &ScaledCodec) -> Run {
        let of_row = self.sizes.grid.groups * codec.form.sub_blocks();
        Run { layout: self.sizes.layout, of_row, bytes: 1 }
    }

    /// Reads the codes of one row into `out` `[cols]`, with the bits below `level` zero.
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

    /// Decodes the weights of one row into `out` `[cols]`.
    ///
    /// The first matrix of an expert, read from a store at level 2:
    ///
    /// ```
    /// use nestling_formats::nested::{NestedPlanes, NestedView};
    /// use nestling_formats::store::{Encoding, GroupId, Store};
    /// use nestling_formats::{Level, Plane};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// let group = store.group(&GroupId::expert_of(0, 0)).ok_or("no such expert")?;
    /// let matrix = &group.matrices[0];
    /// let Encoding::Nested { layout, .. } = matrix.encoding else { return Err("floats".into()) };
    /// let codec = store.index().codec(matrix).ok_or("no codec")?;
    ///
    /// let bytes = store.read_extent_vec(store.extent(group, Plane::P2).ok_or("P2 is absent")?)?;
    /// let parts = store.parts(group, Plane::P2).ok_or("too large")?;
    /// let planes = NestedPlanes { p2: &bytes[parts[0].range.clone()], ..NestedPlanes::default() };
    /// let view = NestedView::new(matrix.rows, matrix.cols, layout, codec, planes)?;
    /// let mut row = vec![0.0; matrix.cols];
    /// view.dequantize_row(Level::L2, 0, &mut row)?;
    /// assert!(row.iter().all(|weight| weight.is_finite()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dequantize_row(
        &self,
        level: Level,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), NestedError> {
        self.check_read(level, row, out.len())?;
        let table = self.tile_table(row / TILE_ROWS);
        let (columns, has_minima) = match self.codec {
            CodecRef::Nested(_) => (GROUP, false),
            CodecRef::Scaled(codec) => {
                (usize::from(codec.form.sub_block), codec.form.minima != Minima::None)
            }
        };
        for (block, weights) in out.chunks_mut(columns).enumerate() {
            let (group, sub) = (block * columns / GROUP, block * columns % GROUP / columns);
            let Factors { scale, minimum } = self.factors(level, row, group, sub);
            for (k, weight) in weights.iter_mut().enumerate() {
                let code = self.code(level, row, block * columns + k);
                *weight = scale * f32::from(self.codec.value(level, table, code));
                if has_minima {
                    *weight += minimum;
                }
            }
        }
        Ok(())
    }

    /// Decodes the values of one group of one tile into `out` `[16 rows][32 columns]`.
    ///
    /// Positions beyond the matrix contain the decoded padding; it has no effect, since the scale or the
    /// activation is 0. Row-major planes have no padding rows, and such rows are set to 0.
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

    /// Reads the leading bits of one code; absent planes count as zero.
    fn code(&self, level: Level, row: usize, col: usize) -> u8 {
        let form = self.codec.form();
        let digit = |bytes: Option<&[u8]>, plane: Plane| {
            let bits = form.plane_bits(plane);
            let Some(bytes) = bytes.filter(|_| bits > 0 && level >= plane.level()) else {
                return 0;
            };
            let (byte, at) = self.sizes.grid.position(self.sizes.layout, bits, row, col);
            let shift = match form {
                PlaneForm::Nested => plane.shift(),
                PlaneForm::Scaled(form) => plane_shift(&form, plane),
            };
            (bytes[byte] >> at & ((1 << bits) - 1)) << shift
        };
        let planes = &self.planes;
        let base = digit(Some(&planes.p2[self.base_codes()]), Plane::P2);
        let last = digit(planes.p6, Plane::P6) | digit(planes.p8, Plane::P8);
        let Some(merged) = planes.p34 else {
            return base | digit(planes.p3, Plane::P3) | digit(planes.p4, Plane::P4) | last;
        };
        let (byte, at) = self.sizes.grid.position(self.sizes.layout, 2, row, col);
        let held = match level {
            Level::L2 => 0,
            Level::L3 => 2,
            _ => 3,
        };
        base | (merged[byte] >> at & held) << 4 | last
    }
}

struct Factors {
    /// Factor from a decoded value to a weight.
    scale: f32,
    /// Value added to the product.
    minimum: f32,
}

impl NestedPlanes<'_> {
    /// Returns the highest level whose planes are all present.
    fn level(&self, form: PlaneForm) -> Level {
        let merged = self.p34.is_some();
        let present = [
            (Plane::P3, merged || self.p3.is_some()),
            (Plane::P4, merged || self.p4.is_some()),
            (Plane::P6, self.p6.is_some()),
            (Plane::P8, self.p8.is_some()),
        ];
        let held =
            present.iter().take_while(|(plane, there)| *there && form.plane_bits(*plane) > 0);
        held.last().map_or(Level::L2, |(plane, _)| plane.level())
    }
}

fn in_range(what: &'static str, index: usize, limit: usize) -> Result<(), NestedError> {
    if index < limit { Ok(()) } else { Err(NestedError::OutOfRange { what, index, limit }) }
}

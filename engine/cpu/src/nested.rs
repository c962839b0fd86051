//! Products of nested matrices and quantized activations, 16 rows at a time.
//!
//! For a row of weights and a row of activations, `acc` starts at 0. For each group of 32 columns, ascending,
//! `acc = fma(f32(sum), activation_scale * weight_scale, acc)`, where `sum` is the exact integer sum of value
//! times activation. `portable` computes one group at a time:
//!
//! ```text
//! for each tile of 16 rows, each block of activations' rows:
//!     for each group: decode 16 x 32 values once; for each row of the block: sums, then fma
//! ```
//!
//! The instruction sets differ in how they decode (a table in a register that is indexed by bytes) and in how
//! they multiply. Sums are exact and the float part is the same, so that the bits are the same. One decoded
//! group is used for all rows of a block, which is what makes a matrix product faster than separate
//! matrix-vector products.

use half::f16;
use nestling_formats::Invariant;
use nestling_formats::Level;
use nestling_formats::nested::{
    GROUP, NestedCodec, NestedError, NestedView, ScaleSteps, TILE_ROWS,
};

use super::planes::{CodePlanes, GroupValues, chunk_sums, digits};
use super::rows::{QuantizedRows, RowList};
use crate::fused::Fused;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) mod simd128;
#[cfg(test)]
mod tests;

/// Values of 16 rows for one row of activations.
pub type TileValues = [f32; TILE_ROWS];

/// A nested matrix prepared for products at one level.
#[derive(Clone, Debug)]
pub struct NestedWeights<'a> {
    rows: usize,
    tiles: usize,
    groups: usize,
    level: Level,
    row_scales: &'a [u8],
    tile_tables: &'a [u8],
    pub(super) steps: &'a [u8],     // [tiles, groups, 8]
    pub(super) step_high: &'a [u8], // [tiles, groups, 2]
    pub(super) planes: CodePlanes<'a>,
    pub(super) decode: &'a DecodeTables,
}

/// Decode tables of one level in the forms that kernels need.
#[derive(Clone, Debug)]
pub(super) struct DecodeTables {
    /// Values at levels 2 to 4, for each table, indexed by P2's digit, P3's bit and P4's bit. At level 2 the
    /// index is P2's digit in the two low bits.
    pub nibble: [[i8; 16]; 16],
    /// The same tables without signs, where values are multiples of a stride apart.
    pub strided: [Option<StridedTable>; 16],
    /// Values at levels 6 and 8: value = 128 * (high - 128) + (low - 128), indexed by the code's leading six
    /// bits. At level 8, the code's last two bits are above them in the index, as `d8 << 6`.
    pub high: [u8; 256],
    pub low: [u8; 256],
    /// Values at level 6 by sign and magnitude, where both codes of each pair have the same magnitude.
    pub magnitudes: Option<MagnitudeTable>,
    /// Values by formula: alpha_a, alpha_b, 8 * beta_q and the offset of x.
    pub formula: [i16; 4],
    /// Spacing of scale steps.
    pub steps: ScaleSteps,
}

/// A table of multiples of a stride: value = `stride` * `bytes`[index] - `zero`. Bytes are at most
/// [`StridedTable::MAX_BYTE`], so that four products with activations add up in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StridedTable {
    pub bytes: [u8; 16],
    pub stride: i16,
    pub zero: i32,
}

impl StridedTable {
    /// Maximum of a byte: four products of it and 127 stay below 2^15.
    pub const MAX_BYTE: u8 = 64;

    /// Finds the largest stride, or returns `None` if bytes are too large even so.
    fn new(values: &[i8]) -> Option<Self> {
        let lowest = *values.iter().min()?;
        let above = |value: &i8| value.abs_diff(lowest);
        let stride = values.iter().map(above).fold(0, greatest_divisor).max(1);
        let mut bytes = [0; 16];
        for (byte, value) in bytes.iter_mut().zip(values) {
            *byte = above(value) / stride;
        }
        let fits = bytes.iter().all(|byte| *byte <= Self::MAX_BYTE);
        fits.then(|| Self { bytes, stride: stride.into(), zero: -i32::from(lowest) })
    }

    /// Returns the largest byte.
    #[cfg(target_arch = "x86_64")]
    pub fn largest(&self) -> u8 {
        self.bytes.iter().fold(0, |largest, byte| largest.max(*byte))
    }
}

/// Returns the greatest common divisor.
fn greatest_divisor(a: u8, b: u8) -> u8 {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

/// Values at level 6 by sign and magnitude = 64 * high + low. A code's place is `place[p4] ^ d6`: bit 7 names
/// one of two tables of 16 magnitudes, the low four bits the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MagnitudeTable {
    pub place: [u8; 16],
    pub sign: [i8; 16],
    pub high: [[u8; 16]; 2],
    /// Digits up to 63: four products of them and 127 stay below 2^15.
    pub low: [[u8; 16]; 2],
}

impl MagnitudeTable {
    /// The table whose values are all 0.
    #[cfg(target_arch = "x86_64")]
    pub const ZERO: Self =
        Self { place: [0; 16], sign: [1; 16], high: [[0; 16]; 2], low: [[0; 16]; 2] };

    /// Builds the table of the values of codes. Returns `None` if values of opposite codes are not opposite (by
    /// rounding, or since cells overlap at zero), or if one exceeds 127 * 64 + 63.
    fn new(value: impl Fn(u8) -> i16) -> Option<Self> {
        let mut out = Self { place: [0; 16], sign: [1; 16], high: [[0; 16]; 2], low: [[0; 16]; 2] };
        for p4 in 0..8u8 {
            let place = (p4 >> 2) << 7 | (p4 & 3) << 2;
            out.place[usize::from(8 + p4)] = place;
            out.place[usize::from(7 - p4)] = place | 3;
            out.sign[usize::from(7 - p4)] = -1;
            for d6 in 0..4 {
                let code = (8 + p4) << 4 | d6 << 2;
                let magnitude = value(code);
                if value(!code & 0xfc) != -magnitude || !(0..1 << 13).contains(&magnitude) {
                    return None;
                }
                let (table, entry) = (usize::from(p4 >> 2), usize::from((p4 & 3) << 2 | d6));
                out.high[table][entry] = (magnitude >> 6) as u8;
                out.low[table][entry] = (magnitude & 63) as u8;
            }
        }
        Some(out)
    }
}

impl DecodeTables {
    fn new(codec: &NestedCodec, level: Level) -> Self {
        let mut decode = Self {
            nibble: [[0; 16]; 16],
            strided: [None; 16],
            high: [0; 256],
            low: [0; 256],
            magnitudes: None,
            formula: [0; 4],
            steps: codec.steps,
        };
        if level >= Level::L6 {
            decode.fill_digits(codec, level);
            if level == Level::L6 {
                decode.magnitudes = MagnitudeTable::new(|code| codec.value(level, 0, code));
            }
            return decode;
        }
        for (values, index) in decode.nibble.iter_mut().zip(0..) {
            for (value, nibble) in values.iter_mut().zip(0u8..) {
                let code = if level == Level::L2 { nibble << 6 } else { nibble << 4 };
                *value = codec.value(level, index, code) as i8;
            }
        }
        let indices = if level == Level::L2 { 4 } else { 16 };
        for (strided, values) in decode.strided.iter_mut().zip(&decode.nibble) {
            *strided = StridedTable::new(&values[..indices]);
        }
        decode
    }

    fn fill_digits(&mut self, codec: &NestedCodec, level: Level) {
        for index in 0..=255u8 {
            let value = codec.value(level, 0, index.rotate_left(2));
            let high = (value + 64) >> 7;
            self.high[usize::from(index)] = (high + 128) as u8;
            self.low[usize::from(index)] = (value - 128 * high + 128) as u8;
        }
        let (beta, below) = (i16::from(codec.beta_q), if level == Level::L6 { 12 } else { 15 });
        self.formula =
            [codec.alpha_a as i16, codec.alpha_b as i16, 8 * beta, 4 * (256 * 15 + beta * below)];
    }
}

/// Decode tables for each level of one codec. Matrices that share the codec share them.
#[derive(Clone, Debug)]
pub struct CodecTables {
    levels: [DecodeTables; 5],
}

impl CodecTables {
    /// Builds the tables of a codec.
    pub fn new(codec: &NestedCodec) -> Self {
        Self { levels: Level::ALL.map(|level| DecodeTables::new(codec, level)) }
    }
}

impl<'a> NestedWeights<'a> {
    /// Prepares a view of tiled planes for products at `level`. `tables` belong to its codec.
    ///
    /// # Errors
    /// Fails with [`NestedError::LevelMissing`] if planes of the level are missing, and with
    /// [`NestedError::OutOfRange`] for the row-major layout.
    pub fn new(
        view: &NestedView<'a>,
        level: Level,
        tables: &'a CodecTables,
    ) -> Result<Self, NestedError> {
        let parts = view.base_parts().invariant("the tables are those of the view's codec")?;
        let p2 = view.planes().p2;
        Ok(Self {
            rows: view.rows(),
            tiles: view.tiles(),
            groups: view.groups(),
            level,
            row_scales: &p2[parts.row_scales.clone()],
            tile_tables: &p2[parts.tile_tables.clone()],
            steps: &p2[parts.steps.clone()],
            step_high: &p2[parts.step_high.clone()],
            planes: CodePlanes::new(view, parts.codes.clone(), level)?,
            decode: &tables.levels[level.index()],
        })
    }

    /// Returns the number of rows, without padding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of tiles of 16 rows.
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// Returns the number of groups of 32 columns.
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// Returns the level of the products.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Returns the number of bytes of the matrix that one product reads: planes, scales and steps.
    pub fn bytes(&self) -> usize {
        let base = self.row_scales.len() + self.tile_tables.len();
        base + self.steps.len() + self.step_high.len() + self.planes.bytes()
    }

    /// Returns the size of one unit of the level's values.
    pub(super) fn unit(&self) -> f32 {
        self.decode.steps.unit(self.level)
    }

    /// Returns the row scales of a tile, multiplied by the unit of the level's values.
    pub(super) fn row_units(&self, tile: usize) -> [f32; TILE_ROWS] {
        let bytes = &self.row_scales[tile * 2 * TILE_ROWS..];
        let (mut units, size) = ([0.0; TILE_ROWS], self.unit());
        for (unit, bytes) in units.iter_mut().zip(bytes.as_chunks::<2>().0) {
            *unit = f16::from_le_bytes(*bytes).to_f32() * size;
        }
        units
    }

    /// Returns the table of a tile.
    pub(super) fn nibble_table(&self, tile: usize) -> &[i8; 16] {
        &self.decode.nibble[usize::from(self.tile_tables[tile] & 15)]
    }

    /// Returns the table of a tile without signs, if there is one.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn strided_table(&self, tile: usize) -> Option<&StridedTable> {
        self.decode.strided[usize::from(self.tile_tables[tile] & 15)].as_ref()
    }

    /// Returns the steps of 16 rows in one group.
    fn group_steps(&self, cell: usize) -> [u8; TILE_ROWS] {
        let low = self.steps.get(cell * 8..cell * 8 + 8).unwrap_or(&[0; 8]);
        let high = self.step_high.get(cell * 2..cell * 2 + 2).unwrap_or(&[0; 2]);
        std::array::from_fn(|row| {
            let nibble = low[row % 8] >> (row / 8 * 4) & 15;
            nibble | (high[row / 8] >> (row % 8) & 1) << 4
        })
    }
}

#[inline(always)]
fn decode_group(weights: &NestedWeights, tile: usize, cell: usize, out: &mut GroupValues) {
    let (planes, mut codes) = (&weights.planes, [[0u8; 64]; 8]);
    if weights.level < Level::L6 {
        let shift = if weights.level == Level::L2 { 0 } else { 2 };
        digits(planes.p2, cell, &mut codes, shift);
        planes.middle_digits(cell, &mut codes, 0);
        let table = weights.nibble_table(tile);
        for (values, codes) in out.iter_mut().zip(&codes) {
            for (value, code) in values.iter_mut().zip(codes) {
                *value = i16::from(table[usize::from(code & 15)]);
            }
        }
        return;
    }
    digits(planes.p2, cell, &mut codes, 4);
    planes.middle_digits(cell, &mut codes, 2);
    digits(planes.p6, cell, &mut codes, 0);
    if weights.level == Level::L8 {
        digits(planes.p8, cell, &mut codes, 6);
    }
    let (high, low) = (&weights.decode.high, &weights.decode.low);
    for (values, codes) in out.iter_mut().zip(&codes) {
        for (value, code) in values.iter_mut().zip(codes) {
            let code = usize::from(*code);
            *value = 128 * (i16::from(high[code]) - 128) + i16::from(low[code]) - 128;
        }
    }
}

/// Converts the weights of one tile to floats, `[16, 32 * groups]`: value times scale.
pub(super) fn dequantize_tile(weights: &NestedWeights, tile: usize, out: &mut [f32]) {
    let (units, cols) = (weights.row_units(tile), weights.groups * GROUP);
    let factors = weights.decode.steps.factors();
    let mut values = [[0; 64]; 8];
    for group in 0..weights.groups {
        let cell = tile * weights.groups + group;
        decode_group(weights, tile, cell, &mut values);
        let steps = weights.group_steps(cell);
        for (row, out) in out.chunks_exact_mut(cols).take(TILE_ROWS).enumerate() {
            let scale = units[row] * factors[usize::from(steps[row] & 31)];
            let out = &mut out[group * GROUP..(group + 1) * GROUP];
            for (out, values) in out.as_chunks_mut::<4>().0.iter_mut().zip(&values) {
                for k in 0..4 {
                    out[k] = scale * f32::from(values[row * 4 + k]);
                }
            }
        }
    }
}

/// Number of activation rows that share one decoded group.
const PORTABLE_BLOCK: usize = 16;

/// Computes one tile for any number of rows of activations, on any machine. `out[i]` is the product with row
/// `rows[i]` of `x`.
#[inline(always)]
pub(super) fn portable(
    weights: &NestedWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let units = weights.row_units(tile);
    let factors = weights.decode.steps.factors();
    let mut values = [[0; 64]; 8];
    for (rows, out) in rows.chunks(PORTABLE_BLOCK).zip(out.chunks_mut(PORTABLE_BLOCK)) {
        out.fill([0.0; TILE_ROWS]);
        for group in 0..weights.groups {
            let cell = tile * weights.groups + group;
            decode_group(weights, tile, cell, &mut values);
            let steps = weights.group_steps(cell);
            let scales: [f32; TILE_ROWS] =
                std::array::from_fn(|row| units[row] * factors[usize::from(steps[row] & 31)]);
            for (row, out) in rows.iter().zip(out.iter_mut()) {
                let x = &x.row(*row as usize)[group];
                let sums = chunk_sums(&values, x, 0);
                for i in 0..TILE_ROWS {
                    out[i] = (sums[i] as f32).fused(x.scale * scales[i], out[i]);
                }
            }
        }
    }
}

/// Returns whether all reads of a kernel are in bounds.
pub(super) fn fits(
    weights: &NestedWeights,
    tile: usize,
    rows: RowList,
    out: &[TileValues],
) -> bool {
    tile < weights.tiles
        && rows.source().groups() == weights.groups
        && rows.rows().len() == out.len()
}

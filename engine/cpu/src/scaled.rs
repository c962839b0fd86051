//! Products of matrices of scaled integers and quantized activations, 16 rows at a time.
//!
//! For a row of weights and a row of activations, `acc` starts at 0. For each group of 32 columns, ascending,
//! and each sub-block: `acc = fma(f32(sum), activation_scale * weight_scale, acc)`, where `sum` is the exact
//! integer sum of value times activation. With minima, each sub-block then adds `acc = fma(activation_scale *
//! f32(sum of activations), minimum, acc)`.
//!
//! The storage of scales depends on the type of the file, and the division of codes into digits depends on
//! the number of bits. Products are independent of both: a `ScalePanel` holds the weight scales and minima of
//! `RUN` groups as floats, and a decoded group holds its values.
//!
//! ```text
//! for each tile of 16 rows, each block of activations' rows:
//!     for each 8 groups: weight scales and minima
//!         for each group: decode 16 x 32 values once
//!             for each row of the block: sums of each sub-block, then fma; then minima
//! ```

use half::bf16;
use nestling_formats::nested::{
    CodecRef, GROUP, LinearValues, Minima, NestedError, NestedView, ScaleType, ScaledCodec,
    ScaledForm, SubScale, TILE_ROWS,
};
use nestling_formats::{Invariant, Level};

use super::nested::TileValues;
use super::planes::{CodePlanes, GroupValues, bits, chunk_sums, digits};
use super::rows::{QuantizedGroup, QuantizedRows, RowList};
use crate::fused::Fused;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(test)]
mod tests;

/// Number of groups whose scales are decoded together: the longest span.
const RUN: usize = 8;

/// Decode tables for each level of one codec. Matrices that share the codec share them.
#[derive(Clone, Debug)]
pub struct ScaledTables {
    form: ScaledForm,
    levels: [LevelTable; 5],
}

/// Mapping from codes to values at one level.
#[derive(Clone, Debug)]
struct LevelTable {
    /// Values indexed by a code's leading bits: two at level 2, four at 3 and 4, all at 6 and 8. Higher bits
    /// of the index are ignored.
    values: [i8; 256],
    /// Unit of the values, a power of two.
    unit: f32,
    /// The same values by formula, in unsigned bytes.
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(dead_code, reason = "for vectors")
    )]
    unsigned: Unsigned,
}

/// Values as `byte * stride - zero`.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "for x86 above all"))]
struct Unsigned {
    /// Bytes for the leading bits of codes at levels 2 to 4. At higher levels, the bits are the byte.
    bytes: [u8; 16],
    stride: i32,
    zero: i32,
    /// Largest byte that occurs.
    largest: u8,
}

impl LevelTable {
    fn new(codec: &ScaledCodec, level: Level) -> Self {
        let bits = match level {
            Level::L3 => Level::L4.bits(),
            _ => level.bits().min(codec.form.bits.max(Level::L4.bits())),
        };
        let mut values = [0; 256];
        for (value, index) in values.iter_mut().zip(0..=255u8) {
            *value = codec.value(level, index << (8 - bits));
        }
        let (narrow, _) = values.as_chunks::<16>();
        let unsigned = match level {
            Level::L6 => Unsigned::linear(codec.linear[0], bits),
            Level::L8 => Unsigned::linear(codec.linear[1], bits),
            _ => Unsigned::of(&narrow[0]),
        };
        Self { values, unit: codec.unit(level), unsigned }
    }
}

impl Unsigned {
    fn of(values: &[i8; 16]) -> Self {
        let lowest = values.iter().fold(i8::MAX, |lowest, value| lowest.min(*value));
        let bytes = values.map(|value| value.abs_diff(lowest));
        let largest = bytes.iter().fold(0, |largest, byte| largest.max(*byte));
        Self { bytes, stride: 1, zero: -i32::from(lowest), largest }
    }

    fn linear(values: LinearValues, bits: u8) -> Self {
        let LinearValues { stride, zero } = values;
        let largest = u8::MAX >> (8 - bits);
        Self { bytes: [0; 16], stride: stride.into(), zero: zero.into(), largest }
    }
}

impl ScaledTables {
    /// Builds the tables of a codec.
    ///
    /// # Errors
    /// Fails with [`NestedError::Codec`] if parameters are invalid.
    pub fn new(codec: &ScaledCodec) -> Result<Self, NestedError> {
        codec.check()?;
        let levels = Level::ALL.map(|level| LevelTable::new(codec, level));
        Ok(Self { form: codec.form, levels })
    }
}

/// A matrix of scaled integers prepared for products at one level.
#[derive(Clone, Debug)]
pub struct ScaledWeights<'a> {
    rows: usize,
    tiles: usize,
    groups: usize,
    spans: usize,
    level: Level,
    form: ScaledForm,
    scales: &'a [u8],     // [tiles, spans, 16], as minima
    minima: &'a [u8],     // empty without
    sub_scales: &'a [u8], // [tiles, groups, sub-blocks, 16], as their minima; empty without
    sub_minima: &'a [u8],
    planes: CodePlanes<'a>,
    table: &'a LevelTable,
}

impl<'a> ScaledWeights<'a> {
    /// Prepares a view of tiled planes for products at `level`. `tables` belong to its codec.
    ///
    /// # Errors
    /// Fails with [`NestedError::LevelMissing`] if planes of the level are missing, and with
    /// [`NestedError::OutOfRange`] for the row-major layout.
    pub fn new(
        view: &NestedView<'a>,
        level: Level,
        tables: &'a ScaledTables,
    ) -> Result<Self, NestedError> {
        let form = match view.codec() {
            CodecRef::Scaled(codec) => Some(codec.form),
            CodecRef::Nested(_) => None,
        };
        let form = form.filter(|form| *form == tables.form);
        let form = form.invariant("the tables are those of the view's codec")?;
        let parts = view.scaled_parts().invariant("parts are those of the view's codec")?;
        let p2 = view.planes().p2;
        Ok(Self {
            rows: view.rows(),
            tiles: view.tiles(),
            groups: view.groups(),
            spans: view.groups().div_ceil(usize::from(form.span)),
            level,
            form,
            scales: &p2[parts.scales.clone()],
            minima: &p2[parts.minima.clone()],
            sub_scales: &p2[parts.sub_scales.clone()],
            sub_minima: &p2[parts.sub_minima.clone()],
            planes: CodePlanes::new(view, parts.codes.clone(), level)?,
            table: &tables.levels[level.index()],
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

    /// Returns the number of bytes of the matrix that one product reads: planes and scales.
    pub fn bytes(&self) -> usize {
        let scales = self.scales.len() + self.minima.len();
        scales + self.sub_scales.len() + self.sub_minima.len() + self.planes.bytes()
    }

    fn has_minima(&self) -> bool {
        self.form.minima != Minima::None
    }

    /// Returns the number of bits of a code below its leading four: 0 up to level 4.
    fn last_bits(&self) -> u8 {
        match self.level {
            Level::L2 | Level::L3 | Level::L4 => 0,
            level => level.bits().min(self.form.bits) - Level::L4.bits(),
        }
    }

    /// Returns whether each run of groups is one span whose numbers are half floats, and the unit is 1.
    #[cfg(target_arch = "x86_64")]
    fn has_plain_spans(&self) -> bool {
        let is_span = usize::from(self.form.span) == RUN && self.groups.is_multiple_of(RUN);
        is_span && self.form.scale == ScaleType::F16 && self.table.unit == 1.0
    }

    /// Returns the bytes of a group's span in an array of span numbers.
    #[inline(always)]
    fn span(&self, part: &'a [u8], tile: usize, group: usize) -> &'a [u8] {
        let bytes = TILE_ROWS * self.form.scale.bytes();
        // The number of groups of a span is a power of two.
        let index = tile * self.spans + (group >> self.form.span.trailing_zeros());
        &part[index * bytes..(index + 1) * bytes]
    }

    #[inline(always)]
    fn sub_block(&self, part: &'a [u8], index: usize) -> &'a [u8; TILE_ROWS] {
        &part.as_chunks().0[index]
    }
}

/// Weight scales and minima of up to [`RUN`] groups.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct ScalePanel {
    /// Weight scales, `[groups, sub-blocks, 16]`.
    scales: [[f32; TILE_ROWS]; 2 * RUN],
    /// Minima in the same layout, if the codec has them.
    minima: [[f32; TILE_ROWS]; 2 * RUN],
}

impl ScalePanel {
    const ZERO: Self =
        Self { scales: [[0.0; TILE_ROWS]; 2 * RUN], minima: [[0.0; TILE_ROWS]; 2 * RUN] };

    /// Decodes the groups from `first` on, which is a multiple of [`RUN`]. `widen` converts the numbers of a
    /// span to floats.
    #[inline(always)]
    fn fill(
        &mut self,
        weights: &ScaledWeights,
        tile: usize,
        first: usize,
        widen: impl Fn(ScaleType, &[u8]) -> TileValues,
    ) {
        let (form, unit) = (&weights.form, weights.table.unit);
        let (subs, span) = (form.sub_blocks(), usize::from(form.span));
        let (mut scales, mut minima) = ([0.0; TILE_ROWS], [0.0; TILE_ROWS]);
        for group in 0..RUN.min(weights.groups - first) {
            if group.is_multiple_of(span) {
                scales = widen(form.scale, weights.span(weights.scales, tile, first + group));
                if weights.has_minima() {
                    minima = widen(form.scale, weights.span(weights.minima, tile, first + group));
                }
                if form.minima == Minima::SubBlocks {
                    // These minima are subtracted: the product below carries the sign.
                    minima = minima.map(|minimum| -minimum);
                }
            }
            for sub in 0..subs {
                let at = (tile * weights.groups + first + group) * subs + sub;
                let factors =
                    || sub_factors(form.sub_scale, weights.sub_block(weights.sub_scales, at));
                let out = &mut self.scales[group * subs + sub];
                *out = match form.sub_scale {
                    SubScale::None => times(&scales, &[unit; TILE_ROWS]),
                    _ => times(&times(&scales, &factors()), &[unit; TILE_ROWS]),
                };
                let out = &mut self.minima[group * subs + sub];
                match form.minima {
                    Minima::None => {}
                    Minima::Spans => *out = minima,
                    Minima::SubBlocks => {
                        let integers = match form.has_sub_minima() {
                            true => *weights.sub_block(weights.sub_minima, at),
                            false => {
                                weights.sub_block(weights.sub_scales, at).map(|byte| byte >> 4)
                            }
                        };
                        *out = times(&minima, &integers.map(f32::from));
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn times(a: &TileValues, b: &TileValues) -> TileValues {
    std::array::from_fn(|row| a[row] * b[row])
}

/// Returns the factors of the scales for the bytes of 16 rows: [`SubScale::factor`] without branches.
#[inline(always)]
fn sub_factors(sub_scale: SubScale, bytes: &[u8; TILE_ROWS]) -> TileValues {
    match sub_scale {
        SubScale::None => [1.0; TILE_ROWS],
        SubScale::U8 => bytes.map(f32::from),
        SubScale::I8 => bytes.map(|byte| f32::from(byte as i8)),
        SubScale::Nibbles => bytes.map(|byte| f32::from(byte & 15)),
        SubScale::E4m3 => {
            bytes.map(|byte| f32::from_bits(u32::from(byte) << E4M3_SHIFT) * E4M3_FACTOR)
        }
        SubScale::E8m0 => bytes.map(|byte| f32::from_bits((u32::from(byte) << 23).max(E8M0_LEAST))),
    }
}

/// Conversion of E4M3: shifted left by the 20 bits of mantissa that it lacks, it is an f32 that is too small
/// by this factor, because its bias is less by 120. This includes subnormal numbers.
const E4M3_SHIFT: u32 = 20;
const E4M3_FACTOR: f32 = f32::from_bits((127 + 120) << 23);

/// Conversion of finite binary16 numbers, whose bias is less by 112.
const F16_SHIFT: u32 = 13;
const F16_FACTOR: f32 = f32::from_bits((127 + 112) << 23);

/// Smallest E8M0 value, 2^-127, the only one that is subnormal as f32.
const E8M0_LEAST: u32 = 1 << 22;

/// Converts sixteen numbers of a span to floats, without branches.
#[inline(always)]
fn widen(scale: ScaleType, bytes: &[u8]) -> TileValues {
    let pair = |row: usize| [bytes[2 * row], bytes[2 * row + 1]];
    match scale {
        ScaleType::None => [1.0; TILE_ROWS],
        ScaleType::F16 => std::array::from_fn(|row| {
            let number = u16::from_le_bytes(pair(row));
            let magnitude = f32::from_bits(u32::from(number & 0x7fff) << F16_SHIFT) * F16_FACTOR;
            f32::from_bits(magnitude.to_bits() | u32::from(number & 0x8000) << 16)
        }),
        ScaleType::Bf16 => std::array::from_fn(|row| bf16::from_le_bytes(pair(row)).to_f32()),
        ScaleType::F32 => std::array::from_fn(|row| {
            let [a, b] = [pair(2 * row), pair(2 * row + 1)];
            f32::from_le_bytes([a[0], a[1], b[0], b[1]])
        }),
    }
}

#[inline(always)]
fn decode_group(weights: &ScaledWeights, cell: usize, out: &mut GroupValues) {
    let (planes, last, mut codes) = (&weights.planes, weights.last_bits(), [[0u8; 64]; 8]);
    if weights.level == Level::L2 {
        digits(planes.p2, cell, &mut codes, 0);
    } else {
        digits(planes.p2, cell, &mut codes, last + 2);
        planes.middle_digits(cell, &mut codes, last);
    }
    match last {
        0 => {}
        1 => bits(planes.p6, cell, &mut codes, 0),
        2 => digits(planes.p6, cell, &mut codes, 0),
        _ => {
            digits(planes.p6, cell, &mut codes, 2);
            digits(planes.p8, cell, &mut codes, 0);
        }
    }
    let values = &weights.table.values;
    for (out, codes) in out.iter_mut().zip(&codes) {
        for (value, code) in out.iter_mut().zip(codes) {
            *value = i16::from(values[usize::from(*code)]);
        }
    }
}

/// Converts the weights of one tile to floats, `[16, 32 * groups]`: value times scale, plus the minimum.
pub(super) fn dequantize_tile(weights: &ScaledWeights, tile: usize, out: &mut [f32]) {
    let (subs, cols) = (weights.form.sub_blocks(), weights.groups * GROUP);
    let (mut panel, mut values) = (ScalePanel::ZERO, [[0; 64]; 8]);
    for group in 0..weights.groups {
        if group.is_multiple_of(RUN) {
            panel.fill(weights, tile, group, widen);
        }
        decode_group(weights, tile * weights.groups + group, &mut values);
        for (row, out) in out.chunks_exact_mut(cols).take(TILE_ROWS).enumerate() {
            let out = &mut out[group * GROUP..(group + 1) * GROUP];
            for (chunk, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                let slot = group % RUN * subs + chunk * subs / 8;
                let scale = panel.scales[slot][row];
                for k in 0..4 {
                    out[k] = scale * f32::from(values[chunk][row * 4 + k]);
                    if weights.has_minima() {
                        out[k] += panel.minima[slot][row];
                    }
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
    weights: &ScaledWeights,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let (mut panel, mut values) = (ScalePanel::ZERO, [[0; 64]; 8]);
    for (rows, out) in rows.chunks(PORTABLE_BLOCK).zip(out.chunks_mut(PORTABLE_BLOCK)) {
        out.fill([0.0; TILE_ROWS]);
        for group in 0..weights.groups {
            if group.is_multiple_of(RUN) {
                panel.fill(weights, tile, group, widen);
            }
            decode_group(weights, tile * weights.groups + group, &mut values);
            for (row, out) in rows.iter().zip(out.iter_mut()) {
                let x = &x.row(*row as usize)[group];
                add_group(weights, &panel, group % RUN, &values, x, out);
            }
        }
    }
}

/// Adds the panel's group `group` to the sums of 16 rows.
#[inline(always)]
fn add_group(
    weights: &ScaledWeights,
    panel: &ScalePanel,
    group: usize,
    values: &GroupValues,
    x: &QuantizedGroup,
    out: &mut TileValues,
) {
    let subs = weights.form.sub_blocks();
    for (sub, values) in values.chunks_exact(8 / subs).enumerate() {
        let (sums, scales) =
            (chunk_sums(values, x, sub * 8 / subs), &panel.scales[group * subs + sub]);
        for i in 0..TILE_ROWS {
            out[i] = (sums[i] as f32).fused(x.scale * scales[i], out[i]);
        }
    }
    if !weights.has_minima() {
        return;
    }
    for (sub, x_values) in x.values.chunks_exact(GROUP / subs).enumerate() {
        let sum: i32 = x_values.iter().map(|x| i32::from(*x)).sum();
        let (x_sum, minima) = (x.scale * sum as f32, &panel.minima[group * subs + sub]);
        for i in 0..TILE_ROWS {
            out[i] = x_sum.fused(minima[i], out[i]);
        }
    }
}

/// Returns whether all reads of a kernel are in bounds.
pub(super) fn fits(
    weights: &ScaledWeights,
    tile: usize,
    rows: RowList,
    out: &[TileValues],
) -> bool {
    tile < weights.tiles
        && rows.source().groups() == weights.groups
        && rows.rows().len() == out.len()
}

//! Kernels for AVX2 with FMA, and for AVX-VNNI.
//!
//! Half a tile, eight rows of four columns, fills one 256-bit vector. Levels 2 to 4 look values up by
//! `pshufb`. With VNNI the values are unsigned, value + 128, as for AVX-512. Without it, tables whose values are
//! multiples of a stride apart are unsigned bytes for `pmaddubsw`, and several chunks are added in 16 bits before they
//! are widened. Unsigned bytes of many rows are decoded to panels. For other tables the product is `pmaddubsw` of |w|
//! and sign(x, w), which is exact because two products fit in 15 bits. Levels 6 and 8 evaluate the formula in 16-bit
//! lanes, and multiply by `pmaddwd`.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;

use super::super::planes::avx2::panel::{self, AddRows, GROUPS, Panel, PanelForm};
use super::super::planes::avx2::{
    HalfTiles, TileWork, broadcast, chunks_in_16_bits, halves, lookup_nibbles, pair_dots,
    prefetch_codes,
};
use super::super::rows::{PACKED_ROWS, PackedGroup, QuantizedGroup};
use super::{NestedWeights, RowList, TileValues};

mod digits;
mod magnitudes;
mod row;
mod strided;
mod wide;

use wide::Formula;

/// Number of activation rows that share one decoded group.
const BLOCK: usize = 16;

/// First bit of the exponent, from which a step's octave is subtracted.
const OCTAVE: i32 = 23;

/// In place of the number of chunks that are added in 16 bits: values themselves have 16.
const WIDE: usize = 16;

/// Values of one group, by chunk of four columns and half of the tile: 16-bit values at levels 6 and 8, otherwise bytes,
/// only in the first part.
struct Group([HalfTiles; 2]);

/// Defines the products of one tile. Parameters are a list of features, the number of rows up to which [`few_rows`] is
/// asked, the table of a tile, the function for packed rows, the modes of such tables besides 0 and [`WIDE`], and the sums
/// of a group.
macro_rules! products_for {
    ($module:ident, $features:literal, $few:literal, $table:path, $many:expr, [$($some:literal)*], $dots:ident) => {
        pub mod $module {
            use super::*;

            /// Computes one tile for some rows.
            ///
            /// # Safety
            /// The machine must have the features, and [`super::super::fits`] must hold.
            #[target_feature(enable = $features)]
            pub unsafe fn tile(
                weights: &NestedWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                // SAFETY: guaranteed by the caller.
                if rows.rows().len() <= $few && unsafe { few_rows(weights, tile, rows, out) } {
                    return;
                }
                let table = $table(weights, tile);
                let is_packed = weights.level < Level::L6 && !rows.packed().is_empty();
                // SAFETY: guaranteed by the caller.
                unsafe {
                    if is_packed && let Some(many) = $many(table.form(), table.mode) {
                        return panel_products(weights, tile, &table, rows.packed(), out, many);
                    }
                    match table.mode {
                        _ if weights.level >= Level::L6 => {
                            products::<WIDE>(weights, tile, &table, rows, out);
                        }
                        $($some => products::<$some>(weights, tile, &table, rows, out),)*
                        _ => products::<0>(weights, tile, &table, rows, out),
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn products<const MODE: usize>(
                weights: &NestedWeights,
                tile: usize,
                table: &Table,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                let (x, mut values, formula) = (rows.source(), Group::zero(), Formula::new(weights));
                // SAFETY: there are 16 units.
                let units = unsafe { halves(&weights.row_units(tile)) };
                for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    let mut starts = [std::ptr::null(); BLOCK];
                    for (start, row) in starts.iter_mut().zip(rows) {
                        *start = x.row(*row as usize).as_ptr();
                    }
                    out.fill([0.0; 16]);
                    for group in 0..weights.groups {
                        let cell = tile * weights.groups + group;
                        prefetch_codes(&weights.planes, cell, weights.level.bits().saturating_sub(4));
                        // SAFETY: `group` is below the groups of the weights and of the rows.
                        unsafe {
                            if MODE == WIDE {
                                wide::decode(weights, &formula, cell, &mut values.0);
                            } else {
                                let two = weights.level == Level::L2;
                                let (planes, bytes) = (&weights.planes, &mut values.0[0]);
                                lookup_nibbles(planes, two, cell, table.values, bytes);
                            }
                            let scales = scales(weights, cell, units);
                            let (twos, ones) = out.as_chunks_mut::<2>();
                            let (x, last) = starts[..rows.len()].split_at(2 * twos.len());
                            for (out, x) in twos.iter_mut().zip(x.as_chunks().0) {
                                add_group::<MODE, 2>(table, &values, group, x, scales, out);
                            }
                            for (out, x) in ones.iter_mut().zip(last) {
                                let out = std::array::from_mut(out);
                                add_group::<MODE, 1>(table, &values, group, &[*x], scales, out);
                            }
                        }
                    }
                }
            }

            /// Adds a group to the sums of 16 rows of weights and `T` rows of activations, which share loads of
            /// the values.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<const MODE: usize, const T: usize>(
                table: &Table,
                values: &Group,
                group: usize,
                x: &[*const QuantizedGroup; T],
                scales: [__m256; 2],
                out: &mut [TileValues; T],
            ) {
                // SAFETY: the rows have the group, and `out` has 16 floats for each.
                unsafe {
                    let x = std::array::from_fn(|t| &*x[t].add(group));
                    let dots = match MODE {
                        WIDE => wide::dots_of_rows(&values.0, &x),
                        _ => $dots::<MODE, T>(table, &values.0[0], &x),
                    };
                    for t in 0..T {
                        let mut sums = halves(&out[t]);
                        let scale_of_x = _mm256_set1_ps(x[t].scale);
                        for half in 0..2 {
                            let scale = _mm256_mul_ps(scale_of_x, scales[half]);
                            let dots = _mm256_cvtepi32_ps(dots[t][half]);
                            sums[half] = _mm256_fmadd_ps(dots, scale, sums[half]);
                            _mm256_storeu_ps(out[t][8 * half..].as_mut_ptr(), sums[half]);
                        }
                    }
                }
            }
        }
    };
}

products_for!(plain, "avx2,fma", 4, Table::new, panel::plain, [8 4 2], plain_dots);
// Four rows are faster with VNNI and a group in memory (docs/perf/072).
products_for!(vnni, "avx2,fma,avxvnni", 3, Table::offset, panel::vnni, [], vnni_dots);

/// Computes one tile for one row, or for up to four with a table that has a stride. Returns false for others.
///
/// # Safety
/// The machine must have AVX2 and FMA, and [`super::fits`] must hold.
unsafe fn few_rows(
    weights: &NestedWeights,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) -> bool {
    let work = TileWork { weights, tile, rows, out };
    // SAFETY: guaranteed by the caller.
    unsafe {
        match work.rows.rows().len() {
            1 => work.compute::<1>(Some(row::tile(weights, tile))),
            2 => work.compute::<2>(row::strided_tile(weights, tile)),
            3 => work.compute::<3>(row::strided_tile(weights, tile)),
            4 => work.compute::<4>(row::strided_tile(weights, tile)),
            _ => false,
        }
    }
}

/// Computes one tile for packed rows at levels 2 to 4. The panel has a stack frame of its own, so that calls with few rows
/// do not touch its pages.
///
/// # Safety
/// The machine must have the features of `add_rows`, and [`super::fits`] must hold.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn panel_products(
    weights: &NestedWeights,
    tile: usize,
    table: &Table,
    x: &[PackedGroup],
    out: &mut [TileValues],
    add_rows: AddRows,
) {
    let (mut panel, two) = (Panel::zero(), weights.level == Level::L2);
    // SAFETY: there are 16 units.
    let units = unsafe { halves(&weights.row_units(tile)) };
    out.fill([0.0; 16]);
    for first in (0..weights.groups).step_by(GROUPS) {
        let count = GROUPS.min(weights.groups - first);
        for group in 0..count {
            let (cell, values) = (tile * weights.groups + first + group, &mut panel.values[group]);
            prefetch_codes(&weights.planes, cell, 0);
            // SAFETY: the group is below the groups of the weights.
            let scales = unsafe {
                lookup_nibbles(&weights.planes, two, cell, table.values, values);
                scales(weights, cell, units)
            };
            for (scales, out) in scales.into_iter().zip(panel.scales[group].as_chunks_mut::<8>().0)
            {
                // SAFETY: `out` has eight floats.
                unsafe { _mm256_storeu_ps(out.as_mut_ptr(), scales) };
            }
        }
        for (block, out) in out.chunks_mut(PACKED_ROWS).enumerate() {
            let x = &x[block * weights.groups + first..][..count];
            // SAFETY: the panel has as many groups as are used of `x`.
            unsafe { add_rows(&panel, table.form(), x, out) };
        }
    }
}

/// Table of a tile at levels 2 to 4.
struct Table {
    /// Bytes, unsigned unless `mode` is 0 without VNNI.
    values: __m256i,
    /// Number of chunks whose products are added in 16 bits.
    mode: usize,
    /// A value is `byte * stride - zero`.
    stride: i16,
    zero: i32,
}

impl Table {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn new(weights: &NestedWeights, tile: usize) -> Self {
        let signed = weights.nibble_table(tile);
        let Some(table) = weights.strided_table(tile) else {
            return Self { values: wide::repeated(signed), mode: 0, stride: 1, zero: 0 };
        };
        let (mode, values) = (chunks_in_16_bits(table.largest()), table.bytes.map(u8::cast_signed));
        Self { values: wide::repeated(&values), mode, stride: table.stride, zero: table.zero }
    }

    /// Returns the table with 128 added to each value, for VNNI.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn offset(weights: &NestedWeights, tile: usize) -> Self {
        let values = wide::repeated(weights.nibble_table(tile));
        let values = _mm256_xor_si256(values, _mm256_set1_epi8(-128));
        Self { values, mode: 0, stride: 1, zero: 128 }
    }

    /// Returns the meaning of a panel's bytes.
    fn form(&self) -> PanelForm {
        PanelForm { stride: self.stride.into(), zero: self.zero, subs: 1, has_minima: false }
    }
}

/// Returns the exact sums of 16 rows of weights and `T` rows of activations in one group.
#[inline]
#[target_feature(enable = "avx2")]
fn plain_dots<const MODE: usize, const T: usize>(
    table: &Table,
    values: &HalfTiles,
    x: &[&QuantizedGroup; T],
) -> [[__m256i; 2]; T] {
    let mut sums = pair_dots::<MODE, 1, T>(values, x, 0, _mm256_set1_epi16(table.stride));
    if MODE == 0 {
        return sums;
    }
    for (sums, x) in sums.iter_mut().zip(x) {
        // The correction is -128 times the sum of the activations.
        let start = _mm256_set1_epi32(table.zero * (x.correction >> 7));
        for sum in sums {
            *sum = _mm256_add_epi32(*sum, start);
        }
    }
    sums
}

/// Returns the same sums with VNNI, of values with an offset of 128.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
fn vnni_dots<const MODE: usize, const T: usize>(
    _: &Table,
    values: &HalfTiles,
    x: &[&QuantizedGroup; T],
) -> [[__m256i; 2]; T] {
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    for (sums, x) in sums.iter_mut().zip(x) {
        *sums = [_mm256_set1_epi32(x.correction); 2];
    }
    for (chunk, values) in values.iter().enumerate() {
        for (sums, x) in sums.iter_mut().zip(x) {
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(x, chunk) };
            for half in 0..2 {
                sums[half] = _mm256_dpbusd_avx_epi32(sums[half], values[half], x);
            }
        }
    }
    sums
}

impl Group {
    #[inline]
    #[target_feature(enable = "avx2")]
    fn zero() -> Self {
        Self([[[_mm256_setzero_si256(); 2]; 8]; 2])
    }
}

/// Returns the weight scales of the two halves of a tile in one group. A step's factor is one of the first
/// eight, with its exponent lowered once for each multiple of eight steps.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn scales(weights: &NestedWeights, cell: usize, units: [__m256; 2]) -> [__m256; 2] {
    // SAFETY: the caller's `cell` is inside both parts.
    let (nibbles, high) = unsafe {
        let nibbles = _mm_loadl_epi64(weights.steps.as_ptr().add(cell * 8).cast());
        (nibbles, weights.step_high.as_ptr().add(cell * 2).cast::<[u8; 2]>().read())
    };
    let steps = weights.decode.steps;
    // SAFETY: the table has 32 floats.
    let fractions = unsafe { _mm256_loadu_si256(steps.factors().as_ptr().cast()) };
    let eight_steps = _mm_cvtsi32_si128(OCTAVE + steps.eight_steps() as i32);
    let nibbles = _mm256_cvtepu8_epi32(nibbles);
    let halves =
        [_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), _mm256_srli_epi32::<4>(nibbles)];
    let mut out = units;
    for half in 0..2 {
        let bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
        let set = _mm256_and_si256(_mm256_set1_epi32(i32::from(high[half])), bit);
        let upper = _mm256_and_si256(_mm256_cmpeq_epi32(set, bit), _mm256_set1_epi32(16));
        let step = _mm256_or_si256(halves[half], upper);
        let fraction = _mm256_permutevar8x32_epi32(fractions, step);
        let octave = _mm256_sll_epi32(_mm256_srli_epi32::<3>(step), eight_steps);
        let zero = _mm256_cmpeq_epi32(step, _mm256_set1_epi32(31));
        let factor = _mm256_andnot_si256(zero, _mm256_sub_epi32(fraction, octave));
        out[half] = _mm256_mul_ps(units[half], _mm256_castsi256_ps(factor));
    }
    out
}

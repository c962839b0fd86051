//! Products of one row of activations for AVX2 and AVX-VNNI, and of up to four where tables have a stride.
//!
//! Each value is used once or a few times, so four chunks of columns are looked up and multiplied in registers, and
//! sums stay in registers for all groups. Weight scales are decoded for several groups at once.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;
use nestling_formats::nested::TILE_ROWS;

use super::super::{MagnitudeTable, NestedWeights, TileValues};
use super::digits::{Cell, values};
use super::magnitudes::{self, Magnitudes};
use super::strided;
use super::wide::{self, Formula};
use super::{OCTAVE, Table};
use crate::planes::avx2::{
    AHEAD, after, broadcast, halves, multiply_add, prefetch_codes, prefetch_line,
};
use crate::planes::leading::{MERGED, P3, SPLIT, TWO};
use crate::planes::{CodePlanes, MiddlePlanes};
use crate::rows::QuantizedGroup;

/// Number of groups whose steps are decoded together.
const RUN: usize = 4;

/// In place of the number of bits in P6 and P8: there are none, and values are multiples of a stride apart.
const STRIDED: u8 = 1;

/// In place of the number of bits in P6 and P8: there are two, and values have a sign and a magnitude.
const MAGNITUDES: u8 = 3;

/// A function that computes one tile for `T` rows, given each row's groups.
pub type RowsTile<const T: usize> =
    unsafe fn(&NestedWeights, usize, [&[QuantizedGroup]; T], &mut [TileValues; T]);

/// Returns the function for a tile of some weights whose table has a stride. It requires the features of this
/// module, and [`super::super::fits`] for a list of the rows.
pub fn strided_tile<'a, const T: usize>(
    weights: &NestedWeights<'a>,
    tile: usize,
) -> Option<RowsTile<T>> {
    weights.strided_table(tile)?;
    Some(match weights.planes.middle {
        MiddlePlanes::None => product::<TWO, STRIDED, T>,
        MiddlePlanes::P3(_) => product::<P3, STRIDED, T>,
        MiddlePlanes::Split(..) => product::<SPLIT, STRIDED, T>,
        MiddlePlanes::Merged(_) => product::<MERGED, STRIDED, T>,
    })
}

/// Returns the function for one row and a tile of some weights, with the same requirements.
pub fn tile(weights: &NestedWeights, tile: usize) -> RowsTile<1> {
    if let Some(strided) = strided_tile(weights, tile) {
        return strided;
    }
    let is_merged = !matches!(weights.planes.middle, MiddlePlanes::Split(..));
    let has_magnitudes = weights.decode.magnitudes.is_some();
    match (weights.level, weights.planes.middle) {
        (Level::L6, _) if has_magnitudes && is_merged => product::<MERGED, MAGNITUDES, 1>,
        (Level::L6, _) if has_magnitudes => product::<SPLIT, MAGNITUDES, 1>,
        (Level::L6, _) if is_merged => product::<MERGED, 2, 1>,
        (Level::L6, _) => product::<SPLIT, 2, 1>,
        (Level::L8, _) if is_merged => product::<MERGED, 4, 1>,
        (Level::L8, _) => product::<SPLIT, 4, 1>,
        (_, MiddlePlanes::None) => product::<TWO, 0, 1>,
        (_, MiddlePlanes::P3(_)) => product::<P3, 0, 1>,
        (_, MiddlePlanes::Split(..)) => product::<SPLIT, 0, 1>,
        (_, MiddlePlanes::Merged(_)) => product::<MERGED, 0, 1>,
    }
}

/// Computes one tile for some rows.
///
/// # Safety
/// The machine must have the features, `PLANES` must be those of the weights, `LAST` the number of bits in
/// their P6 and P8, [`STRIDED`] or [`MAGNITUDES`], and [`super::super::fits`] must hold for a list of the
/// rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<const PLANES: u8, const LAST: u8, const T: usize>(
    weights: &NestedWeights,
    tile: usize,
    x: [&[QuantizedGroup]; T],
    out: &mut [TileValues; T],
) {
    let table = Table::new(weights, tile);
    // Default: unused without such a table.
    let magnitudes =
        Magnitudes::new(weights.decode.magnitudes.as_ref().unwrap_or(&MagnitudeTable::ZERO));
    let [p3, p4]: [&[u8]; 2] = match weights.planes.middle {
        MiddlePlanes::None => [&[], &[]],
        MiddlePlanes::P3(plane) | MiddlePlanes::Merged(plane) => [plane, &[]],
        MiddlePlanes::Split(p3, p4) => [p3, p4],
    };
    let (steps, formula) = (Steps::new(weights, tile), Formula::new(weights));
    let CodePlanes { p2, p6, p8, .. } = weights.planes;
    // Constants of the function, so that the loop has no branches for planes.
    let last = if LAST == MAGNITUDES { 2 } else { LAST & !STRIDED };
    let middle = match PLANES {
        TWO => MiddlePlanes::None,
        P3 => MiddlePlanes::P3(p3),
        SPLIT => MiddlePlanes::Split(p3, p4),
        _ => MiddlePlanes::Merged(p3),
    };
    let planes = CodePlanes { middle, ..weights.planes };
    let mut sums = [[_mm256_setzero_ps(); 2]; T];
    let mut scales = [[0.0; TILE_ROWS]; RUN];
    for group in 0..weights.groups {
        let index = tile * weights.groups + group;
        if group.is_multiple_of(RUN) {
            steps.decode(index, &mut scales);
        }
        prefetch_codes(&planes, index, last);
        let cell = Cell { p2, p3, p4, p6, p8, index };
        // SAFETY: there are as many groups of the weights as of `x`, and 16 scales.
        unsafe {
            let x = std::array::from_fn(|t| x[t].get_unchecked(group));
            let dots = match LAST {
                STRIDED => strided::dots::<PLANES, T>(cell, &table, &x),
                _ => {
                    let mut all = [[_mm256_setzero_si256(); 2]; T];
                    for t in 0..T {
                        all[t] = match LAST {
                            0 => dots::<PLANES>(cell, table.values, x[t]),
                            MAGNITUDES => magnitudes::dots::<PLANES>(cell, &magnitudes, x[t]),
                            _ => wide::dots::<PLANES, LAST>(cell, &formula, x[t]),
                        };
                    }
                    all
                }
            };
            let scales = halves(&scales[group % RUN]);
            for t in 0..T {
                let scale_of_x = _mm256_set1_ps(x[t].scale);
                for half in 0..2 {
                    let scale = _mm256_mul_ps(scale_of_x, scales[half]);
                    let dots = _mm256_cvtepi32_ps(dots[t][half]);
                    sums[t][half] = _mm256_fmadd_ps(dots, scale, sums[t][half]);
                }
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(sums) {
        // SAFETY: `out` has 16 floats.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(out[8..].as_mut_ptr(), sums[1]);
        }
    }
}

/// Returns the exact sums of 16 rows in one group.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks and halves")]
unsafe fn dots<const PLANES: u8>(cell: Cell, table: __m256i, x: &QuantizedGroup) -> [__m256i; 2] {
    let mut sums = [_mm256_setzero_si256(); 2];
    for vector in 0..2 {
        let cell = Cell { index: after(cell.index, sums), ..cell };
        // SAFETY: the caller's cell is inside the planes.
        let values = unsafe {
            [values::<PLANES>(cell, table, vector, 0), values::<PLANES>(cell, table, vector, 1)]
        };
        for chunk in 0..4 {
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(x, vector * 4 + chunk) };
            for half in 0..2 {
                sums[half] = multiply_add(sums[half], values[half][chunk], x);
            }
        }
    }
    sums
}

/// Decoder of the scale steps of a tile.
struct Steps<'a> {
    low: &'a [[u8; 8]],
    high: &'a [[u8; 2]],
    /// Row scales times the unit of values, by halves of the tile.
    units: [__m256; 2],
    /// Factors of the first eight steps as bits, plus the number that the subtraction of a shifted step takes
    /// away besides its octaves.
    fractions: __m256i,
    /// Shift from a step to its octaves in the exponent.
    shift: __m128i,
    /// Bits that step 31 would have if it were not 0. No other step has them.
    before_zero: __m256i,
}

/// Returns the items of the groups from `first` on; zeros beyond the last group.
#[inline]
fn first_groups<const N: usize>(items: &[[u8; N]], first: usize) -> [[u8; N]; RUN] {
    let items = &items[first..];
    if let Some(items) = items.first_chunk() {
        return *items;
    }
    // Default: groups beyond the last one are unused.
    let mut out = [[0; N]; RUN];
    out[..items.len()].copy_from_slice(items);
    out
}

/// Returns the row scales of a tile times the unit of values, as [`NestedWeights::row_units`] does.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn units(weights: &NestedWeights, tile: usize) -> [__m256; 2] {
    let scales = &weights.row_scales.as_chunks::<{ 2 * TILE_ROWS }>().0[tile];
    let unit = _mm256_set1_ps(weights.unit());
    // SAFETY: a tile has 16 scales of two bytes.
    unsafe {
        let low = _mm_loadu_si128(scales.as_ptr().cast());
        let high = _mm_loadu_si128(scales[16..].as_ptr().cast());
        [_mm256_mul_ps(_mm256_cvtph_ps(low), unit), _mm256_mul_ps(_mm256_cvtph_ps(high), unit)]
    }
}

impl<'a> Steps<'a> {
    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn new(weights: &NestedWeights<'a>, tile: usize) -> Self {
        let spacing = weights.decode.steps;
        let shift = _mm_cvtsi32_si128(OCTAVE - 3 + spacing.eight_steps() as i32);
        let steps = _mm256_sll_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), shift);
        // SAFETY: the table has 32 floats.
        let factors = unsafe { _mm256_loadu_si256(spacing.factors().as_ptr().cast()) };
        let fractions = _mm256_add_epi32(factors, steps);
        let last = _mm256_sll_epi32(_mm256_set1_epi32(31), shift);
        let before_zero = _mm256_permutevar8x32_epi32(fractions, _mm256_set1_epi32(7));
        let before_zero = _mm256_sub_epi32(before_zero, last);
        let (low, high) = (weights.steps.as_chunks().0, weights.step_high.as_chunks().0);
        Self { low, high, units: units(weights, tile), fractions, shift, before_zero }
    }

    /// Decodes the weight scales of the groups from `first` on. Groups beyond the matrix are unspecified.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn decode(&self, first: usize, out: &mut [TileValues; RUN]) {
        prefetch_line(self.low.as_flattened(), (first + AHEAD) * 8);
        prefetch_line(self.high.as_flattened(), (first + AHEAD) * 2);
        let (low, high) = (first_groups(self.low, first), first_groups(self.high, first));
        // SAFETY: all arrays are as long as the loads and stores.
        unsafe {
            let bytes = _mm256_loadu_si256(low.as_ptr().cast());
            let bits = _mm256_set1_epi64x(high.as_ptr().cast::<i64>().read_unaligned());
            let nibble = _mm256_set1_epi8(15);
            let halves = [
                _mm256_and_si256(bytes, nibble),
                _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), nibble),
            ];
            for half in 0..2 {
                let mut steps = [[0u8; 8]; RUN];
                let all = _mm256_or_si256(halves[half], fifth_bits(bits, half));
                _mm256_storeu_si256(steps.as_mut_ptr().cast(), all);
                for (steps, out) in steps.iter().zip(out.iter_mut()) {
                    let steps = _mm256_cvtepu8_epi32(_mm_loadl_epi64(steps.as_ptr().cast()));
                    let fraction = _mm256_permutevar8x32_epi32(self.fractions, steps);
                    let factor = _mm256_sub_epi32(fraction, _mm256_sll_epi32(steps, self.shift));
                    let is_zero = _mm256_cmpeq_epi32(factor, self.before_zero);
                    let factor = _mm256_castsi256_ps(_mm256_andnot_si256(is_zero, factor));
                    let scales = _mm256_mul_ps(self.units[half], factor);
                    _mm256_storeu_ps(out[8 * half..].as_mut_ptr(), scales);
                }
            }
        }
    }
}

/// Returns bit 4 of the steps of four groups in half a tile, from the bits of both halves, `[groups, halves]`.
#[inline]
#[target_feature(enable = "avx2")]
fn fifth_bits(bits: __m256i, half: usize) -> __m256i {
    let bytes =
        _mm256_setr_epi64x(0, 0x0202_0202_0202_0202, 0x0404_0404_0404_0404, 0x0606_0606_0606_0606);
    let bytes = _mm256_add_epi8(bytes, _mm256_set1_epi8(half as i8));
    let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64.cast_signed());
    let set = _mm256_and_si256(_mm256_shuffle_epi8(bits, bytes), bit);
    _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(16))
}

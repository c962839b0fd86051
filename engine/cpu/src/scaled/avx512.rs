//! Kernels for AVX-512 with VNNI, VBMI and GFNI (Ice Lake, Zen 4 and later).
//!
//! One 512-bit vector holds four columns of 16 rows; lane i of an accumulator is row i. Weights are unsigned
//! bytes, value + 128. `vpdpbusd` starts from -128 * sum(x) of the sub-block, which is also used for its
//! minimum. Levels 2 to 4 look values up as for the nested code, and codes of 5 and 6 bits use one table of
//! 64 entries. A code of 8 bits is its value + 128.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use nestling_formats::Level;

use super::super::planes::MiddlePlanes;
use super::super::planes::avx512::{
    MERGED, NONE, NibbleTables, P3, SPLIT, TilePlanes, five_bit_codes, narrow, nibbles,
    six_bit_codes, two, whole_codes,
};
use super::super::rows::{PACKED_ROWS, PackedGroup, QuantizedGroup};
use super::{RUN, RowList, ScaledWeights, TileValues};

mod panel;
mod scales;

/// Prefetch distance in groups, for a single row, whose matrix comes from memory.
const AHEAD: usize = 24;

/// Calls a function with constants for the codes of some weights: `LEVEL` (5 if P6 has one bit per weight)
/// and `MIDDLE`.
macro_rules! for_codes {
    ($weights:expr, $function:ident $arguments:tt) => {
        match ($weights.level, $weights.last_bits(), $weights.planes.middle) {
            (Level::L2, ..) => $function::<2, NONE> $arguments,
            (Level::L3 | Level::L4, _, MiddlePlanes::Merged(_)) => $function::<4, MERGED> $arguments,
            (Level::L3 | Level::L4, _, MiddlePlanes::Split(..)) => $function::<4, SPLIT> $arguments,
            (Level::L3 | Level::L4, ..) => $function::<4, P3> $arguments,
            (Level::L6, 1, MiddlePlanes::Merged(_)) => $function::<5, MERGED> $arguments,
            (Level::L6, 1, _) => $function::<5, SPLIT> $arguments,
            (Level::L6, _, MiddlePlanes::Merged(_)) => $function::<6, MERGED> $arguments,
            (Level::L6, ..) => $function::<6, SPLIT> $arguments,
            (Level::L8, _, MiddlePlanes::Merged(_)) => $function::<8, MERGED> $arguments,
            (Level::L8, ..) => $function::<8, SPLIT> $arguments,
        }
    };
}
use for_codes;

/// Computes one tile for some rows.
///
/// # Safety
/// The machine must have the features, and [`super::fits`] must hold.
pub unsafe fn tile(weights: &ScaledWeights, tile: usize, rows: RowList, out: &mut [TileValues]) {
    if !rows.packed().is_empty() && out.len() > 1 {
        // SAFETY: guaranteed by the caller.
        return unsafe { panel::products(weights, tile, rows.packed(), out) };
    }
    for (row, out) in rows.rows().iter().zip(out) {
        let x = rows.source().row(*row as usize);
        // SAFETY: `fits` holds, so that all planes and listed rows have the tile's groups.
        unsafe { for_codes!(weights, one_row(weights, tile, x, out)) }
    }
}

/// Lookup tables of one level, in registers.
struct Tables {
    /// Values at levels 2 to 4.
    nibble: NibbleTables,
    /// Value + 128 for codes of five and six bits, indexed by the last six bits.
    six: __m512i,
}

impl Tables {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vbmi")]
    fn new(weights: &ScaledWeights) -> Self {
        let (nibbles, _) = weights.table.values.as_chunks::<16>();
        // SAFETY: the load reads 64 of 256 bytes.
        let six = unsafe { _mm512_loadu_si512(weights.table.values.as_ptr().cast()) };
        let six = _mm512_xor_si512(six, _mm512_set1_epi8(-128));
        Self { nibble: NibbleTables::new(&nibbles[0]), six }
    }
}

#[inline(always)]
fn tile_planes<const LEVEL: u8>(weights: &ScaledWeights, tile: usize) -> TilePlanes {
    let p6_bytes = if LEVEL == 5 { 64 } else { 128 };
    TilePlanes::new(&weights.planes, tile * weights.groups, p6_bytes)
}

/// Decodes a group to eight vectors of value + 128.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vbmi,gfni")]
unsafe fn decode<const LEVEL: u8, const MIDDLE: u8>(
    planes: &TilePlanes,
    tables: &Tables,
    group: usize,
) -> [__m512i; 8] {
    // SAFETY: the caller's `group` is inside the planes that LEVEL and MIDDLE select.
    unsafe {
        let nibbles = nibbles::<LEVEL, MIDDLE>(planes, group);
        let mut values = match LEVEL {
            2 | 4 => return narrow::<LEVEL>(&tables.nibble, nibbles),
            5 => five_bit_codes(nibbles, _mm512_loadu_si512(planes.p6.add(group * 64).cast())),
            6 => six_bit_codes(nibbles, two(planes.p6, group)),
            // All values are int8, so that at level 8 the stride is 1 and the zero is 128.
            _ => return whole_codes(nibbles, two(planes.p6, group), two(planes.p8, group)),
        };
        for value in &mut values {
            *value = _mm512_permutexvar_epi8(*value, tables.six);
        }
        values
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
unsafe fn one_row<const LEVEL: u8, const MIDDLE: u8>(
    weights: &ScaledWeights,
    tile: usize,
    x: &[QuantizedGroup],
    out: &mut TileValues,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match (weights.form.sub_blocks(), weights.has_minima()) {
            (1, false) => one_row_by::<LEVEL, MIDDLE, 1, false>(weights, tile, x, out),
            (1, true) => one_row_by::<LEVEL, MIDDLE, 1, true>(weights, tile, x, out),
            (_, false) => one_row_by::<LEVEL, MIDDLE, 2, false>(weights, tile, x, out),
            (_, true) => one_row_by::<LEVEL, MIDDLE, 2, true>(weights, tile, x, out),
        }
    }
}

/// Computes one row for groups of `SUBS` sub-blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
unsafe fn one_row_by<const LEVEL: u8, const MIDDLE: u8, const SUBS: usize, const MINIMA: bool>(
    weights: &ScaledWeights,
    tile: usize,
    x: &[QuantizedGroup],
    out: &mut TileValues,
) {
    let (planes, tables) = (tile_planes::<LEVEL>(weights, tile), Tables::new(weights));
    let (mut scales, mut minima) =
        ([MaybeUninit::uninit(); 2 * RUN], [MaybeUninit::uninit(); 2 * RUN]);
    let (mut sum, fill) = (_mm512_setzero_ps(), scales::filler(weights));
    let mut x = x.as_ptr();
    for first in (0..weights.groups).step_by(RUN) {
        // SAFETY: `first` is below the groups of the matrix.
        unsafe { fill(weights, tile, first, &mut scales, &mut minima) };
        for i in 0..RUN.min(weights.groups - first) {
            // SAFETY: the group is below those of all planes and of the activations, and `fill` wrote its
            // scales.
            unsafe {
                planes.prefetch::<LEVEL, MIDDLE>(first + i + AHEAD);
                let values = decode::<LEVEL, MIDDLE>(&planes, &tables, first + i);
                let starts = starts_of_row::<SUBS>(&*x);
                let x_scale = _mm512_set1_ps((*x).scale);
                let words: *const i32 = x.cast();
                for sub in 0..SUBS {
                    let dots = if SUBS == 1 {
                        dots::<0, 8, 1, 1>(&values, words, [starts[0]])
                    } else if sub == 0 {
                        dots::<0, 4, 1, 1>(&values, words, [starts[0]])
                    } else {
                        dots::<4, 4, 1, 1>(&values, words, [starts[1]])
                    };
                    let scale = _mm512_mul_ps(x_scale, scales[i * SUBS + sub].assume_init());
                    sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[0]), scale, sum);
                }
                if MINIMA {
                    for sub in 0..SUBS {
                        let negative = _mm512_cvtepi32_ps(_mm512_srai_epi32::<7>(starts[sub]));
                        let negative = _mm512_mul_ps(x_scale, negative);
                        let minimum = minima[i * SUBS + sub].assume_init();
                        sum = _mm512_fnmadd_ps(negative, minimum, sum);
                    }
                }
                x = x.add(1);
            }
        }
    }
    // SAFETY: `out` has 16 floats.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), sum) };
}

/// Returns -128 times the sum of activations of each sub-block, which compensates for the offset of its
/// weights.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn starts_of_row<const SUBS: usize>(x: &QuantizedGroup) -> [__m512i; 2] {
    let all = _mm512_set1_epi32(x.correction);
    if SUBS == 1 {
        return [all; 2];
    }
    let (offset, words): (_, *const i32) = (_mm512_set1_epi8(-128), x.values.as_ptr().cast());
    let mut first = _mm512_setzero_si512();
    for chunk in 0..4 {
        // SAFETY: there are eight chunks of four bytes.
        let word = _mm512_set1_epi32(unsafe { words.add(chunk).read_unaligned() });
        first = _mm512_dpbusd_epi32(first, offset, word);
    }
    [_mm512_sub_epi32(_mm512_setzero_si512(), first), _mm512_add_epi32(all, first)]
}

/// Computes the exact sums of the chunks of a group from `FIRST` on for `T` rows, whose words are interleaved
/// in `LANES` rows. All rows execute a step before the next one, so that dependent products of one row
/// overlap with other rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
unsafe fn dots<const FIRST: usize, const COUNT: usize, const T: usize, const LANES: usize>(
    values: &[__m512i; 8],
    x: *const i32,
    starts: [__m512i; T],
) -> [__m512i; T] {
    let mut sums = starts;
    // Sums of the last chunks, which shorten the dependency chain for few rows.
    let mut others = [_mm512_setzero_si512(); T];
    let halves = COUNT == 8 && T <= 4;
    // Unrolled by hand: the compiler does not always unroll a loop around the loop over rows.
    macro_rules! chunks {
        ($($chunk:literal)*) => {
            $(if $chunk >= FIRST && $chunk < FIRST + COUNT {
                for t in 0..T {
                    // SAFETY: the caller's group has `LANES` rows.
                    let x = unsafe { _mm512_set1_epi32(*x.add($chunk * LANES + t)) };
                    if halves && $chunk >= 4 {
                        others[t] = _mm512_dpbusd_epi32(others[t], values[$chunk], x);
                    } else {
                        sums[t] = _mm512_dpbusd_epi32(sums[t], values[$chunk], x);
                    }
                }
            })*
        };
    }
    chunks!(0 1 2 3 4 5 6 7);
    if halves {
        for t in 0..T {
            sums[t] = _mm512_add_epi32(sums[t], others[t]);
        }
    }
    sums
}

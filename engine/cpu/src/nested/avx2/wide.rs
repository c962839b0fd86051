//! Values at levels 6 and 8 for AVX2, and their sums with rows of activations.
//!
//! Digits are looked up as signed numbers around zero and interleaved, so that one `pmaddubsw` by 128 and
//! 4 beta gives the formula's `x = 128 * (16 * p4 - 120) + 4 * beta * r`. No sum exceeds 128 * 135, so none
//! saturates. A vector of 16-bit values holds the four columns of rows 0, 1, 4 and 5 of half a tile, or of the
//! other four. Pairs of columns stay separate until the end of a group.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use nestling_formats::Level;

use super::super::NestedWeights;
use super::digits::{Cell, leading};
use crate::planes::avx2::{HalfTiles, after, in_registers, load, middle, nibbles, two_bits};
use crate::rows::QuantizedGroup;

/// Parameters of the formula.
#[derive(Clone, Copy)]
pub struct Formula {
    /// Unsigned bytes 128 and 4 beta, in turn.
    factors: __m256i,
    /// Signed bytes `16 * p4 - 120`, for the leading four bits.
    leading: __m256i,
    /// Signed bytes `r`, by the two bits of P6 or by the four bits of P6 and P8.
    last: __m256i,
    alpha_a: __m256i,
    alpha_b: __m256i,
}

impl Formula {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn new(weights: &NestedWeights) -> Self {
        let [alpha_a, alpha_b, beta_8, _] = weights.decode.formula;
        // Beta is at most 32, so both factors fit in a byte.
        let factors = _mm256_set1_epi16((beta_8 / 2) << 8 | 128);
        let leading: [i8; 16] = std::array::from_fn(|p4| (16 * p4 as i32 - 120) as i8);
        let last: [i8; 16] = std::array::from_fn(|digit| match weights.level {
            Level::L6 => 4 * (2 * (digit as i8 & 3) - 3),
            _ => 2 * digit as i8 - 15,
        });
        Self {
            factors,
            leading: repeated(&leading),
            last: repeated(&last),
            alpha_a: _mm256_set1_epi16(alpha_a),
            alpha_b: _mm256_set1_epi16(alpha_b),
        }
    }

    /// Looks up the digits of leading and of last bits, and interleaves them: first rows 0, 1, 4 and 5 of half a tile.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn interleaved(&self, first: __m256i, last: __m256i) -> [__m256i; 2] {
        let first = _mm256_shuffle_epi8(self.leading, first);
        let last = _mm256_shuffle_epi8(self.last, last);
        [_mm256_unpacklo_epi8(first, last), _mm256_unpackhi_epi8(first, last)]
    }

    /// Returns the values of interleaved bytes.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn values(&self, codes: __m256i) -> __m256i {
        let x = _mm256_maddubs_epi16(self.factors, codes);
        let slope = _mm256_mulhrs_epi16(_mm256_abs_epi16(x), self.alpha_b);
        _mm256_mulhrs_epi16(x, _mm256_add_epi16(slope, self.alpha_a))
    }
}

/// Returns a table of bytes in both halves of a vector.
#[inline]
#[target_feature(enable = "avx2")]
pub fn repeated(bytes: &[i8; 16]) -> __m256i {
    // SAFETY: the table has 16 bytes.
    _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

/// Returns the exact sums of 16 rows in one group. `LAST` is the number of bits in P6 and P8.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn dots<const PLANES: u8, const LAST: u8>(
    cell: Cell,
    formula: &Formula,
    x: &QuantizedGroup,
) -> [__m256i; 2] {
    let x = widened(x);
    let mut out = [_mm256_setzero_si256(); 2];
    for (half, out) in out.iter_mut().enumerate() {
        let mut sums = [_mm256_setzero_si256(); 2];
        for vector in 0..2 {
            let cell = Cell { index: after(cell.index, sums), ..cell };
            let index = cell.index * 2 + vector;
            // SAFETY: the caller's cell is inside the planes.
            let (first, last) = unsafe {
                let p6 = load(cell.p6, index, half);
                let last = match LAST {
                    2 => two_bits(p6),
                    _ => nibbles(p6, load(cell.p8, index, half)),
                };
                (leading::<PLANES>(cell, vector, half), last)
            };
            for chunk in 0..4 {
                let x = _mm256_set1_epi64x(x[vector * 4 + chunk]);
                let codes = formula.interleaved(first[chunk], last[chunk]);
                for i in 0..2 {
                    let products = _mm256_madd_epi16(formula.values(codes[i]), x);
                    sums[i] = _mm256_add_epi32(sums[i], products);
                }
            }
        }
        *out = _mm256_hadd_epi32(sums[0], sums[1]);
    }
    out
}

/// Decodes one group to 16-bit values: rows 0, 1, 4 and 5 of half a tile in the first part, the others in the second.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks, halves and parts")]
pub unsafe fn decode(
    weights: &NestedWeights,
    formula: &Formula,
    cell: usize,
    out: &mut [HalfTiles; 2],
) {
    let planes = &weights.planes;
    for vector in 0..2 {
        for half in 0..2 {
            let index = cell * 2 + vector;
            // SAFETY: the caller's `cell` is inside the planes.
            let (first, last) = unsafe {
                let p6 = load(planes.p6, index, half);
                let last = match weights.level {
                    Level::L8 => nibbles(p6, load(planes.p8, index, half)),
                    _ => two_bits(p6),
                };
                (nibbles(load(planes.p2, index, half), middle(planes, cell, vector, half)), last)
            };
            for chunk in 0..4 {
                let codes = formula.interleaved(first[chunk], last[chunk]);
                for part in 0..2 {
                    out[part][vector * 4 + chunk][half] = formula.values(codes[part]);
                }
            }
        }
    }
}

/// Returns the exact sums of 16 rows of weights and `T` rows of activations in one group. On Zen 5 `vpdpwssd` is slower
/// (docs/perf/072).
#[inline]
#[target_feature(enable = "avx2")]
pub fn dots_of_rows<const T: usize>(
    values: &[HalfTiles; 2],
    x: &[&QuantizedGroup; T],
) -> [[__m256i; 2]; T] {
    let zero = _mm256_setzero_si256();
    let (mut words, mut sums) = ([[0; 8]; T], [[[zero; 2]; 2]; T]);
    for t in 0..T {
        words[t] = widened(x[t]);
    }
    for chunk in (0..8).step_by(2) {
        // The compiler does not unroll loops with `in_registers`.
        add_chunk(values, chunk, &words, &mut sums);
        add_chunk(values, chunk + 1, &words, &mut sums);
    }
    let mut out = [[zero; 2]; T];
    for t in 0..T {
        for half in 0..2 {
            let [first, second] = sums[t][half];
            out[t][half] = _mm256_hadd_epi32(first, second);
        }
    }
    out
}

/// Adds the products of a chunk of four columns to the sums of each row, half and part.
#[inline]
#[target_feature(enable = "avx2")]
fn add_chunk<const T: usize>(
    values: &[HalfTiles; 2],
    chunk: usize,
    words: &[[i64; 8]; T],
    sums: &mut [[[__m256i; 2]; 2]; T],
) {
    for (words, sums) in words.iter().zip(sums) {
        let x = _mm256_set1_epi64x(words[chunk]);
        for (half, sums) in sums.iter_mut().enumerate() {
            for part in 0..2 {
                let products = _mm256_madd_epi16(values[part][chunk][half], x);
                sums[part] = _mm256_add_epi32(sums[part], products);
            }
            in_registers(sums);
        }
    }
}

/// Returns the activations of each chunk of four columns as 16-bit numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(x: &QuantizedGroup) -> [i64; 8] {
    let mut out = [0; 8];
    // SAFETY: there are 32 activations, and as many 16-bit numbers in `out`.
    unsafe {
        for half in 0..2 {
            let x = _mm_loadu_si128(x.values[16 * half..].as_ptr().cast());
            let words = _mm256_cvtepi8_epi16(x);
            _mm256_storeu_si256(out[4 * half..].as_mut_ptr().cast(), words);
        }
    }
    out
}

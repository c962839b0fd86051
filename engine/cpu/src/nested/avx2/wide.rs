//! Sums of one row of activations at levels 6 and 8, for AVX2.
//!
//! Leading and last four bits of codes are interleaved, so that one `pmaddubsw` by 16 and beta gives the sums
//! of the formula, `256 * leading + beta * last`. A vector of 16-bit values holds the four columns of rows 0,
//! 1, 4 and 5 of half a tile, or of the other four. Pairs of columns stay separate until the end of a group.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::super::NestedWeights;
use super::digits::{Cell, leading};
use crate::planes::avx2::{after, load, nibbles};
use crate::rows::QuantizedGroup;

/// Parameters of the formula.
#[derive(Clone, Copy)]
pub struct Formula {
    /// Bytes 16 and beta, in turn.
    factors: __m256i,
    bias: __m256i,
    alpha_a: __m256i,
    alpha_b: __m256i,
}

impl Formula {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn new(weights: &NestedWeights) -> Self {
        let [alpha_a, alpha_b, beta_8, bias] = weights.decode.formula;
        // Beta is at most 32.
        let factors = _mm256_set1_epi16((beta_8 / 8) << 8 | 16);
        Self {
            factors,
            bias: _mm256_set1_epi16(bias),
            alpha_a: _mm256_set1_epi16(alpha_a),
            alpha_b: _mm256_set1_epi16(alpha_b),
        }
    }

    /// Returns the values of interleaved bytes: 16 times the leading four bits, and the last four bits.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn values(&self, codes: __m256i) -> __m256i {
        let eighth = _mm256_maddubs_epi16(codes, self.factors);
        let x = _mm256_sub_epi16(_mm256_slli_epi16::<3>(eighth), self.bias);
        let slope = _mm256_mulhrs_epi16(_mm256_abs_epi16(x), self.alpha_b);
        _mm256_mulhrs_epi16(x, _mm256_add_epi16(slope, self.alpha_a))
    }
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
                let p8 = match LAST {
                    2 => _mm256_setzero_si256(),
                    _ => load(cell.p8, index, half),
                };
                let last = nibbles(load(cell.p6, index, half), p8);
                (leading::<PLANES>(cell, vector, half), last)
            };
            for chunk in 0..4 {
                let x = _mm256_set1_epi64x(x[vector * 4 + chunk]);
                let (first, last) = (_mm256_slli_epi16::<4>(first[chunk]), last[chunk]);
                let codes = [_mm256_unpacklo_epi8(first, last), _mm256_unpackhi_epi8(first, last)];
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

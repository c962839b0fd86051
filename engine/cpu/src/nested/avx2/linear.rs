//! Sums of one row of activations at levels 2 to 4 for AVX2, where the table is nearly a straight line.
//!
//! Value = slope * index + rest - zero. Indices and rests are small unsigned bytes, so that `pmaddubsw` needs
//! neither |w| nor sign(x, w), and its sums are added in 16 bits: all eight chunks of indices, and four of
//! rests.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::super::LinearTable;
use super::digits::{Cell, leading};
use crate::planes::avx2::{after, broadcast};
use crate::rows::QuantizedGroup;

/// A table in two parts.
#[derive(Clone, Copy)]
pub struct Linear {
    slope: __m256i,
    rest: __m256i,
    zero: i32,
}

impl Linear {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn new(table: &LinearTable) -> Self {
        // SAFETY: the table has 16 bytes.
        let rest = unsafe { _mm_loadu_si128(table.rest.as_ptr().cast()) };
        Self {
            slope: _mm256_set1_epi16(table.slope),
            rest: _mm256_broadcastsi128_si256(rest),
            zero: table.zero,
        }
    }
}

/// Returns the exact sums of 16 rows in one group.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks and halves")]
pub unsafe fn dots<const PLANES: u8>(
    cell: Cell,
    table: &Linear,
    x: &QuantizedGroup,
) -> [__m256i; 2] {
    let zero = _mm256_setzero_si256();
    // The correction is -128 times the sum of the activations.
    let mut sums = [_mm256_set1_epi32(table.zero * (x.correction >> 7)); 2];
    let mut of_indices = [zero; 2];
    for vector in 0..2 {
        let cell = Cell { index: after(cell.index, of_indices), ..cell };
        // SAFETY: the caller's cell is inside the planes.
        let indices =
            unsafe { [leading::<PLANES>(cell, vector, 0), leading::<PLANES>(cell, vector, 1)] };
        let mut of_rests = [zero; 2];
        for chunk in 0..4 {
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(x, vector * 4 + chunk) };
            for half in 0..2 {
                let index = indices[half][chunk];
                let products = _mm256_maddubs_epi16(index, x);
                of_indices[half] = _mm256_add_epi16(of_indices[half], products);
                let products = _mm256_maddubs_epi16(_mm256_shuffle_epi8(table.rest, index), x);
                of_rests[half] = _mm256_add_epi16(of_rests[half], products);
            }
        }
        for half in 0..2 {
            let fours = _mm256_madd_epi16(of_rests[half], _mm256_set1_epi16(1));
            sums[half] = _mm256_add_epi32(sums[half], fours);
        }
    }
    for half in 0..2 {
        let fours = _mm256_madd_epi16(of_indices[half], table.slope);
        sums[half] = _mm256_add_epi32(sums[half], fours);
    }
    sums
}

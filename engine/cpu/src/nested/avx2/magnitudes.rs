//! Sums of one row of activations at level 6 for AVX2, where values of opposite codes are opposite.
//!
//! A sign and one of 32 magnitudes replace the formula. A magnitude is 64 * high + low and looked up in two
//! tables of 16 bytes for each digit: bit 7 of the index selects one of them, since `pshufb` gives 0 where
//! that bit is set. The activations take the sign, so that `pmaddubsw` is exact.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::MagnitudeTable;
use super::digits::{Cell, leading_pairs};
use super::wide::repeated;
use crate::planes::avx2::{broadcast, load};
use crate::rows::QuantizedGroup;

/// A table of magnitudes in registers.
#[derive(Clone, Copy)]
pub struct Magnitudes {
    place: __m256i,
    sign: __m256i,
    high: [__m256i; 2],
    low: [__m256i; 2],
}

impl Magnitudes {
    #[inline]
    #[target_feature(enable = "avx2")]
    pub fn new(table: &MagnitudeTable) -> Self {
        let digit = |table: &[u8; 16]| repeated(&table.map(u8::cast_signed));
        Self {
            place: digit(&table.place),
            sign: repeated(&table.sign),
            high: [digit(&table.high[0]), digit(&table.high[1])],
            low: [digit(&table.low[0]), digit(&table.low[1])],
        }
    }

    /// Returns products of the high and of the low digits, pairs added. Of `first` the low four bits of each byte
    /// count, of `last` the low two.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn products(&self, first: __m256i, last: __m256i, x: __m256i) -> [__m256i; 2] {
        let first = _mm256_and_si256(first, _mm256_set1_epi8(15));
        let last = _mm256_and_si256(last, _mm256_set1_epi8(3));
        let x = _mm256_sign_epi8(x, _mm256_shuffle_epi8(self.sign, first));
        let index = _mm256_xor_si256(_mm256_shuffle_epi8(self.place, first), last);
        let indices = [index, _mm256_xor_si256(index, _mm256_set1_epi8(-128))];
        [
            _mm256_maddubs_epi16(digit(self.high, indices), x),
            _mm256_maddubs_epi16(digit(self.low, indices), x),
        ]
    }
}

/// Returns the exact sums of 16 rows in one group.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn dots<const PLANES: u8>(
    cell: Cell,
    table: &Magnitudes,
    x: &QuantizedGroup,
) -> [__m256i; 2] {
    let mut out = [_mm256_setzero_si256(); 2];
    for (half, out) in out.iter_mut().enumerate() {
        for vector in 0..2 {
            // SAFETY: the caller's cell is inside the planes.
            let (pairs, last) = unsafe {
                let p6 = load(cell.p6, cell.index * 2 + vector, half);
                (leading_pairs::<PLANES>(cell, vector, half), p6)
            };
            let mut digits = in_turn([pairs[0], pairs[1], last], *out);
            for shift in 0..2 {
                let [even, odd, last] = digits;
                let mut of_low = [_mm256_setzero_si256(); 2];
                for (chunk, (first, last)) in
                    [(even, last), (odd, _mm256_srli_epi16::<2>(last))].into_iter().enumerate()
                {
                    // SAFETY: there are eight chunks.
                    let x = unsafe { broadcast(x, vector * 4 + shift * 2 + chunk) };
                    let high;
                    [high, of_low[chunk]] = table.products(first, last, x);
                    let high = _mm256_madd_epi16(high, _mm256_set1_epi16(64));
                    *out = _mm256_add_epi32(*out, high);
                }
                let low = _mm256_add_epi16(of_low[0], of_low[1]);
                let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
                *out = _mm256_add_epi32(*out, low);
                for digits in &mut digits {
                    *digits = _mm256_srli_epi16::<4>(*digits);
                }
                digits = in_turn(digits, *out);
            }
        }
    }
    out
}

/// Returns `digits` after `sum` has been computed. Otherwise the compiler separates all digits first, for
/// which there are too few registers.
#[inline]
#[target_feature(enable = "avx2")]
fn in_turn(mut digits: [__m256i; 3], sum: __m256i) -> [__m256i; 3] {
    // SAFETY: there are no instructions.
    unsafe {
        asm!(
            "/* {} {} {} {} */",
            inout(ymm_reg) digits[0],
            inout(ymm_reg) digits[1],
            inout(ymm_reg) digits[2],
            in(ymm_reg) sum,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    digits
}

/// Looks up bytes of 32 entries, 16 in each table. The second index has the upper bit inverted.
#[inline]
#[target_feature(enable = "avx2")]
fn digit(tables: [__m256i; 2], indices: [__m256i; 2]) -> __m256i {
    _mm256_or_si256(
        _mm256_shuffle_epi8(tables[0], indices[0]),
        _mm256_shuffle_epi8(tables[1], indices[1]),
    )
}

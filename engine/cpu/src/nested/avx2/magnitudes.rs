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
    /// Masks of four and of two bits, and the bit that selects a table.
    four_bits: __m256i,
    two_bits: __m256i,
    select: __m256i,
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
            four_bits: _mm256_set1_epi8(15),
            two_bits: _mm256_set1_epi8(3),
            select: _mm256_set1_epi8(-128),
        }
    }

    /// Returns the index of a magnitude, and the activations with its sign. Of `first` the low four bits of each byte
    /// count, of `last` the low two.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn entry(&self, first: __m256i, last: __m256i, x: __m256i) -> Entry {
        let first = _mm256_and_si256(first, self.four_bits);
        let last = _mm256_and_si256(last, self.two_bits);
        let index = _mm256_xor_si256(_mm256_shuffle_epi8(self.place, first), last);
        Entry { index, x: _mm256_sign_epi8(x, _mm256_shuffle_epi8(self.sign, first)) }
    }
}

/// Magnitudes of a chunk and what they multiply.
#[derive(Clone, Copy)]
struct Entry {
    index: __m256i,
    /// Activations with the signs of the weights.
    x: __m256i,
}

impl Entry {
    /// Looks up digits and returns their products, pairs added.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn products(&self, tables: [__m256i; 2], select: __m256i) -> __m256i {
        let inverted = _mm256_xor_si256(self.index, select);
        let digits = _mm256_or_si256(
            _mm256_shuffle_epi8(tables[0], self.index),
            _mm256_shuffle_epi8(tables[1], inverted),
        );
        _mm256_maddubs_epi16(digits, self.x)
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
    let mut quarters = Quarters { cell, table, x, sum: _mm256_setzero_si256() };
    // SAFETY: guaranteed by the caller.
    unsafe {
        quarters.add::<PLANES, 0, 0>();
        quarters.add::<PLANES, 1, 0>();
        let first = std::mem::replace(&mut quarters.sum, _mm256_setzero_si256());
        quarters.add::<PLANES, 0, 1>();
        quarters.add::<PLANES, 1, 1>();
        [first, quarters.sum]
    }
}

/// Sums of quarters of a group: half of the chunks of half a tile each.
struct Quarters<'a> {
    cell: Cell<'a>,
    table: &'a Magnitudes,
    x: &'a QuantizedGroup,
    sum: __m256i,
}

impl Quarters<'_> {
    /// Adds the products of four chunks. All indices and signs come first, then the high and the low digits, so that
    /// each part has few enough tables and values for the registers.
    #[inline]
    #[target_feature(enable = "avx2")]
    unsafe fn add<const PLANES: u8, const VECTOR: usize, const HALF: usize>(&mut self) {
        let cell = self.cell;
        // SAFETY: the caller's cell is inside the planes.
        let ([even, odd], last) = unsafe {
            let p6 = load(cell.p6, cell.index * 2 + VECTOR, HALF);
            (leading_pairs::<PLANES>(cell, VECTOR, HALF), p6)
        };
        let codes = [
            [even, last],
            [odd, _mm256_srli_epi16::<2>(last)],
            [_mm256_srli_epi16::<4>(even), _mm256_srli_epi16::<4>(last)],
            [_mm256_srli_epi16::<4>(odd), _mm256_srli_epi16::<6>(last)],
        ];
        let zero = _mm256_setzero_si256();
        let mut entries = [Entry { index: zero, x: zero }; 4];
        for chunk in 0..4 {
            let [first, last] = codes[chunk];
            // SAFETY: there are eight chunks.
            let x = unsafe { broadcast(self.x, 4 * VECTOR + chunk) };
            entries[chunk] = self.table.entry(first, last, x);
        }
        self.separate(&mut entries);
        for entry in &entries {
            let high = entry.products(self.table.high, self.table.select);
            let high = _mm256_madd_epi16(high, _mm256_set1_epi16(64));
            self.sum = _mm256_add_epi32(self.sum, high);
        }
        self.separate(&mut entries);
        for entries in entries.as_chunks::<2>().0 {
            let mut low = zero;
            for entry in entries {
                let products = entry.products(self.table.low, self.table.select);
                low = _mm256_add_epi16(low, products);
            }
            let low = _mm256_madd_epi16(low, _mm256_set1_epi16(1));
            self.sum = _mm256_add_epi32(self.sum, low);
        }
        self.separate(&mut entries);
    }

    /// Separates what comes before from what comes after, and has tables and activations read again. Otherwise the
    /// compiler keeps all of them, and moves them between registers and memory.
    #[inline]
    #[target_feature(enable = "avx2")]
    #[expect(clippy::pointers_in_nomem_asm_block, reason = "nothing is read or written there")]
    fn separate(&mut self, [a, b, c, d]: &mut [Entry; 4]) {
        let (mut table, mut x): (*const Magnitudes, *const QuantizedGroup) = (self.table, self.x);
        // SAFETY: there are no instructions, so that both addresses stay the same.
        unsafe {
            asm!(
                "/* {} {} {} {} {} {} {} {} {} {} {} */",
                inout(reg) table,
                inout(reg) x,
                inout(ymm_reg) self.sum,
                inout(ymm_reg) a.index,
                inout(ymm_reg) b.index,
                inout(ymm_reg) c.index,
                inout(ymm_reg) d.index,
                inout(ymm_reg) a.x,
                inout(ymm_reg) b.x,
                inout(ymm_reg) c.x,
                inout(ymm_reg) d.x,
                options(pure, nomem, nostack, preserves_flags),
            );
            (self.table, self.x) = (&*table, &*x);
        }
    }
}

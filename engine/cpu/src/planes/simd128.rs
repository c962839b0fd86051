//! Digits of codes for WebAssembly's SIMD128, four chunks of columns of a quarter of a tile at a time.
//!
//! Shifts are of 16-bit lanes, which x86 has too; bits from the other byte are masked.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::wasm32::*;

use super::tables::{EVEN_BITS, LOWER_DIGITS, UPPER_DIGITS};
use super::{CodePlanes, MiddlePlanes};

/// A quarter of a tile in one group, and half of its chunks.
#[derive(Clone, Copy)]
pub struct Quarter<'a> {
    pub planes: &'a CodePlanes<'a>,
    /// Index of the group in the matrix.
    pub cell: usize,
    pub quarter: usize,
    /// 0 for chunks 0 to 3, 1 for chunks 4 to 7.
    pub vector: usize,
}

impl Quarter<'_> {
    /// Loads a vector of a plane of 2-bit digits.
    #[inline(always)]
    unsafe fn digits(&self, plane: &[u8]) -> v128 {
        let index = self.cell * 2 + self.vector;
        // SAFETY: the caller's group is inside the plane.
        unsafe { v128_load(plane.as_ptr().add(index * 64 + self.quarter * 16).cast()) }
    }

    /// Spreads the bits of a plane of one bit for each code to the even bits of each byte.
    #[inline(always)]
    unsafe fn spread_bits(&self, plane: &[u8]) -> v128 {
        // SAFETY: as above.
        let bits =
            unsafe { v128_load(plane.as_ptr().add(self.cell * 64 + self.quarter * 16).cast()) };
        let bits = if self.vector == 0 { bits } else { u16x8_shr(bits, 4) };
        i8x16_swizzle(indices(&EVEN_BITS), v128_and(bits, u8x16_splat(15)))
    }

    /// Returns the leading four bits of codes. P4 counts as 0 if the level does not need it.
    #[inline(always)]
    pub unsafe fn leading(&self) -> [v128; 4] {
        // SAFETY: the caller's group is inside the planes.
        unsafe {
            let lower = match self.planes.middle {
                MiddlePlanes::None => u8x16_splat(0),
                MiddlePlanes::P3(p3) => u16x8_shl(self.spread_bits(p3), 1),
                MiddlePlanes::Split(p3, p4) => {
                    v128_or(u16x8_shl(self.spread_bits(p3), 1), self.spread_bits(p4))
                }
                MiddlePlanes::Merged(merged) => self.digits(merged),
            };
            nibbles(self.digits(self.planes.p2), lower)
        }
    }

    /// Looks up the table entries for the two bits of codes in P2. Two digits at a time are an index of two tables: one
    /// has the entry for the lower digit, the other that for the upper one.
    #[inline(always)]
    pub unsafe fn values_of_p2(&self, table: v128) -> [v128; 4] {
        let by_lower = i8x16_swizzle(table, indices(&LOWER_DIGITS));
        let by_upper = i8x16_swizzle(table, indices(&UPPER_DIGITS));
        // SAFETY: as above.
        let digits = unsafe { self.digits(self.planes.p2) };
        let low = u8x16_splat(15);
        let (first, second) = (v128_and(digits, low), v128_and(u16x8_shr(digits, 4), low));
        [
            i8x16_swizzle(by_lower, first),
            i8x16_swizzle(by_upper, first),
            i8x16_swizzle(by_lower, second),
            i8x16_swizzle(by_upper, second),
        ]
    }

    /// Returns the digits of P6 above those of P8, or above 0 at level 6.
    #[inline(always)]
    pub unsafe fn last_nibbles(&self) -> [v128; 4] {
        let CodePlanes { p6, p8, .. } = self.planes;
        // SAFETY: as above.
        unsafe {
            let lower = if p8.is_empty() { u8x16_splat(0) } else { self.digits(p8) };
            nibbles(self.digits(p6), lower)
        }
    }
}

/// Loads sixteen bytes.
#[inline(always)]
fn indices(bytes: &[u8; 16]) -> v128 {
    // SAFETY: there are sixteen bytes.
    unsafe { v128_load(bytes.as_ptr().cast()) }
}

/// Combines two digits to nibbles.
#[inline(always)]
fn nibbles(upper: v128, lower: v128) -> [v128; 4] {
    // Upper digits 0 and 2 change places with lower digits 1 and 3.
    let (places, low) = (u8x16_splat(0x33), u8x16_splat(15));
    let differing = v128_and(v128_xor(u16x8_shr(lower, 2), upper), places);
    let even = v128_xor(lower, u16x8_shl(differing, 2));
    let odd = v128_xor(upper, differing);
    [
        v128_and(even, low),
        v128_and(odd, low),
        v128_and(u16x8_shr(even, 4), low),
        v128_and(u16x8_shr(odd, 4), low),
    ]
}

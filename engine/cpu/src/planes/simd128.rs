//! Digits of codes for WebAssembly's SIMD128, a quarter of a tile at a time.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::wasm32::*;

use super::{CodePlanes, MiddlePlanes};

/// Loads vector `quarter` of the 64-byte vector `index` of a plane.
#[inline(always)]
pub unsafe fn load(plane: &[u8], index: usize, quarter: usize) -> v128 {
    // SAFETY: the caller's `index` is inside the plane.
    unsafe { v128_load(plane.as_ptr().add(index * 64 + quarter * 16).cast()) }
}

/// Returns a 2-bit digit of each byte, with unspecified higher bits.
#[inline(always)]
pub unsafe fn digits(plane: &[u8], cell: usize, chunk: usize, quarter: usize) -> v128 {
    // SAFETY: the caller's `cell` is inside the plane.
    let bytes = unsafe { load(plane, cell * 2 + chunk / 4, quarter) };
    u8x16_shr(bytes, 2 * (chunk % 4) as u32)
}

/// Returns `upper` shifted left by `bits` with the lowest bits of `lower` below it.
#[inline(always)]
pub fn insert(upper: v128, bits: u32, lower: v128) -> v128 {
    let mask = u8x16_splat((1 << bits) - 1);
    v128_bitselect(lower, u8x16_shl(upper, bits), mask)
}

/// Returns the leading four bits of 16 codes. P4 counts as 0 if the level does not need it.
#[inline(always)]
pub unsafe fn nibbles(planes: &CodePlanes, cell: usize, chunk: usize, quarter: usize) -> v128 {
    // SAFETY: the caller's `cell` is inside the planes.
    unsafe {
        let bit = |plane| u8x16_shr(load(plane, cell, quarter), chunk as u32);
        let upper = digits(planes.p2, cell, chunk, quarter);
        let lower = match planes.middle {
            MiddlePlanes::None => u8x16_splat(0),
            MiddlePlanes::P3(p3) => insert(bit(p3), 1, u8x16_splat(0)),
            MiddlePlanes::Split(p3, p4) => insert(bit(p3), 1, bit(p4)),
            MiddlePlanes::Merged(merged) => digits(merged, cell, chunk, quarter),
        };
        v128_and(insert(upper, 2, lower), u8x16_splat(15))
    }
}

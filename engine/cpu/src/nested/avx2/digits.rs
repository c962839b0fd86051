//! Leading digits of one group's codes for AVX2, four chunks of columns at a time.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use crate::planes::avx2::{load, lookup, lookup_two_bits, nibble_pairs, nibbles, spread};
use crate::planes::leading::{MERGED, SPLIT, TWO};

/// A group of a tile. Planes that the level does not read are empty.
#[derive(Clone, Copy)]
pub struct Cell<'a> {
    pub p2: &'a [u8],
    /// Plane P3, or P3 and P4 merged.
    pub p3: &'a [u8],
    pub p4: &'a [u8],
    pub p6: &'a [u8],
    pub p8: &'a [u8],
    /// Index in the matrix.
    pub index: usize,
}

/// Returns the four leading bits of four chunks of half a tile.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn leading<const PLANES: u8>(cell: Cell, vector: usize, half: usize) -> [__m256i; 4] {
    // SAFETY: the caller's cell is inside the planes.
    unsafe {
        let p2 = load(cell.p2, cell.index * 2 + vector, half);
        nibbles(p2, middle::<PLANES>(cell, vector, half))
    }
}

/// Looks up the table entries for the leading digits of four chunks of half a tile: two bits at level 2, otherwise four.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn values<const PLANES: u8>(
    cell: Cell,
    table: __m256i,
    vector: usize,
    half: usize,
) -> [__m256i; 4] {
    // SAFETY: the caller's cell is inside the planes.
    unsafe {
        if PLANES == TWO {
            return lookup_two_bits(table, load(cell.p2, cell.index * 2 + vector, half));
        }
        lookup(table, leading::<PLANES>(cell, vector, half))
    }
}

/// Returns the four leading bits of chunks 0 and 2 of half a tile, in the low and the high half of each byte, and
/// those of chunks 1 and 3.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn leading_pairs<const PLANES: u8>(
    cell: Cell,
    vector: usize,
    half: usize,
) -> [__m256i; 2] {
    // SAFETY: the caller's cell is inside the planes.
    unsafe {
        let p2 = load(cell.p2, cell.index * 2 + vector, half);
        nibble_pairs(p2, middle::<PLANES>(cell, vector, half))
    }
}

/// Returns the bits of P3 and P4.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn middle<const PLANES: u8>(cell: Cell, vector: usize, half: usize) -> __m256i {
    let Cell { p3, p4, index, .. } = cell;
    // SAFETY: the caller's cell is inside the planes.
    unsafe {
        if PLANES == MERGED {
            return load(p3, index * 2 + vector, half);
        }
        let middle = _mm256_slli_epi16::<1>(spread(load(p3, index, half), vector));
        if PLANES == SPLIT {
            return _mm256_or_si256(middle, spread(load(p4, index, half), vector));
        }
        middle
    }
}

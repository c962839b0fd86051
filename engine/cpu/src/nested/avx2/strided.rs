//! Sums of one row of activations at levels 2 to 4 for AVX2, where values are multiples of a stride apart.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;

use super::Table;
use super::digits::{Cell, values};
use crate::planes::avx2::{after, broadcast};
use crate::rows::QuantizedGroup;

/// Returns the exact sums of 16 rows of weights and `T` rows of activations in one group. The table's mode is at least
/// 2. One row is multiplied with both halves of the tile together, several with one after the other, for which there
/// are enough registers.
#[inline]
#[target_feature(enable = "avx2")]
pub unsafe fn dots<const PLANES: u8, const T: usize>(
    cell: Cell,
    table: &Table,
    x: &[&QuantizedGroup; T],
) -> [[__m256i; 2]; T] {
    let mut sums = [[_mm256_setzero_si256(); 2]; T];
    // SAFETY: guaranteed by the caller.
    unsafe {
        if T == 1 {
            add_halves::<PLANES, T, 0, 2>(cell, table, x, &mut sums);
        } else {
            add_halves::<PLANES, T, 0, 1>(cell, table, x, &mut sums);
            add_halves::<PLANES, T, 1, 2>(cell, table, x, &mut sums);
        }
    }
    sums
}

/// Sets the sums of halves `FROM` to `TO` of the tile.
#[inline]
#[target_feature(enable = "avx2")]
#[expect(clippy::needless_range_loop, reason = "indices name chunks, halves and rows")]
unsafe fn add_halves<const PLANES: u8, const T: usize, const FROM: usize, const TO: usize>(
    cell: Cell,
    table: &Table,
    x: &[&QuantizedGroup; T],
    out: &mut [[__m256i; 2]; T],
) {
    let (zero, stride) = (_mm256_setzero_si256(), _mm256_set1_epi16(table.stride));
    let mut sums = [[zero; 2]; T];
    for t in 0..T {
        // The correction is -128 times the sum of the activations.
        sums[t] = [_mm256_set1_epi32(table.zero * (x[t].correction >> 7)); 2];
    }
    for vector in 0..2 {
        let cell = Cell { index: after(cell.index, [sums[0][FROM], sums[0][TO - 1]]), ..cell };
        let mut bytes = [[zero; 4]; 2];
        for half in FROM..TO {
            // SAFETY: the caller's cell is inside the planes.
            bytes[half] = unsafe { values::<PLANES>(cell, table.values, vector, half) };
        }
        for first in [0, 2] {
            let mut pairs = [[zero; 2]; T];
            for chunk in first..first + 2 {
                for t in 0..T {
                    // SAFETY: there are eight chunks.
                    let x = unsafe { broadcast(x[t], vector * 4 + chunk) };
                    for half in FROM..TO {
                        let products = _mm256_maddubs_epi16(bytes[half][chunk], x);
                        pairs[t][half] = _mm256_add_epi16(pairs[t][half], products);
                    }
                }
            }
            for t in 0..T {
                for half in FROM..TO {
                    let fours = _mm256_madd_epi16(pairs[t][half], stride);
                    sums[t][half] = _mm256_add_epi32(sums[t][half], fours);
                }
            }
        }
    }
    for t in 0..T {
        out[t][FROM..TO].copy_from_slice(&sums[t][FROM..TO]);
    }
}

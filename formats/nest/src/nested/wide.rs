//! Improvement passes compiled for wider vectors, selected at run time.
//!
//! Products are explicitly fused and nothing is reordered, so all versions compute the same bits.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use super::descent::{Effort, Tile, TileRows};

/// Number of columns of a product summed at a time, limited by the number of registers.
const COLUMNS: usize = 1;
#[cfg(target_arch = "x86_64")]
const COLUMNS_AVX512: usize = 4;

/// Runs [`Tile::improve`] with the widest available vectors.
pub(super) fn improve(tile: &Tile<'_>, rows: &mut TileRows, effort: Effort) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the processor supports these instructions.
            return unsafe { improve_avx512(tile, rows, effort) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor supports these instructions.
            return unsafe { improve_avx2(tile, rows, effort) };
        }
    }
    tile.improve::<COLUMNS>(rows, effort);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,fma")]
fn improve_avx512(tile: &Tile<'_>, rows: &mut TileRows, effort: Effort) {
    tile.improve::<COLUMNS_AVX512>(rows, effort);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn improve_avx2(tile: &Tile<'_>, rows: &mut TileRows, effort: Effort) {
    tile.improve::<COLUMNS>(rows, effort);
}

//! The same code compiled for wider vectors, where the processor has them.
//!
//! Products are fused wherever they are in the source and nothing is reordered, so that the results
//! have the same bits everywhere.
#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "functions for instructions that were found present")
)]

use super::descent::{Effort, Tile, TileRows};

/// Columns of a product that are summed at a time: what the registers hold.
const COLUMNS: usize = 1;
#[cfg(target_arch = "x86_64")]
const COLUMNS_AVX512: usize = 4;

/// [`Tile::improve`] with the widest vectors that there are.
pub(super) fn improve(tile: &Tile<'_>, rows: &mut TileRows, effort: Effort) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("fma")
        {
            // SAFETY: the processor has these instructions.
            return unsafe { improve_avx512(tile, rows, effort) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has these instructions.
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

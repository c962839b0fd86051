//! The same code compiled for wider vectors, where the processor has them.
//!
//! Nothing is fused or reordered, so that the results have the same bits everywhere.
#![expect(unsafe_code, reason = "functions for instructions that were found present")]

use super::descent::{Effort, Row, Tile};

/// [`Tile::improve`] with the widest vectors that there are.
pub(super) fn improve(tile: &Tile<'_>, rows: &mut [Row], effort: Effort) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
        {
            // SAFETY: the processor has these instructions.
            return unsafe { improve_avx512(tile, rows, effort) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has these instructions.
            return unsafe { improve_avx2(tile, rows, effort) };
        }
    }
    tile.improve(rows, effort);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
fn improve_avx512(tile: &Tile<'_>, rows: &mut [Row], effort: Effort) {
    tile.improve(rows, effort);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn improve_avx2(tile: &Tile<'_>, rows: &mut [Row], effort: Effort) {
    tile.improve(rows, effort);
}

//! Products with many rows. A part of a tile is decoded once into a panel that stays in the first-level
//! cache. It is then multiplied with blocks of eight rows, packed so that a single address reaches all of
//! them.
//!
//! ```text
//! for each 16 groups: decode 16 x 512 values; for each eight rows: add to their sums
//! ```
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{
    GROUP_WORDS, PACKED_ROWS, PackedGroup, SCALE, Source, Tables, TileValues, decode, group_sums,
    prefetch, scales, steps_of_four,
};

/// Number of groups of a panel: 8 KiB of values, or twice 8 KiB of digits.
pub const GROUPS: usize = 16;

/// Decoded groups of one tile.
pub struct Panel {
    /// Values + 128, or high digits + 128.
    pub high: [MaybeUninit<[__m512i; 8]>; GROUPS],
    /// Low digits + 128 at levels 6 and 8.
    pub low: [MaybeUninit<[__m512i; 8]>; GROUPS],
    /// Weight scales.
    pub scales: [MaybeUninit<__m512>; GROUPS],
}

impl Panel {
    pub const EMPTY: Self = Self {
        high: [MaybeUninit::uninit(); GROUPS],
        low: [MaybeUninit::uninit(); GROUPS],
        scales: [MaybeUninit::uninit(); GROUPS],
    };

    /// Decodes `count` groups from `first` on, which is a multiple of four.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
    pub unsafe fn fill<const LEVEL: u8, const MIDDLE: u8>(
        &mut self,
        source: &Source,
        tables: &Tables,
        first: usize,
        count: usize,
    ) {
        let mut low = [_mm512_setzero_si512(); 8];
        let mut steps = _mm512_setzero_si512();
        for i in 0..count {
            // SAFETY: the caller's groups are inside the planes.
            unsafe {
                steps = if i.is_multiple_of(4) {
                    steps_of_four(source, first + i)
                } else {
                    _mm512_srli_epi32::<8>(steps)
                };
                prefetch::<LEVEL, MIDDLE>(source, first + i + GROUPS);
                self.scales[i].write(scales(tables, steps));
                self.high[i].write(decode::<LEVEL, MIDDLE>(source, tables, first + i, &mut low));
            }
            if LEVEL >= 6 {
                self.low[i].write(low);
            }
        }
    }
}

/// Computes one tile for any number of rows in `x`, `[blocks, groups]`. The panel has a separate stack frame,
/// so that calls with few rows, which need no panel, do not touch its pages.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
pub unsafe fn products<const LEVEL: u8, const MIDDLE: u8>(
    source: &Source,
    tables: &Tables,
    x: &[PackedGroup],
    out: &mut [TileValues],
) {
    let mut panel = Panel::EMPTY;
    out.fill([0.0; 16]);
    for first in (0..source.groups).step_by(GROUPS) {
        let count = GROUPS.min(source.groups - first);
        // SAFETY: the groups are inside the planes and inside each block of `x`.
        unsafe { panel.fill::<LEVEL, MIDDLE>(source, tables, first, count) };
        for block in 0..out.len().div_ceil(PACKED_ROWS) {
            let x = &x[block * source.groups + first..][..count];
            let rows = block * PACKED_ROWS..out.len().min((block + 1) * PACKED_ROWS);
            // SAFETY: `fill` wrote as many groups as are used of `x`.
            unsafe { add_rows::<LEVEL>(&panel, x, &mut out[rows]) };
        }
    }
}

/// Adds the panel's products to the sums of up to eight rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_rows<const LEVEL: u8>(panel: &Panel, x: &[PackedGroup], out: &mut [TileValues]) {
    // Two digits of eight rows do not fit in the registers.
    let most = if LEVEL >= 6 { 4 } else { 8 };
    for (index, out) in out.chunks_mut(most).enumerate() {
        macro_rules! add_block {
            ($($count:literal)*) => {
                match out.len() {
                    // SAFETY: guaranteed by the caller, and `out` has as many rows.
                    $($count => unsafe {
                        add_block::<LEVEL, $count>(panel, x, index * most, out);
                    },)*
                    _ => {}
                }
            };
        }
        if LEVEL >= 6 { add_block!(1 2 3 4) } else { add_block!(1 2 3 4 5 6 7 8) }
    }
}

/// Adds the panel's products to the sums of `T` rows from lane `lane` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_block<const LEVEL: u8, const T: usize>(
    panel: &Panel,
    x: &[PackedGroup],
    lane: usize,
    out: &mut [TileValues],
) {
    let mut sums = [_mm512_setzero_ps(); T];
    // SAFETY: `out` has T times 16 floats. `fill` wrote a group for each group of `x`, which holds eight
    // rows, and `lane` and T select some of them.
    unsafe {
        for t in 0..T {
            sums[t] = _mm512_loadu_ps(out[t].as_ptr());
        }
        let groups = x.len();
        let mut x: *const i32 = x.as_ptr().cast::<i32>().add(lane);
        for i in 0..groups {
            let high = panel.high[i].assume_init_ref();
            // Unused at other levels.
            let low = if LEVEL >= 6 { panel.low[i].assume_init_ref() } else { high };
            let group = group_sums::<LEVEL, T, PACKED_ROWS>(high, low, x);
            let scales = panel.scales[i].assume_init();
            for t in 0..T {
                let factor = _mm512_set1_ps(*x.add(SCALE * PACKED_ROWS + t).cast());
                let scale = _mm512_mul_ps(factor, scales);
                sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(group[t]), scale, sums[t]);
            }
            x = x.add(GROUP_WORDS * PACKED_ROWS);
        }
        for t in 0..T {
            _mm512_storeu_ps(out[t].as_mut_ptr(), sums[t]);
        }
    }
}

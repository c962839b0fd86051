//! Products with many rows: a part of a tile is decoded once into a panel that stays in the first
//! cache, then multiplied with blocks of eight rows.
//!
//! ```text
//! for each 16 groups: decode 16 x 512 values; for each eight rows: go on with their sums
//! ```
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::{
    QuantizedGroup, QuantizedRows, Source, Tables, TileValues, decode, scales, steps_of_four,
};

/// Groups of a panel: 8 KiB of values, or twice 8 KiB of digits.
pub const GROUPS: usize = 16;

/// Some groups of one tile.
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

    /// Decodes `count` groups from `first` on, a multiple of four.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
    pub unsafe fn fill<const LEVEL: u8, const MIDDLE: u8>(
        &mut self,
        source: &Source,
        tables: &Tables,
        (first, count): (usize, usize),
    ) {
        let mut low = [_mm512_setzero_si512(); 8];
        let mut steps = _mm512_setzero_si512();
        for i in 0..count {
            // SAFETY: the caller's groups are inside of the planes.
            unsafe {
                steps = if i.is_multiple_of(4) {
                    steps_of_four(source, first + i)
                } else {
                    _mm512_srli_epi32::<8>(steps)
                };
                self.scales[i].write(scales(tables, steps));
                self.high[i].write(decode::<LEVEL, MIDDLE>(source, tables, first + i, &mut low));
            }
            if LEVEL >= 6 {
                self.low[i].write(low);
            }
        }
    }
}

/// One tile for any number of rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
pub unsafe fn products<const LEVEL: u8, const MIDDLE: u8>(
    source: Source,
    tables: &Tables,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let mut panel = Panel::EMPTY;
    out.fill([0.0; 16]);
    for first in (0..source.groups).step_by(GROUPS) {
        let range = (first, GROUPS.min(source.groups - first));
        // SAFETY: the groups are inside of the planes and of every row of `x`.
        unsafe {
            panel.fill::<LEVEL, MIDDLE>(&source, tables, range);
            add_rows::<LEVEL>(&panel, range, x, rows, out);
        }
    }
}

/// Goes on with the sums of all rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
pub unsafe fn add_rows<const LEVEL: u8>(
    panel: &Panel,
    range: (usize, usize),
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let (mut rows, mut out) = (rows, out);
    // SAFETY: the caller's promise holds for a part of the rows too.
    unsafe {
        // Two digits of eight rows do not fit into the registers.
        while let Some((block, rest)) = rows.split_first_chunk::<8>()
            && LEVEL < 6
        {
            let (block_out, rest_out) = out.split_at_mut(8);
            add_block::<LEVEL, 8>(panel, range, x, block, block_out);
            (rows, out) = (rest, rest_out);
        }
        while let Some((block, rest)) = rows.split_first_chunk::<4>() {
            let (block_out, rest_out) = out.split_at_mut(4);
            add_block::<LEVEL, 4>(panel, range, x, block, block_out);
            (rows, out) = (rest, rest_out);
        }
        for (row, out) in rows.iter().zip(out.chunks_mut(1)) {
            add_block::<LEVEL, 1>(panel, range, x, &[*row], out);
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_block<const LEVEL: u8, const T: usize>(
    panel: &Panel,
    (first, count): (usize, usize),
    x: &QuantizedRows,
    rows: &[u32; T],
    out: &mut [TileValues],
) {
    let x: [*const QuantizedGroup; T] =
        std::array::from_fn(|t| x.row(rows[t] as usize)[first..first + count].as_ptr());
    // SAFETY: `out` has T times 16 floats; `fill` wrote `count` groups, which `x` has too.
    unsafe {
        let mut sums: [__m512; T] = std::array::from_fn(|t| _mm512_loadu_ps(out[t].as_ptr()));
        for i in 0..count {
            let high = panel.high[i].assume_init_ref();
            let scales = panel.scales[i].assume_init();
            for t in 0..T {
                let x = &*x[t].add(i);
                let values: *const i32 = x.values.as_ptr().cast();
                let mut sum = _mm512_set1_epi32(x.correction);
                let mut sum_low = sum;
                for chunk in 0..8 {
                    let x = _mm512_set1_epi32(values.add(chunk).read_unaligned());
                    sum = _mm512_dpbusd_epi32(sum, high[chunk], x);
                    if LEVEL >= 6 {
                        let low = panel.low[i].assume_init_ref();
                        sum_low = _mm512_dpbusd_epi32(sum_low, low[chunk], x);
                    }
                }
                if LEVEL >= 6 {
                    sum = _mm512_add_epi32(_mm512_slli_epi32::<7>(sum), sum_low);
                }
                let scale = _mm512_mul_ps(_mm512_set1_ps(x.scale), scales);
                sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale, sums[t]);
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            _mm512_storeu_ps(out.as_mut_ptr(), sum);
        }
    }
}

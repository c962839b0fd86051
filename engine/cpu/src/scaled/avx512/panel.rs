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
    Level, MERGED, MiddlePlanes, NONE, P3, PACKED_ROWS, PackedGroup, RUN, SPLIT, ScaledWeights,
    Tables, TileValues, decode, dots, for_codes, scales, tile_planes,
};

/// Number of groups of a panel: 8 KiB of values.
const GROUPS: usize = 2 * RUN;

struct Panel {
    /// Values + 128.
    values: [MaybeUninit<[__m512i; 8]>; GROUPS],
    /// Weight scales, `[groups, sub-blocks]`.
    scales: [MaybeUninit<__m512>; 2 * GROUPS],
    /// Minima, which are added to weights, `[groups, sub-blocks]`, if there are any.
    minima: [MaybeUninit<__m512>; 2 * GROUPS],
}

impl Panel {
    const EMPTY: Self = Self {
        values: [MaybeUninit::uninit(); GROUPS],
        scales: [MaybeUninit::uninit(); 2 * GROUPS],
        minima: [MaybeUninit::uninit(); 2 * GROUPS],
    };
}

/// Computes one tile for any number of rows in `x`, `[blocks, groups]`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni,fma")]
pub unsafe fn products(
    weights: &ScaledWeights,
    tile: usize,
    x: &[PackedGroup],
    out: &mut [TileValues],
) {
    let mut panel = Panel::EMPTY;
    out.fill([0.0; 16]);
    let subs = weights.form.sub_blocks();
    let add_rows = match (subs, weights.has_minima()) {
        (1, false) => add_rows::<1, false>,
        (1, true) => add_rows::<1, true>,
        (_, false) => add_rows::<2, false>,
        (_, true) => add_rows::<2, true>,
    };
    let fill = scales::filler(weights);
    for first in (0..weights.groups).step_by(GROUPS) {
        let count = GROUPS.min(weights.groups - first);
        // SAFETY: the groups are inside the planes and inside each block of `x`.
        unsafe {
            let values = &mut panel.values[..count];
            for_codes!(weights, fill_values(weights, tile, first, values));
            for run in (0..count).step_by(RUN) {
                let (scales, minima) =
                    (&mut panel.scales[run * subs..], &mut panel.minima[run * subs..]);
                fill(weights, tile, first + run, scales, minima);
            }
        }
        for (block, out) in out.chunks_mut(PACKED_ROWS).enumerate() {
            let x = &x[block * weights.groups + first..][..count];
            // SAFETY: the panel was filled with as many groups as are used of `x`.
            unsafe { add_rows(&panel, x, out) };
        }
    }
}

/// Decodes the groups from `first` on.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,gfni")]
unsafe fn fill_values<const LEVEL: u8, const MIDDLE: u8>(
    weights: &ScaledWeights,
    tile: usize,
    first: usize,
    out: &mut [MaybeUninit<[__m512i; 8]>],
) {
    let (planes, tables) = (tile_planes::<LEVEL>(weights, tile), Tables::new(weights));
    for (i, out) in out.iter_mut().enumerate() {
        planes.prefetch::<LEVEL, MIDDLE>(first + i + GROUPS);
        // SAFETY: the caller's groups are inside the planes.
        out.write(unsafe { decode::<LEVEL, MIDDLE>(&planes, &tables, first + i) });
    }
}

/// Adds the panel's products to the sums of up to eight rows.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_rows<const SUBS: usize, const MINIMA: bool>(
    panel: &Panel,
    x: &[PackedGroup],
    out: &mut [TileValues],
) {
    macro_rules! add_block {
        ($($count:literal)*) => {
            match out.len() {
                // SAFETY: guaranteed by the caller, and `out` has as many rows.
                $($count => unsafe { add_block::<SUBS, MINIMA, $count>(panel, x, out) },)*
                _ => {}
            }
        };
    }
    add_block!(1 2 3 4 5 6 7 8);
}

/// Adds the panel's products to the sums of `T` rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")]
unsafe fn add_block<const SUBS: usize, const MINIMA: bool, const T: usize>(
    panel: &Panel,
    x: &[PackedGroup],
    out: &mut [TileValues],
) {
    let mut sums = [_mm512_setzero_ps(); T];
    // SAFETY: `out` has T times 16 floats. The panel holds a group for each group of `x`, which holds eight
    // rows.
    unsafe {
        for t in 0..T {
            sums[t] = _mm512_loadu_ps(out[t].as_ptr());
        }
        let groups = x.len();
        let mut x = x.as_ptr();
        for i in 0..groups {
            let values = panel.values[i].assume_init_ref();
            let (starts, words) = (Starts::new::<SUBS>(&*x), x.cast::<i32>());
            for sub in 0..SUBS {
                let mut start = [_mm512_setzero_si512(); T];
                for (start, correction) in start.iter_mut().zip(starts.0[sub]) {
                    *start = _mm512_set1_epi32(correction);
                }
                let dots = if SUBS == 1 {
                    dots::<0, 8, T, PACKED_ROWS>(values, words, start)
                } else if sub == 0 {
                    dots::<0, 4, T, PACKED_ROWS>(values, words, start)
                } else {
                    dots::<4, 4, T, PACKED_ROWS>(values, words, start)
                };
                let scales = panel.scales[i * SUBS + sub].assume_init();
                for t in 0..T {
                    let scale = _mm512_mul_ps(_mm512_set1_ps((*x).scales[t]), scales);
                    sums[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[t]), scale, sums[t]);
                }
            }
            if MINIMA {
                for sub in 0..SUBS {
                    let negative = starts.negative_sums(sub, &*x);
                    let minimum = panel.minima[i * SUBS + sub].assume_init();
                    for t in 0..T {
                        sums[t] = _mm512_fnmadd_ps(_mm512_set1_ps(negative[t]), minimum, sums[t]);
                    }
                }
            }
            // A single advancing address: a sum of two would split each product into two operations.
            x = x.add(1);
        }
        for t in 0..T {
            _mm512_storeu_ps(out[t].as_mut_ptr(), sums[t]);
        }
    }
}

/// Start of the sums: -128 times the sum of activations of each sub-block and row.
#[repr(C, align(32))]
struct Starts([[i32; PACKED_ROWS]; 2]);

impl Starts {
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl,avx512vnni")]
    fn new<const SUBS: usize>(x: &PackedGroup) -> Self {
        if SUBS == 1 {
            return Self([x.corrections; 2]);
        }
        let mut starts = Self([[0; PACKED_ROWS]; 2]);
        let mut first = _mm256_setzero_si256();
        // SAFETY: all loads and stores are eight words.
        unsafe {
            for words in &x.values[..4] {
                let words = _mm256_loadu_si256(words.as_ptr().cast());
                first = _mm256_dpbusd_epi32(first, _mm256_set1_epi8(-128), words);
            }
            let all = _mm256_loadu_si256(x.corrections.as_ptr().cast());
            let negative = _mm256_sub_epi32(_mm256_setzero_si256(), first);
            _mm256_store_si256(starts.0[0].as_mut_ptr().cast(), negative);
            _mm256_store_si256(starts.0[1].as_mut_ptr().cast(), _mm256_add_epi32(all, first));
        }
        starts
    }

    /// Returns the negated scaled sums of activations of a sub-block.
    #[inline]
    #[target_feature(enable = "avx512f,avx512vl")]
    fn negative_sums(&self, sub: usize, x: &PackedGroup) -> [f32; PACKED_ROWS] {
        let mut out = [0.0; PACKED_ROWS];
        // SAFETY: all loads and stores are eight words.
        unsafe {
            let starts = _mm256_loadu_si256(self.0[sub].as_ptr().cast());
            let negative = _mm256_cvtepi32_ps(_mm256_srai_epi32::<7>(starts));
            let scales = _mm256_loadu_ps(x.scales.as_ptr());
            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(scales, negative));
        }
        out
    }
}

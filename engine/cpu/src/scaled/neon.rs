//! Kernels for NEON, with `sdot` if the processor has it.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `tbl`. At higher levels, a value is its code times a stride minus a zero, modulo 2^8.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;

use nestling_formats::Level;

use super::super::planes::neon::{
    QuarterTiles, digits, dot, load, lookup_nibbles, multiply_add, nibbles, shift_right,
};
use super::super::rows::QuantizedGroup;
use super::{RUN, RowList, ScalePanel, ScaledWeights, TileValues, widen};

/// Number of activation rows that share one decoded group.
const BLOCK: usize = 16;

/// Defines the products of one tile for a list of features and a function that adds 16 products to four sums.
macro_rules! products_for {
    ($module:ident, $features:literal, $dot:path) => {
        pub mod $module {
            use super::*;

            /// Computes one tile for some rows.
            ///
            /// # Safety
            /// The machine must have the features, and [`super::super::fits`] must hold.
            #[target_feature(enable = $features)]
            pub unsafe fn tile(
                weights: &ScaledWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    match weights.form.sub_blocks() {
                        1 => products::<1>(weights, tile, rows, out),
                        _ => products::<2>(weights, tile, rows, out),
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn products<const SUBS: usize>(
                weights: &ScaledWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                let x = rows.source();
                let mut panel = ScalePanel::ZERO;
                let mut values = [[vdupq_n_s8(0); 4]; 8];
                for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    let mut starts = [std::ptr::null(); BLOCK];
                    for (start, row) in starts.iter_mut().zip(rows) {
                        *start = x.row(*row as usize).as_ptr();
                    }
                    out.fill([0.0; 16]);
                    for group in 0..weights.groups {
                        if group.is_multiple_of(RUN) {
                            panel.fill(weights, tile, group, widen);
                        }
                        // SAFETY: `group` is below the groups of the weights and of the rows.
                        unsafe {
                            decode(weights, tile * weights.groups + group, &mut values);
                            for (out, x) in out.iter_mut().zip(&starts) {
                                let slot = group % RUN * SUBS;
                                let x = &*x.add(group);
                                add_group::<SUBS>(&panel, slot, &values, x, out);
                                if weights.has_minima() {
                                    add_minima::<SUBS>(&panel, slot, x, out);
                                }
                            }
                        }
                    }
                }
            }

            /// Adds the panel's slots from `slot` on to the sums of 16 rows.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_group<const SUBS: usize>(
                panel: &ScalePanel,
                slot: usize,
                values: &QuarterTiles,
                x: &QuantizedGroup,
                out: &mut TileValues,
            ) {
                let words: *const i32 = x.values.as_ptr().cast();
                for sub in 0..SUBS {
                    let mut dots = [vdupq_n_s32(0); 4];
                    for chunk in sub * 8 / SUBS..(sub + 1) * 8 / SUBS {
                        // SAFETY: there are eight chunks of four bytes.
                        let x = unsafe { words.add(chunk).read_unaligned() };
                        let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                        for (dots, values) in dots.iter_mut().zip(&values[chunk]) {
                            *dots = $dot(*dots, *values, x);
                        }
                    }
                    let scales = &panel.scales[slot + sub];
                    for (quarter, dots) in dots.into_iter().enumerate() {
                        // SAFETY: both have 16 floats.
                        unsafe {
                            let out = out.as_mut_ptr().add(4 * quarter);
                            let scale = vld1q_f32(scales.as_ptr().add(4 * quarter));
                            let scale = vmulq_f32(vdupq_n_f32(x.scale), scale);
                            vst1q_f32(out, vfmaq_f32(vld1q_f32(out), vcvtq_f32_s32(dots), scale));
                        }
                    }
                }
            }
        }
    };
}

products_for!(plain, "neon", multiply_add);
products_for!(dotprod, "neon,dotprod", dot);

/// Adds the minima of a group to the sums of 16 rows.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn add_minima<const SUBS: usize>(
    panel: &ScalePanel,
    slot: usize,
    x: &QuantizedGroup,
    out: &mut TileValues,
) {
    let all = -(x.correction >> 7);
    let sums = if SUBS == 1 {
        [all; 2]
    } else {
        // SAFETY: the load reads the first half of 32 activations.
        let first = i32::from(vaddlvq_s8(unsafe { vld1q_s8(x.values.as_ptr()) }));
        [first, all - first]
    };
    for sub in 0..SUBS {
        let x_sum = vdupq_n_f32(x.scale * sums[sub] as f32);
        let minima = &panel.minima[slot + sub];
        for quarter in 0..4 {
            // SAFETY: both have 16 floats.
            unsafe {
                let out = out.as_mut_ptr().add(4 * quarter);
                let minimum = vld1q_f32(minima.as_ptr().add(4 * quarter));
                vst1q_f32(out, vfmaq_f32(vld1q_f32(out), x_sum, minimum));
            }
        }
    }
}

/// Decodes one group to values.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn decode(weights: &ScaledWeights, cell: usize, out: &mut QuarterTiles) {
    let (planes, table) = (&weights.planes, &weights.table);
    let last = weights.last_bits();
    if last == 0 {
        // SAFETY: the load reads 16 of 256 values, and the caller's `cell` is inside the planes.
        return unsafe {
            let values = vld1q_s8(table.values.as_ptr());
            lookup_nibbles(planes, weights.level == Level::L2, cell, values, out);
        };
    }
    // Both are computed modulo 2^8, since the values are int8.
    let stride = vdupq_n_u8(table.unsigned.stride as u8);
    let less = vdupq_n_u8((-table.unsigned.zero) as u8);
    for (chunk, out) in out.iter_mut().enumerate() {
        for (quarter, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller's `cell` is inside the planes.
            let code = unsafe {
                let first = nibbles(planes, cell, chunk, quarter);
                match last {
                    1 => {
                        let bit = shift_right(load(planes.p6, cell, quarter), chunk);
                        vsliq_n_u8::<1>(bit, first)
                    }
                    2 => vsliq_n_u8::<2>(digits(planes.p6, cell, chunk, quarter), first),
                    _ => {
                        let p6 = digits(planes.p6, cell, chunk, quarter);
                        let last = vsliq_n_u8::<2>(digits(planes.p8, cell, chunk, quarter), p6);
                        vsliq_n_u8::<4>(last, first)
                    }
                }
            };
            *out = vreinterpretq_s8_u8(vmlaq_u8(less, code, stride));
        }
    }
}

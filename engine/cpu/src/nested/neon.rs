//! Kernels for NEON, with `sdot` if the processor has it.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `tbl`; levels 6 and 8 look up two digits of base 128 in tables of 64 entries.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;

use nestling_formats::Level;

use super::super::planes::neon::{
    QuarterTiles, digits, dot, lookup_nibbles, multiply_add, nibbles,
};
use super::super::rows::QuantizedGroup;
use super::{NestedWeights, QuantizedRows, RowList, TileValues};

/// Number of activation rows that share one decoded group.
const BLOCK: usize = 4;

/// First bit of the exponent, from which a step's octave is subtracted.
const OCTAVE: i32 = 23;

/// Values of one group by chunk of four columns and quarter of the tile: values, or at levels 6 and 8 high
/// and low digits.
struct Group {
    high: QuarterTiles,
    low: QuarterTiles,
}

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
                weights: &NestedWeights,
                tile: usize,
                rows: RowList,
                out: &mut [TileValues],
            ) {
                let x = rows.source();
                for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                    // SAFETY: `fits` holds for a subset of the rows too.
                    unsafe {
                        match *rows {
                            [a] => products(weights, tile, x, &[a], out),
                            [a, b] => products(weights, tile, x, &[a, b], out),
                            [a, b, c] => products(weights, tile, x, &[a, b, c], out),
                            [a, b, c, d, ..] => products(weights, tile, x, &[a, b, c, d], out),
                            [] => {}
                        }
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn products<const T: usize>(
                weights: &NestedWeights,
                tile: usize,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                let x = rows.map(|row| x.row(row as usize).as_ptr());
                let wide = weights.level >= Level::L6;
                let units = weights.row_units(tile);
                // SAFETY: both arrays are as long as the loads.
                let (units, table) = unsafe {
                    let units = [0, 4, 8, 12].map(|i| vld1q_f32(units[i..].as_ptr()));
                    (units, vld1q_s8(weights.nibble_table(tile).as_ptr()))
                };
                let zero = vdupq_n_s8(0);
                let mut values = Group { high: [[zero; 4]; 8], low: [[zero; 4]; 8] };
                let mut sums = [[vdupq_n_f32(0.0); 4]; T];
                for group in 0..weights.groups {
                    let cell = tile * weights.groups + group;
                    // SAFETY: `group` is below the groups of the weights and of the rows of `x`.
                    unsafe {
                        if wide {
                            decode_wide(weights, cell, &mut values);
                        } else {
                            let two = weights.level == Level::L2;
                            lookup_nibbles(&weights.planes, two, cell, table, &mut values.high);
                        }
                        let scales = scales(weights, cell, units);
                        for t in 0..T {
                            let x = &*x[t].add(group);
                            let mut dots = dot_group(&values.high, x);
                            if wide {
                                let low = dot_group(&values.low, x);
                                for (dots, low) in dots.iter_mut().zip(low) {
                                    *dots = vaddq_s32(vshlq_n_s32::<7>(*dots), low);
                                }
                            }
                            for quarter in 0..4 {
                                let scale = vmulq_f32(vdupq_n_f32(x.scale), scales[quarter]);
                                let dots = vcvtq_f32_s32(dots[quarter]);
                                sums[t][quarter] = vfmaq_f32(sums[t][quarter], dots, scale);
                            }
                        }
                    }
                }
                for (out, sums) in out.iter_mut().zip(&sums) {
                    for (quarter, sum) in sums.iter().enumerate() {
                        // SAFETY: `out` has 16 floats.
                        unsafe { vst1q_f32(out[4 * quarter..].as_mut_ptr(), *sum) };
                    }
                }
            }

            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn dot_group(values: &QuarterTiles, x: &QuantizedGroup) -> [int32x4_t; 4] {
                let mut sums = [vdupq_n_s32(0); 4];
                let chunks: *const i32 = x.values.as_ptr().cast();
                for (chunk, values) in values.iter().enumerate() {
                    // SAFETY: eight chunks of four bytes.
                    let x = unsafe { chunks.add(chunk).read_unaligned() };
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                    for (sum, values) in sums.iter_mut().zip(values) {
                        *sum = $dot(*sum, *values, x);
                    }
                }
                sums
            }
        }
    };
}

products_for!(plain, "neon", multiply_add);
products_for!(dotprod, "neon,dotprod", dot);

/// Returns the weight scales of the four quarters of a tile in one group. A step's factor is one of the first
/// eight, with its exponent lowered once for each multiple of eight steps.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scales(
    weights: &NestedWeights,
    cell: usize,
    units: [float32x4_t; 4],
) -> [float32x4_t; 4] {
    // SAFETY: the caller's `cell` is inside both parts, and eight fractions are 32 bytes.
    let (nibbles, high, fractions) = unsafe {
        let nibbles = vld1_u8(weights.steps.as_ptr().add(cell * 8));
        let high = weights.step_high.as_ptr().add(cell * 2).cast::<[u8; 2]>().read();
        (nibbles, high, vld1q_u8_x2(weights.decode.steps.factors().as_ptr().cast()))
    };
    let nibbles = vcombine_u8(vand_u8(nibbles, vdup_n_u8(15)), vshr_n_u8::<4>(nibbles));
    let high = vcombine_u8(vdup_n_u8(high[0]), vdup_n_u8(high[1]));
    let bits = vreinterpretq_u8_u64(vdupq_n_u64(0x8040_2010_0804_0201));
    let steps = vorrq_u8(nibbles, vandq_u8(vtstq_u8(high, bits), vdupq_n_u8(16)));
    let (low, high) = (vmovl_u8(vget_low_u8(steps)), vmovl_high_u8(steps));
    let lanes = [
        vmovl_u16(vget_low_u16(low)),
        vmovl_high_u16(low),
        vmovl_u16(vget_low_u16(high)),
        vmovl_high_u16(high),
    ];
    let eight_steps = vdupq_n_s32(OCTAVE + weights.decode.steps.eight_steps() as i32);
    std::array::from_fn(|quarter| {
        let step = lanes[quarter];
        let index = vmulq_n_u32(vandq_u32(step, vdupq_n_u32(7)), 0x0404_0404);
        let index = vaddq_u32(index, vdupq_n_u32(0x0302_0100));
        let fraction = vqtbl2q_u8(fractions, vreinterpretq_u8_u32(index));
        let octave = vshlq_u32(vshrq_n_u32::<3>(step), eight_steps);
        let factor = vsubq_u32(vreinterpretq_u32_u8(fraction), octave);
        let factor = vbicq_u32(factor, vceqq_u32(step, vdupq_n_u32(31)));
        vmulq_f32(units[quarter], vreinterpretq_f32_u32(factor))
    })
}

/// Decodes levels 6 and 8 to two digits of base 128.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn decode_wide(weights: &NestedWeights, cell: usize, out: &mut Group) {
    for (chunk, (high, low)) in out.high.iter_mut().zip(&mut out.low).enumerate() {
        for (quarter, (high, low)) in high.iter_mut().zip(low).enumerate() {
            // SAFETY: the caller's `cell` is inside the planes.
            unsafe {
                let digit =
                    vandq_u8(digits(weights.planes.p6, cell, chunk, quarter), vdupq_n_u8(3));
                let mut index =
                    vsliq_n_u8::<2>(digit, nibbles(&weights.planes, cell, chunk, quarter));
                let tables = if weights.level == Level::L8 {
                    index = vsliq_n_u8::<6>(index, digits(weights.planes.p8, cell, chunk, quarter));
                    4
                } else {
                    1
                };
                *high = lookup(&weights.decode.high, tables, index);
                *low = lookup(&weights.decode.low, tables, index);
            }
        }
    }
}

/// Looks up entries among the first 64 or all 256, and subtracts the offset of 128 with which tables store
/// them.
#[inline]
#[target_feature(enable = "neon")]
fn lookup(table: &[u8; 256], tables: usize, index: uint8x16_t) -> int8x16_t {
    let mut found = vdupq_n_u8(0);
    for (i, part) in table.as_chunks::<64>().0.iter().take(tables).enumerate() {
        // SAFETY: a part has 64 bytes.
        let part = unsafe { vld1q_u8_x4(part.as_ptr()) };
        found = vqtbx4q_u8(found, part, vsubq_u8(index, vdupq_n_u8(64 * i as u8)));
    }
    vreinterpretq_s8_u8(veorq_u8(found, vdupq_n_u8(128)))
}

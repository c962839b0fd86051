//! Kernels for NEON, with `sdot` if the processor has it.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `tbl`. At higher levels, a value is its code times a stride minus a zero, modulo 2^8. Four chunks of columns are
//! decoded in registers, and multiplied with up to four rows of activations at once.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;
use std::ops::Range;

use super::super::planes::MiddlePlanes;
use super::super::planes::leading::{MERGED, P3, SPLIT, TWO};
use super::super::planes::neon::{self, Floats, Quarter, middle_planes, part_of, parts, store};
use super::super::rows::{QuantizedGroup, QuantizedRows};
use super::{RUN, RowList, ScalePanel, ScaledWeights, TileValues};

mod scales;

/// Number of activation rows that share decoded values.
const BLOCK: usize = 4;

/// Defines the products of one tile for a list of features, with the sums of [`neon`] of the same name.
macro_rules! products_for {
    ($module:ident, $features:literal) => {
        pub mod $module {
            use super::neon::$module as sums;
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
                let (x, mut panel) = (rows.source(), ScalePanel::ZERO);
                let [p3, p4] = middle_planes(&weights.planes);
                out.fill([0.0; 16]);
                for first in (0..weights.groups).step_by(RUN) {
                    scales::fill(weights, tile, first, &mut panel);
                    let groups = first..weights.groups.min(first + RUN);
                    let run = Run { weights, tile, groups, p3, p4, panel: &panel };
                    for (rows, out) in rows.rows().chunks(BLOCK).zip(out.chunks_mut(BLOCK)) {
                        // SAFETY: `fits` holds for a subset of the rows too.
                        unsafe {
                            match *rows {
                                [a] => add_run(&run, x, &[a], out),
                                [a, b] => add_run(&run, x, &[a, b], out),
                                [a, b, c] => {
                                    let (two, one) = out.split_at_mut(2);
                                    add_run(&run, x, &[a, b], two);
                                    add_run(&run, x, &[c], one);
                                }
                                [a, b, c, d, ..] => add_run(&run, x, &[a, b, c, d], out),
                                [] => {}
                            }
                        }
                    }
                }
            }

            /// Adds a run of groups to the sums of `T` rows.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_run<const T: usize>(
                run: &Run,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                macro_rules! groups {
                    ($planes:ident, $last:literal) => {
                        match run.weights.form.sub_blocks() {
                            1 => add_groups::<$planes, $last, 1, T>,
                            _ => add_groups::<$planes, $last, 2, T>,
                        }
                    };
                }
                let add = match (run.weights.planes.middle, run.weights.last_bits()) {
                    (MiddlePlanes::None, _) => groups!(TWO, 0),
                    (MiddlePlanes::P3(_), _) => groups!(P3, 0),
                    (MiddlePlanes::Split(..), 0) => groups!(SPLIT, 0),
                    (MiddlePlanes::Split(..), 1) => groups!(SPLIT, 1),
                    (MiddlePlanes::Split(..), 2) => groups!(SPLIT, 2),
                    (MiddlePlanes::Split(..), _) => groups!(SPLIT, 4),
                    (MiddlePlanes::Merged(_), 0) => groups!(MERGED, 0),
                    (MiddlePlanes::Merged(_), 1) => groups!(MERGED, 1),
                    (MiddlePlanes::Merged(_), 2) => groups!(MERGED, 2),
                    (MiddlePlanes::Merged(_), _) => groups!(MERGED, 4),
                };
                // SAFETY: guaranteed by the caller.
                unsafe { add(run, x, rows, out) }
            }

            /// Implements [`add_run`] for codes with leading planes `PLANES` and `LAST` bits in P6 and P8.
            #[target_feature(enable = $features)]
            unsafe fn add_groups<
                const PLANES: u8,
                const LAST: u8,
                const SUBS: usize,
                const T: usize,
            >(
                run: &Run,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                let (Run { weights, tile, p3, p4, panel, .. }, codes) =
                    (run, Codes::new(run.weights));
                let x = rows.map(|row| x.row(row as usize).as_ptr());
                let mut all = [[vdupq_n_f32(0.0); 4]; T];
                for (all, out) in all.iter_mut().zip(&*out) {
                    *all = parts(out);
                }
                for group in run.groups.clone() {
                    let (cell, slot) = (tile * weights.groups + group, group % RUN * SUBS);
                    // SAFETY: `group` is below the groups of the rows of `x`.
                    let x = unsafe { x.map(|x| &*x.add(group)) };
                    for quarter in 0..4 {
                        for sub in 0..SUBS {
                            let mut dots = [sums::zero(); T];
                            for vector in sub * 2 / SUBS..(sub + 1) * 2 / SUBS {
                                let planes = &weights.planes;
                                let part = Quarter { planes, p3, p4, cell, quarter, vector };
                                // SAFETY: `group` is below the groups of the weights, and there are 32 activations.
                                unsafe {
                                    let values = codes.values::<PLANES, LAST>(&part);
                                    for t in 0..T {
                                        let x = vld1q_s8(x[t].values.as_ptr().add(16 * vector));
                                        sums::add(&mut dots[t], &values, x);
                                    }
                                }
                            }
                            let scales = part_of(&panel.scales[slot + sub], quarter);
                            for t in 0..T {
                                let scale = vmulq_n_f32(scales, x[t].scale);
                                let dots = vcvtq_f32_s32(sums::rows(dots[t]));
                                all[t][quarter] = vfmaq_f32(all[t][quarter], dots, scale);
                            }
                        }
                    }
                    if weights.has_minima() {
                        for (sums, x) in all.iter_mut().zip(x) {
                            add_minima::<SUBS>(panel, slot, x, sums);
                        }
                    }
                }
                for (all, out) in all.into_iter().zip(out) {
                    store(all, out);
                }
            }
        }
    };
}

products_for!(plain, "neon");
products_for!(dotprod, "neon,dotprod");

/// A run of groups of a tile, with its scales.
struct Run<'a> {
    weights: &'a ScaledWeights<'a>,
    tile: usize,
    groups: Range<usize>,
    p3: &'a [u8],
    p4: &'a [u8],
    panel: &'a ScalePanel,
}

/// Adds the minima of a group to the sums of 16 rows.
#[inline]
#[target_feature(enable = "neon")]
fn add_minima<const SUBS: usize>(
    panel: &ScalePanel,
    slot: usize,
    x: &QuantizedGroup,
    sums: &mut Floats,
) {
    let all = -(x.correction >> 7);
    let sums_of_x = if SUBS == 1 {
        [all; 2]
    } else {
        // SAFETY: the load reads the first half of 32 activations.
        let first = i32::from(vaddlvq_s8(unsafe { vld1q_s8(x.values.as_ptr()) }));
        [first, all - first]
    };
    for (sub, sum_of_x) in sums_of_x.into_iter().enumerate().take(SUBS) {
        let x_sum = x.scale * sum_of_x as f32;
        for (quarter, sum) in sums.iter_mut().enumerate() {
            *sum = vfmaq_n_f32(*sum, part_of(&panel.minima[slot + sub], quarter), x_sum);
        }
    }
}

/// Mapping from codes to values. Of five to eight bits, both parts of a value are computed modulo 2^8, since it is int8.
struct Codes {
    /// Values by the leading bits, up to level 4.
    table: int8x16_t,
    stride: uint8x16_t,
    /// Minus the zero of the values.
    offset: uint8x16_t,
}

impl Codes {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(weights: &ScaledWeights) -> Self {
        let table = weights.table;
        // SAFETY: the load reads 16 of 256 values.
        let values = unsafe { vld1q_s8(table.values.as_ptr()) };
        let stride = vdupq_n_u8(table.unsigned.stride as u8);
        Self { table: values, stride, offset: vdupq_n_u8((-table.unsigned.zero) as u8) }
    }

    /// Returns the values of four chunks.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn values<const PLANES: u8, const LAST: u8>(&self, part: &Quarter) -> [int8x16_t; 4] {
        // SAFETY: the caller's group is inside the planes.
        unsafe {
            if LAST == 0 {
                return part.values::<PLANES>(self.table);
            }
            let codes = match LAST {
                1 => part.bit_of_p6(),
                2 => part.digits_of_p6(),
                _ => part.last_nibbles(),
            };
            let mut values = [self.table; 4];
            for (chunk, first) in part.leading::<PLANES>().into_iter().enumerate() {
                // Inserted bits replace what is above the last ones.
                let code = match LAST {
                    1 => vsliq_n_u8::<1>(codes[chunk], first),
                    2 => vsliq_n_u8::<2>(codes[chunk], first),
                    _ => vsliq_n_u8::<4>(codes[chunk], first),
                };
                values[chunk] = vreinterpretq_s8_u8(vmlaq_u8(self.offset, code, self.stride));
            }
            values
        }
    }
}

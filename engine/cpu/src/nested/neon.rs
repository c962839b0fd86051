//! Kernels for NEON, with `sdot` if the processor has it.
//!
//! A 128-bit vector holds four columns of four rows, a quarter of a tile. Levels 2 to 4 look values up by
//! `tbl`; levels 6 and 8 look up two digits of base 128 in tables of 64 entries. Four chunks of columns are decoded in
//! registers, and multiplied with up to four rows of activations at once.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;

use super::super::planes::MiddlePlanes;
use super::super::planes::leading::{MERGED, P3, SPLIT, TWO};
use super::super::planes::neon::{self, Floats, Quarter, middle_planes, parts, store};
use super::super::rows::QuantizedGroup;
use super::{DecodeTables, NestedWeights, QuantizedRows, RowList, TileValues};

/// Number of activation rows that share decoded values.
const BLOCK: usize = 4;

/// First bit of the exponent, from which a step's octave is subtracted.
const OCTAVE: i32 = 23;

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
                            [a] => of_level(weights, tile, x, &[a], out),
                            [a, b] => of_level(weights, tile, x, &[a, b], out),
                            [a, b, c] => {
                                let (two, one) = out.split_at_mut(2);
                                of_level(weights, tile, x, &[a, b], two);
                                of_level(weights, tile, x, &[c], one);
                            }
                            [a, b, c, d, ..] => of_level(weights, tile, x, &[a, b, c, d], out),
                            [] => {}
                        }
                    }
                }
            }

            #[target_feature(enable = $features)]
            unsafe fn of_level<const T: usize>(
                weights: &NestedWeights,
                tile: usize,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                let is_split = matches!(weights.planes.middle, MiddlePlanes::Split(..));
                let last = weights.level.bits().saturating_sub(4);
                let product = match (last, weights.planes.middle) {
                    (4, _) if is_split => product::<SPLIT, 4, T>,
                    (4, _) => product::<MERGED, 4, T>,
                    (2, _) if is_split => product::<SPLIT, 2, T>,
                    (2, _) => product::<MERGED, 2, T>,
                    (_, MiddlePlanes::None) => product::<TWO, 0, T>,
                    (_, MiddlePlanes::P3(_)) => product::<P3, 0, T>,
                    (_, MiddlePlanes::Split(..)) => product::<SPLIT, 0, T>,
                    (_, MiddlePlanes::Merged(_)) => product::<MERGED, 0, T>,
                };
                // SAFETY: guaranteed by the caller.
                unsafe { product(weights, tile, x, rows, out) }
            }

            /// Computes one tile for `T` rows. `PLANES` are the leading planes, and `LAST` is the number of bits in P6
            /// and P8.
            #[target_feature(enable = $features)]
            unsafe fn product<const PLANES: u8, const LAST: u8, const T: usize>(
                weights: &NestedWeights,
                tile: usize,
                x: &QuantizedRows,
                rows: &[u32; T],
                out: &mut [TileValues],
            ) {
                let x = rows.map(|row| x.row(row as usize).as_ptr());
                let units = parts(&weights.row_units(tile));
                let digits = Digits::new(weights.decode);
                // SAFETY: the table has 16 bytes.
                let table = unsafe { vld1q_s8(weights.nibble_table(tile).as_ptr()) };
                let [p3, p4] = middle_planes(&weights.planes);
                let mut all = [[vdupq_n_f32(0.0); 4]; T];
                for group in 0..weights.groups {
                    let cell = tile * weights.groups + group;
                    // SAFETY: `group` is below the groups of the weights and of the rows of `x`.
                    unsafe {
                        let scales = scales(weights, cell, units);
                        let x = x.map(|x| &*x.add(group));
                        for quarter in 0..4 {
                            let (mut high, mut low) = ([sums::zero(); T], [sums::zero(); T]);
                            for vector in 0..2 {
                                let planes = &weights.planes;
                                let part = Quarter { planes, p3, p4, cell, quarter, vector };
                                if LAST == 0 {
                                    let values = part.values::<PLANES>(table);
                                    add(&mut high, &values, &x, vector);
                                    continue;
                                }
                                let indices = indices::<PLANES, LAST>(&part);
                                let values = lookup::<LAST>(&digits.high, &indices);
                                add(&mut high, &values, &x, vector);
                                let values = lookup::<LAST>(&digits.low, &indices);
                                add(&mut low, &values, &x, vector);
                            }
                            for t in 0..T {
                                let mut dots = sums::rows(high[t]);
                                if LAST != 0 {
                                    dots = vaddq_s32(vshlq_n_s32::<7>(dots), sums::rows(low[t]));
                                }
                                let scale = vmulq_f32(vdupq_n_f32(x[t].scale), scales[quarter]);
                                let dots = vcvtq_f32_s32(dots);
                                all[t][quarter] = vfmaq_f32(all[t][quarter], dots, scale);
                            }
                        }
                    }
                }
                for (sums, out) in all.into_iter().zip(out) {
                    store(sums, out);
                }
            }

            /// Adds the products of four chunks to the sums of each row.
            #[inline]
            #[target_feature(enable = $features)]
            fn add<const T: usize>(
                sums: &mut [sums::Sums; T],
                values: &[int8x16_t; 4],
                x: &[&QuantizedGroup; T],
                vector: usize,
            ) {
                for (sums, x) in sums.iter_mut().zip(x) {
                    // SAFETY: there are 32 activations.
                    let x = unsafe { vld1q_s8(x.values[16 * vector..].as_ptr()) };
                    sums::add(sums, values, x);
                }
            }
        }
    };
}

products_for!(plain, "neon");
products_for!(dotprod, "neon,dotprod");

/// Returns the weight scales of the four quarters of a tile in one group. A step's factor is one of the first
/// eight, with its exponent lowered once for each multiple of eight steps.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn scales(weights: &NestedWeights, cell: usize, units: Floats) -> Floats {
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

/// Tables of two digits of base 128 at levels 6 and 8, by index.
struct Digits {
    high: DigitTable,
    low: DigitTable,
}

/// Signed digits for the codes' leading six bits, and at level 8 for each of their last two.
type DigitTable = [uint8x16x4_t; 4];

impl Digits {
    #[inline]
    #[target_feature(enable = "neon")]
    fn new(tables: &DecodeTables) -> Self {
        Self { high: signed(&tables.high), low: signed(&tables.low) }
    }
}

/// Returns the indices of four chunks' digits.
#[inline]
#[target_feature(enable = "neon")]
unsafe fn indices<const PLANES: u8, const LAST: u8>(part: &Quarter) -> [uint8x16_t; 4] {
    // SAFETY: the caller's group is inside the planes.
    let (mut codes, p6) = unsafe { (part.leading::<PLANES>(), part.digits_of_p6()) };
    for (code, digit) in codes.iter_mut().zip(p6) {
        *code = vsliq_n_u8::<2>(vandq_u8(digit, vdupq_n_u8(3)), *code);
    }
    if LAST == 4 {
        // SAFETY: as above.
        let p8 = unsafe { part.digits_of_p8() };
        for (code, digit) in codes.iter_mut().zip(p8) {
            *code = vsliq_n_u8::<6>(*code, digit);
        }
    }
    codes
}

/// Looks up digits: among the first 64 at level 6, otherwise among all 256.
#[inline]
#[target_feature(enable = "neon")]
fn lookup<const LAST: u8>(table: &DigitTable, indices: &[uint8x16_t; 4]) -> [int8x16_t; 4] {
    let mut out = [vdupq_n_s8(0); 4];
    for (out, index) in out.iter_mut().zip(indices) {
        let mut found = vqtbl4q_u8(table[0], *index);
        if LAST == 4 {
            for (part, table) in table.iter().enumerate().skip(1) {
                let index = vsubq_u8(*index, vdupq_n_u8(64 * part as u8));
                found = vqtbx4q_u8(found, *table, index);
            }
        }
        *out = vreinterpretq_s8_u8(found);
    }
    out
}

/// Subtracts the offset of 128 with which tables store digits.
#[inline]
#[target_feature(enable = "neon")]
fn signed(table: &[u8; 256]) -> DigitTable {
    let mut signed = [uint8x16x4_t(vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)); 4];
    for (out, part) in signed.iter_mut().zip(table.as_chunks::<64>().0) {
        let part = part.map(|entry| entry ^ 128);
        // SAFETY: a part has 64 bytes.
        *out = unsafe { vld1q_u8_x4(part.as_ptr()) };
    }
    signed
}

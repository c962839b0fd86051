//! Digits of codes for NEON, four chunks of columns of a quarter of a tile at a time, and sums of their products.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;

use super::leading::{MERGED, SPLIT, TWO};
use super::tables::{EVEN_BITS, LOWER_DIGITS, UPPER_DIGITS};
use super::{CodePlanes, MiddlePlanes};
use crate::nested::TileValues;

/// Floats of 16 rows.
pub type Floats = [float32x4_t; 4];

/// A quarter of a tile in one group, and half of its chunks.
#[derive(Clone, Copy)]
pub struct Quarter<'a> {
    pub planes: &'a CodePlanes<'a>,
    /// Plane P3, or P3 and P4 merged, as far as the level reads them.
    pub p3: &'a [u8],
    pub p4: &'a [u8],
    /// Index of the group in the matrix.
    pub cell: usize,
    pub quarter: usize,
    /// 0 for chunks 0 to 3, 1 for chunks 4 to 7.
    pub vector: usize,
}

/// Returns planes P3 and P4, or both merged as the first one.
pub fn middle_planes<'a>(planes: &CodePlanes<'a>) -> [&'a [u8]; 2] {
    match planes.middle {
        MiddlePlanes::None => [&[], &[]],
        MiddlePlanes::P3(plane) | MiddlePlanes::Merged(plane) => [plane, &[]],
        MiddlePlanes::Split(p3, p4) => [p3, p4],
    }
}

impl Quarter<'_> {
    /// Loads a vector of a plane of 2-bit digits.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn digits(&self, plane: &[u8]) -> uint8x16_t {
        let index = self.cell * 2 + self.vector;
        // SAFETY: the caller's group is inside the plane.
        unsafe { vld1q_u8(plane.as_ptr().add(index * 64 + self.quarter * 16)) }
    }

    /// Returns the bits of a plane of one bit for each code: four in each byte.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn bits(&self, plane: &[u8]) -> uint8x16_t {
        // SAFETY: as above.
        let bits = unsafe { vld1q_u8(plane.as_ptr().add(self.cell * 64 + self.quarter * 16)) };
        match self.vector {
            0 => vandq_u8(bits, vdupq_n_u8(15)),
            _ => vshrq_n_u8::<4>(bits),
        }
    }

    /// Returns the same bits as even bits of each byte.
    #[inline]
    #[target_feature(enable = "neon")]
    unsafe fn spread_bits(&self, plane: &[u8]) -> uint8x16_t {
        // SAFETY: the caller's group is inside the plane, and the table has 16 bytes.
        unsafe { vqtbl1q_u8(vld1q_u8(EVEN_BITS.as_ptr()), self.bits(plane)) }
    }

    /// Returns the leading four bits of codes. P4 counts as 0 if the level does not need it.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn leading<const PLANES: u8>(&self) -> [uint8x16_t; 4] {
        // SAFETY: the caller's group is inside the planes.
        unsafe {
            let lower = match PLANES {
                MERGED => self.digits(self.p3),
                SPLIT => {
                    let upper = vshlq_n_u8::<1>(self.spread_bits(self.p3));
                    vorrq_u8(upper, self.spread_bits(self.p4))
                }
                _ => vshlq_n_u8::<1>(self.spread_bits(self.p3)),
            };
            nibbles(self.digits(self.planes.p2), lower)
        }
    }

    /// Looks up the table entries for the leading digits of codes: two bits at level 2, otherwise four.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn values<const PLANES: u8>(&self, table: int8x16_t) -> [int8x16_t; 4] {
        // SAFETY: as above.
        unsafe {
            if PLANES == TWO {
                return lookup_two_bits(table, self.digits(self.planes.p2));
            }
            lookup(table, self.leading::<PLANES>())
        }
    }

    /// Returns the bits of P6 where it has one for each code.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn bit_of_p6(&self) -> [uint8x16_t; 4] {
        // SAFETY: as above.
        let bits = unsafe { self.bits(self.planes.p6) };
        [bits, vshrq_n_u8::<1>(bits), vshrq_n_u8::<2>(bits), vshrq_n_u8::<3>(bits)]
    }

    /// Returns the digits of P6, with unspecified higher bits.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn digits_of_p6(&self) -> [uint8x16_t; 4] {
        // SAFETY: as above.
        shifted(unsafe { self.digits(self.planes.p6) })
    }

    /// Returns the digits of P8, with unspecified higher bits.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn digits_of_p8(&self) -> [uint8x16_t; 4] {
        // SAFETY: as above.
        shifted(unsafe { self.digits(self.planes.p8) })
    }

    /// Returns the digits of P6 above those of P8.
    #[inline]
    #[target_feature(enable = "neon")]
    pub unsafe fn last_nibbles(&self) -> [uint8x16_t; 4] {
        // SAFETY: as above.
        unsafe { nibbles(self.digits(self.planes.p6), self.digits(self.planes.p8)) }
    }
}

/// Returns four digits of bytes in their low two bits.
#[inline]
#[target_feature(enable = "neon")]
fn shifted(digits: uint8x16_t) -> [uint8x16_t; 4] {
    [digits, vshrq_n_u8::<2>(digits), vshrq_n_u8::<4>(digits), vshrq_n_u8::<6>(digits)]
}

/// Combines two digits to nibbles.
#[inline]
#[target_feature(enable = "neon")]
fn nibbles(upper: uint8x16_t, lower: uint8x16_t) -> [uint8x16_t; 4] {
    let (places, low) = (vdupq_n_u8(0x33), vdupq_n_u8(15));
    // Chunks 0 and 2, and chunks 1 and 3, in the low and the high half of each byte.
    let even = vbslq_u8(places, lower, vshlq_n_u8::<2>(upper));
    let odd = vbslq_u8(places, vshrq_n_u8::<2>(lower), upper);
    [vandq_u8(even, low), vandq_u8(odd, low), vshrq_n_u8::<4>(even), vshrq_n_u8::<4>(odd)]
}

/// Looks up the bytes of four vectors of indices.
#[inline]
#[target_feature(enable = "neon")]
fn lookup(table: int8x16_t, indices: [uint8x16_t; 4]) -> [int8x16_t; 4] {
    let [a, b, c, d] = indices;
    [vqtbl1q_s8(table, a), vqtbl1q_s8(table, b), vqtbl1q_s8(table, c), vqtbl1q_s8(table, d)]
}

/// Looks up the table entries for four 2-bit digits of bytes. Two digits at a time are an index of two tables: one has
/// the entry for the lower digit, the other that for the upper one.
#[inline]
#[target_feature(enable = "neon")]
fn lookup_two_bits(table: int8x16_t, digits: uint8x16_t) -> [int8x16_t; 4] {
    // SAFETY: both tables have 16 bytes.
    let [lower, upper] = unsafe {
        [
            vqtbl1q_s8(table, vld1q_u8(LOWER_DIGITS.as_ptr())),
            vqtbl1q_s8(table, vld1q_u8(UPPER_DIGITS.as_ptr())),
        ]
    };
    let (first, second) = (vandq_u8(digits, vdupq_n_u8(15)), vshrq_n_u8::<4>(digits));
    [
        vqtbl1q_s8(lower, first),
        vqtbl1q_s8(upper, first),
        vqtbl1q_s8(lower, second),
        vqtbl1q_s8(upper, second),
    ]
}

/// Loads the floats of a quarter of a tile.
#[inline]
#[target_feature(enable = "neon")]
pub fn part_of(floats: &TileValues, quarter: usize) -> float32x4_t {
    // SAFETY: four floats remain.
    unsafe { vld1q_f32(floats[4 * quarter..].as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
pub fn parts(floats: &TileValues) -> Floats {
    [part_of(floats, 0), part_of(floats, 1), part_of(floats, 2), part_of(floats, 3)]
}

#[inline]
#[target_feature(enable = "neon")]
pub fn store(floats: Floats, out: &mut TileValues) {
    for (part, out) in floats.into_iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: `out` has four floats.
        unsafe { vst1q_f32(out.as_mut_ptr(), part) };
    }
}

/// Sums of products of int8 without dot products. Products of two chunks fit in 16 bits.
pub mod plain {
    use super::*;

    /// Sums of pairs of columns: of two rows each.
    pub type Sums = [int32x4_t; 2];

    #[inline]
    #[target_feature(enable = "neon")]
    pub fn zero() -> Sums {
        [vdupq_n_s32(0); 2]
    }

    /// Adds the products of four chunks and their 16 activations.
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn add(sums: &mut Sums, values: &[int8x16_t; 4], x: int8x16_t) {
        let x = vreinterpretq_s32_s8(x);
        let x = [
            vget_low_s8(vreinterpretq_s8_s32(vdupq_laneq_s32::<0>(x))),
            vget_low_s8(vreinterpretq_s8_s32(vdupq_laneq_s32::<1>(x))),
            vget_low_s8(vreinterpretq_s8_s32(vdupq_laneq_s32::<2>(x))),
            vget_low_s8(vreinterpretq_s8_s32(vdupq_laneq_s32::<3>(x))),
        ];
        for first in [0, 2] {
            let [a, b] = [values[first], values[first + 1]];
            let low = vmull_s8(vget_low_s8(a), x[first]);
            let low = vmlal_s8(low, vget_low_s8(b), x[first + 1]);
            let high = vmull_s8(vget_high_s8(a), x[first]);
            let high = vmlal_s8(high, vget_high_s8(b), x[first + 1]);
            *sums = [vpadalq_s16(sums[0], low), vpadalq_s16(sums[1], high)];
        }
    }

    /// Returns the sums of four rows.
    #[inline]
    #[target_feature(enable = "neon")]
    pub fn rows(sums: Sums) -> int32x4_t {
        vpaddq_s32(sums[0], sums[1])
    }
}

/// Sums of products of int8 by `sdot`, whose intrinsics are not stable.
pub mod dotprod {
    use super::*;

    /// Sums of four rows.
    pub type Sums = int32x4_t;

    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub fn zero() -> Sums {
        vdupq_n_s32(0)
    }

    /// Adds the products of four chunks and their 16 activations.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub fn add(sums: &mut Sums, values: &[int8x16_t; 4], x: int8x16_t) {
        *sums = dot::<0>(*sums, values[0], x);
        *sums = dot::<1>(*sums, values[1], x);
        *sums = dot::<2>(*sums, values[2], x);
        *sums = dot::<3>(*sums, values[3], x);
    }

    /// Adds the products of a chunk and lane `LANE` of the activations.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    fn dot<const LANE: u32>(mut sum: int32x4_t, values: int8x16_t, x: int8x16_t) -> int32x4_t {
        // SAFETY: the instruction only accesses registers.
        unsafe {
            std::arch::asm!(
                "sdot {sum:v}.4s, {values:v}.16b, {x:v}.4b[{lane}]",
                sum = inout(vreg) sum,
                values = in(vreg) values,
                x = in(vreg) x,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }

    /// Returns the sums of four rows.
    #[inline]
    #[target_feature(enable = "neon,dotprod")]
    pub fn rows(sums: Sums) -> int32x4_t {
        sums
    }
}

//! Digits of codes for NEON, a quarter of a tile at a time.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::aarch64::*;

use super::{CodePlanes, MiddlePlanes};

/// Values of one group, by chunk of four columns and quarter of the tile.
pub type QuarterTiles = [[int8x16_t; 4]; 8];

/// Adds the products of four values and activations to `sum` in each lane.
#[inline]
#[target_feature(enable = "neon")]
pub fn multiply_add(sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    let first = vpaddlq_s16(vmull_s8(vget_low_s8(weights), vget_low_s8(x)));
    let last = vpaddlq_s16(vmull_high_s8(weights, x));
    vaddq_s32(sum, vpaddq_s32(first, last))
}

/// Does the same as [`multiply_add`] with one instruction, whose intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
pub fn dot(sum: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sum = sum;
    // SAFETY: the instruction only accesses registers.
    unsafe {
        std::arch::asm!(
            "sdot {sum:v}.4s, {weights:v}.16b, {x:v}.16b",
            sum = inout(vreg) sum,
            weights = in(vreg) weights,
            x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sum
}

/// Loads vector `quarter` of the 64-byte vector `index` of a plane.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn load(plane: &[u8], index: usize, quarter: usize) -> uint8x16_t {
    // SAFETY: the caller's `index` is inside the plane.
    unsafe { vld1q_u8(plane.as_ptr().add(index * 64 + quarter * 16)) }
}

#[inline]
#[target_feature(enable = "neon")]
pub fn shift_right(bytes: uint8x16_t, bits: usize) -> uint8x16_t {
    vshlq_u8(bytes, vdupq_n_s8(-(bits as i8)))
}

/// Returns a 2-bit digit of each byte, with unspecified higher bits.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn digits(plane: &[u8], cell: usize, chunk: usize, quarter: usize) -> uint8x16_t {
    // SAFETY: the caller's `cell` is inside the plane.
    let bytes = unsafe { load(plane, cell * 2 + chunk / 4, quarter) };
    shift_right(bytes, 2 * (chunk % 4))
}

/// Returns the leading four bits of 16 codes. P4 counts as 0 if the level does not need it.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn nibbles(
    planes: &CodePlanes,
    cell: usize,
    chunk: usize,
    quarter: usize,
) -> uint8x16_t {
    let bit = vdupq_n_u8(1);
    // SAFETY: the caller's `cell` is inside the planes.
    unsafe {
        let upper = digits(planes.p2, cell, chunk, quarter);
        let lower = match planes.middle {
            MiddlePlanes::None => vdupq_n_u8(0),
            MiddlePlanes::P3(p3) => {
                vshlq_n_u8::<1>(vandq_u8(shift_right(load(p3, cell, quarter), chunk), bit))
            }
            MiddlePlanes::Split(p3, p4) => {
                let p3 = shift_right(load(p3, cell, quarter), chunk);
                let p4 = vandq_u8(shift_right(load(p4, cell, quarter), chunk), bit);
                vsliq_n_u8::<1>(p4, p3)
            }
            MiddlePlanes::Merged(merged) => digits(merged, cell, chunk, quarter),
        };
        vandq_u8(vsliq_n_u8::<2>(lower, upper), vdupq_n_u8(15))
    }
}

/// Looks up the table entries for the leading digits of codes: two bits at level 2, otherwise four.
#[inline]
#[target_feature(enable = "neon")]
pub unsafe fn lookup_nibbles(
    planes: &CodePlanes,
    level_2: bool,
    cell: usize,
    table: int8x16_t,
    out: &mut QuarterTiles,
) {
    for (chunk, out) in out.iter_mut().enumerate() {
        for (quarter, out) in out.iter_mut().enumerate() {
            // SAFETY: the caller's `cell` is inside the planes.
            let index = unsafe {
                if level_2 {
                    vandq_u8(digits(planes.p2, cell, chunk, quarter), vdupq_n_u8(3))
                } else {
                    nibbles(planes, cell, chunk, quarter)
                }
            };
            *out = vqtbl1q_s8(table, index);
        }
    }
}

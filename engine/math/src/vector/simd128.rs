//! Vectors of WebAssembly's SIMD128, which has no fused multiplication.
#![expect(unsafe_code, reason = "vector loads and stores, as for `Vector`")]

use std::arch::wasm32::*;

use half::{bf16, f16};

use super::Vector;
use crate::math::LANES;

/// Four vectors of SIMD128.
#[derive(Clone, Copy)]
pub struct Simd128([v128; 4]);

/// Computes `a * b + sum` in four lanes, rounded once, as [`crate::fused`] describes.
#[inline(always)]
pub fn fma(a: v128, b: v128, sum: v128) -> v128 {
    let upper = |v| i64x2_shuffle::<1, 1>(v, v);
    let low = fma_lower(a, b, sum);
    let high = fma_lower(upper(a), upper(b), upper(sum));
    i64x2_shuffle::<0, 2>(low, high)
}

/// Computes the lower two lanes.
#[inline(always)]
fn fma_lower(a: v128, b: v128, sum: v128) -> v128 {
    let [a, b, sum] = [a, b, sum].map(|lanes| f64x2_promote_low_f32x4(lanes));
    let product = f64x2_mul(a, b);
    let rounded = f64x2_add(product, sum);
    let of_sum = f64x2_sub(rounded, product);
    let of_product = f64x2_sub(rounded, of_sum);
    let error = f64x2_add(f64x2_sub(product, of_product), f64x2_sub(sum, of_sum));
    let is_inexact = v128_and(f64x2_ne(error, f64x2_splat(0.0)), f64x2_eq(error, error));
    let is_even = i64x2_eq(v128_and(rounded, i64x2_splat(1)), i64x2_splat(0));
    let step = v128_or(i64x2_shr(v128_xor(rounded, error), 63), i64x2_splat(1));
    let odd = i64x2_add(rounded, v128_and(step, v128_and(is_inexact, is_even)));
    f32x4_demote_f64x2_zero(odd)
}

/// Converts half-precision floats in the lower 16 bits of each lane, exactly.
///
/// The exponent is corrected by a multiplication, which also turns subnormal halves into normal floats.
#[inline(always)]
fn from_half(bits: v128) -> v128 {
    let magnitude = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
    let sign = u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16);
    let scaled = f32x4_mul(magnitude, f32x4_splat(f32::from_bits((127 + 112) << 23)));
    let is_special = u32x4_ge(magnitude, u32x4_splat(0x0f80_0000));
    let exponent = v128_and(is_special, u32x4_splat(0x7f80_0000));
    v128_or(v128_or(scaled, exponent), sign)
}

/// Loads sixteen numbers of 16 bits and converts them, each in a lane of 32 bits.
///
/// # Safety
/// 32 bytes must be readable.
#[inline(always)]
unsafe fn load_wide(from: *const u16, convert: impl Fn(v128) -> v128) -> Simd128 {
    // SAFETY: guaranteed by the caller.
    let (low, high) = unsafe { (v128_load(from.cast()), v128_load(from.add(8).cast())) };
    Simd128([
        convert(u32x4_extend_low_u16x8(low)),
        convert(u32x4_extend_high_u16x8(low)),
        convert(u32x4_extend_low_u16x8(high)),
        convert(u32x4_extend_high_u16x8(high)),
    ])
}

impl Vector for Simd128 {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(std::array::from_fn(|i| unsafe { v128_load(from.add(4 * i).cast()) }))
    }

    #[inline(always)]
    unsafe fn load_half(from: *const f16) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { load_wide(from.cast(), from_half) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { load_wide(from.cast(), |bits| u32x4_shl(bits, 16)) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        let bytes = unsafe { v128_load(from.cast()) };
        let (low, high) = (i16x8_extend_low_i8x16(bytes), i16x8_extend_high_i8x16(bytes));
        let (low, high) = (
            [i32x4_extend_low_i16x8(low), i32x4_extend_high_i16x8(low)],
            [i32x4_extend_low_i16x8(high), i32x4_extend_high_i16x8(high)],
        );
        Self([low[0], low[1], high[0], high[1]].map(|numbers| f32x4_convert_i32x4(numbers)))
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([f32x4_splat(value); 4])
    }

    #[inline(always)]
    unsafe fn fma(self, other: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|i| fma(self.0[i], other.0[i], sum.0[i])))
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| f32x4_mul(self.0[i], other.0[i])))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| f32x4_pmax(other.0[i], self.0[i])))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        for (i, part) in self.0.into_iter().enumerate() {
            // SAFETY: guaranteed by the caller.
            unsafe { v128_store(to.add(4 * i).cast(), part) };
        }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut f16) {
        let mut lanes = [0.0f32; LANES];
        // SAFETY: the array has sixteen floats; the rest is guaranteed by the caller.
        unsafe {
            self.store(lanes.as_mut_ptr());
            to.cast::<[f16; LANES]>().write_unaligned(lanes.map(f16::from_f32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fused::tests::{each_case, expect_fused};

    #[test]
    fn a_product_with_a_sum_is_rounded_once() {
        each_case(|a, b, sum| {
            let found = fma(f32x4(0.0, a, 0.0, a), f32x4_splat(b), f32x4(0.0, 0.0, sum, sum));
            expect_fused(f32x4_extract_lane::<0>(found), 0.0, b, 0.0);
            expect_fused(f32x4_extract_lane::<1>(found), a, b, 0.0);
            expect_fused(f32x4_extract_lane::<2>(found), 0.0, b, sum);
            expect_fused(f32x4_extract_lane::<3>(found), a, b, sum);
        });
    }
}

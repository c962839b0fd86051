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
///
/// A sum of 53 bits is on the same side of the middle of two floats as the exact one, unless it is the middle itself.
/// Rounding it again therefore gives the nearest float, except for such sums and for those below the normal floats.
#[inline(always)]
pub fn fma(a: v128, b: v128, sum: v128) -> v128 {
    let low = double_sum(a, b, sum);
    let high = double_sum(upper(a), upper(b), upper(sum));
    if v128_any_true(v128_or(may_be_wrong(low), may_be_wrong(high))) {
        return fma_by_odd(a, b, sum);
    }
    i64x2_shuffle::<0, 2>(f32x4_demote_f64x2_zero(low), f32x4_demote_f64x2_zero(high))
}

#[inline(always)]
fn upper(lanes: v128) -> v128 {
    i64x2_shuffle::<1, 1>(lanes, lanes)
}

/// Computes the lower two lanes in double precision. The product is exact.
#[inline(always)]
fn double_sum(a: v128, b: v128, sum: v128) -> v128 {
    let [a, b, sum] = [a, b, sum].map(|lanes| f64x2_promote_low_f32x4(lanes));
    f64x2_add(f64x2_mul(a, b), sum)
}

/// Returns lanes with bits set where another rounding may be wrong.
#[inline(always)]
fn may_be_wrong(sums: v128) -> v128 {
    let below = v128_and(sums, i64x2_splat((1 << 29) - 1));
    let is_middle = i64x2_eq(below, i64x2_splat(1 << 28));
    let is_small = f64x2_lt(f64x2_abs(sums), f64x2_splat(f64::from(f32::MIN_POSITIVE)));
    v128_or(is_middle, is_small)
}

/// Computes all lanes with sums that are rounded to odd, so that another rounding gives the nearest float.
#[cold]
#[inline(never)]
fn fma_by_odd(a: v128, b: v128, sum: v128) -> v128 {
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
            // The other lanes alone are computed without rounding to odd.
            for lane in 0..4 {
                let mut lanes = [[3.0; 4], [5.0; 4], [7.0; 4]];
                for (lanes, value) in lanes.iter_mut().zip([a, b, sum]) {
                    lanes[lane] = value;
                }
                let [a, b, sums] = lanes.map(|[a, b, c, d]| f32x4(a, b, c, d));
                let mut found = [0.0f32; 4];
                // SAFETY: the array has four floats.
                unsafe { v128_store(found.as_mut_ptr().cast(), fma(a, b, sums)) };
                for ((found, a), (b, sum)) in
                    found.into_iter().zip(lanes[0]).zip(lanes[1].into_iter().zip(lanes[2]))
                {
                    expect_fused(found, a, b, sum);
                }
            }
        });
    }
}

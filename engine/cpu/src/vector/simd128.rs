//! Vectors of WebAssembly's SIMD128, which has no fused multiplication.

use std::arch::wasm32::*;

use half::{bf16, f16};

use super::Vector;
use crate::math::{Element, LANES};

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

impl Simd128 {
    #[inline(always)]
    fn of(lanes: [f32; LANES]) -> Self {
        let [a, b, c, d] =
            [0, 4, 8, 12].map(|i| f32x4(lanes[i], lanes[i + 1], lanes[i + 2], lanes[i + 3]));
        Self([a, b, c, d])
    }
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
        Self::of(unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(Element::to_f32))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: guaranteed by the caller.
        Self::of(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(Element::to_f32))
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
            expect_fused(f32x4_extract_lane::<0>(found), (0.0, b, 0.0));
            expect_fused(f32x4_extract_lane::<1>(found), (a, b, 0.0));
            expect_fused(f32x4_extract_lane::<2>(found), (0.0, b, sum));
            expect_fused(f32x4_extract_lane::<3>(found), (a, b, sum));
        });
    }
}

//! Vectors of sixteen floats.
#![expect(unsafe_code, reason = "vector loads and stores at addresses that callers have checked")]

use half::{bf16, f16};

use super::math::{self, Element, LANES};
use crate::fused::Fused;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub mod simd128;
#[cfg(target_arch = "x86_64")]
pub mod x86;

/// A vector of sixteen floats.
pub trait Vector: Copy {
    /// Presence of 32 registers of a vector each, so that a product has blocks of sixteen sums.
    const IS_WIDE: bool = false;

    /// Does the work in a function of its own that is compiled for the instruction set. The compiler takes much longer
    /// for one function that contains everything (docs/perf/066).
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    #[inline(never)]
    unsafe fn apart<W: VectorWork>(work: W) {
        work.run::<Self>();
    }

    /// Loads sixteen floats.
    ///
    /// # Safety
    /// The memory must be readable, and the machine must have the instruction set.
    unsafe fn load(from: *const f32) -> Self;

    /// Loads sixteen half-precision floats and converts them exactly.
    ///
    /// # Safety
    /// Same requirements as [`Self::load`].
    unsafe fn load_half(from: *const f16) -> Self;

    /// Loads sixteen floats of bfloat16 and converts them exactly.
    ///
    /// # Safety
    /// Same requirements as [`Self::load`].
    unsafe fn load_bf16(from: *const bf16) -> Self;

    /// Loads sixteen integers and converts them.
    ///
    /// # Safety
    /// Same requirements as [`Self::load`].
    unsafe fn load_i8(from: *const i8) -> Self;

    /// Fetches a cache line to the second-level cache if the machine can be asked to. Any address is allowed.
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    #[inline(always)]
    unsafe fn prefetch(_line: *const u8) {}

    /// Returns the same float in all lanes.
    ///
    /// # Safety
    /// The machine must have the instruction set.
    unsafe fn splat(value: f32) -> Self;

    /// Computes `self * other + sum`, fused.
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    unsafe fn fma(self, other: Self, sum: Self) -> Self;

    /// Computes `self * other`.
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    unsafe fn mul(self, other: Self) -> Self;

    /// Returns `self` in lanes in which it is greater than `other`, and `other` elsewhere.
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    unsafe fn max(self, other: Self) -> Self;

    /// Adds the lanes of each vector like [`math::tree_sum`].
    ///
    /// # Safety
    /// Same requirements as [`Self::splat`].
    #[inline(always)]
    unsafe fn tree_sums(sums: [Self; 4]) -> [f32; 4] {
        let mut out = [0.0; 4];
        for index in 0..4 {
            let mut lanes = [0.0; LANES];
            // SAFETY: the array has sixteen floats; the rest is guaranteed by the caller.
            unsafe { sums[index].store(lanes.as_mut_ptr()) };
            out[index] = math::tree_sum(lanes);
        }
        out
    }

    /// Stores sixteen floats.
    ///
    /// # Safety
    /// The memory must be writable, and the machine must have the instruction set.
    unsafe fn store(self, to: *mut f32);

    /// Stores sixteen floats with a non-temporal store if possible, which avoids reading the cache line
    /// first.
    ///
    /// # Safety
    /// Same requirements as [`Self::store`]. A fence is required before another thread reads the floats.
    #[inline(always)]
    unsafe fn store_non_temporal(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.store(to) }
    }

    /// Stores sixteen floats in half precision, rounded half to even.
    ///
    /// # Safety
    /// Same requirements as [`Self::store`].
    unsafe fn store_half(self, to: *mut f16);
}

/// Work that [`Vector::apart`] does.
pub trait VectorWork {
    /// Does the work. Implementations are inlined: their caller alone is compiled for the instruction set.
    fn run<V: Vector>(self);
}

/// Element type of weights, and of the right operand of a [`product`](crate::product::product).
pub trait Right: Element {
    /// Returns the elements if they are floats.
    #[inline(always)]
    fn floats(_elements: &[Self]) -> Option<&[f32]> {
        None
    }

    /// Loads sixteen elements as floats.
    ///
    /// # Safety
    /// Same requirements as [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

impl Right for f32 {
    #[inline(always)]
    fn floats(elements: &[Self]) -> Option<&[f32]> {
        Some(elements)
    }

    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load(from) }
    }
}

impl Right for f16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load_half(from) }
    }
}

impl Right for bf16 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load_bf16(from) }
    }
}

impl Element for i8 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
}

impl Right for i8 {
    #[inline(always)]
    unsafe fn load<V: Vector>(from: *const Self) -> V {
        // SAFETY: guaranteed by the caller.
        unsafe { V::load_i8(from) }
    }
}

/// Portable vector: lanes in an array.
#[derive(Clone, Copy)]
pub struct Portable([f32; LANES]);

impl Vector for Portable {
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_half(from: *const f16) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[f16; LANES]>().read_unaligned() }.map(Element::to_f32))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[bf16; LANES]>().read_unaligned() }.map(Element::to_f32))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { from.cast::<[i8; LANES]>().read_unaligned() }.map(Element::to_f32))
    }

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn fma(self, other: Self, sum: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i].fused(other.0[i], sum.0[i])))
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] * other.0[i]))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        Self(std::array::from_fn(|i| larger(self.0[i], other.0[i])))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut f16) {
        // SAFETY: guaranteed by the caller.
        unsafe { to.cast::<[f16; LANES]>().write_unaligned(self.0.map(f16::from_f32)) }
    }
}

/// Rounds floats to half precision, half to even.
#[inline(always)]
pub fn narrow<V: Vector>(from: &[f32], to: &mut [f16]) {
    let to = &mut to[..from.len()];
    let ((from, from_tail), (to, to_tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut());
    for (from, to) in from.iter().zip(to) {
        let to: &mut [f16; LANES] = to;
        // SAFETY: both arrays have sixteen elements.
        unsafe { V::load(from.as_ptr()).store_half(to.as_mut_ptr()) }
    }
    to_tail.iter_mut().zip(from_tail).for_each(|(to, from)| *to = f16::from_f32(*from));
}

//! Vectors of sixteen floats, and the small matrix product that attention uses.
//!
//! `out[q][c] = fma(a[q][k], b[k][c], out[q][c])` for ascending k. Each output has one chain, so that the
//! bits do not depend on how rows and columns are blocked. A block of 4 rows by some vectors stays in
//! registers; with plain loops, the compiler kept it in memory (docs/perf/026).
#![expect(unsafe_code, reason = "vector loads and stores at offsets that `product` has checked")]

use half::{bf16, f16};

use super::math::{self, Element, LANES};
use crate::fused::Fused;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub mod simd128;

/// A vector of sixteen floats.
pub trait Vector: Copy {
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

/// Element type of weights, and of the right operand of [`product`].
pub trait Right: Element {
    /// Loads sixteen elements as floats.
    ///
    /// # Safety
    /// Same requirements as [`Vector::load`].
    unsafe fn load<V: Vector>(from: *const Self) -> V;
}

impl Right for f32 {
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

/// Vectors of x86-64.
#[cfg(target_arch = "x86_64")]
pub mod x86 {
    use std::arch::x86_64::*;

    use super::{Vector, bf16, f16};

    /// One vector of AVX-512.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Vector for Avx512 {
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn load_half(from: *const f16) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
        }

        #[inline(always)]
        unsafe fn load_bf16(from: *const bf16) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
            }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn fma(self, other: Self, sum: Self) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { _mm512_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: guaranteed by the caller.
            Self(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn tree_sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            // SAFETY: guaranteed by the caller.
            unsafe {
                // Adds 8 + 8 lanes: the first half has the sums of `a`, the second of `b`.
                let halves = |a, b| {
                    let low = _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b);
                    _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b))
                };
                let (ab, cd) = (halves(a.0, b.0), halves(c.0, d.0));
                // Adds 4 + 4: one quarter for each vector. Then adds 2 + 2, and 1 + 1.
                let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(ab, cd);
                let sums = _mm512_add_ps(low, _mm512_shuffle_f32x4::<0b11_01_11_01>(ab, cd));
                let sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b01_00_11_10>(sums));
                let sums = _mm512_add_ps(sums, _mm512_permute_ps::<0b10_11_00_01>(sums));
                let firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
                let firsts = _mm512_permutexvar_ps(firsts, sums);
                let mut out = [0.0; 4];
                _mm_storeu_ps(out.as_mut_ptr(), _mm512_castps512_ps128(firsts));
                out
            }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller.
            unsafe { _mm512_storeu_ps(to, self.0) }
        }

        #[inline(always)]
        unsafe fn store_non_temporal(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller; the address is aligned for the streaming store.
            unsafe {
                if to.addr().is_multiple_of(64) {
                    _mm512_stream_ps(to, self.0);
                } else {
                    self.store(to);
                }
            }
        }

        #[inline(always)]
        unsafe fn store_half(self, to: *mut f16) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let halves = _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0);
                _mm256_storeu_si256(to.cast(), halves);
            }
        }
    }

    /// Two vectors of AVX2, with FMA and F16C.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256, __m256);

    impl Vector for Avx2 {
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
        }

        #[inline(always)]
        unsafe fn load_half(from: *const f16) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let half = |at: usize| _mm256_cvtph_ps(_mm_loadu_si128(from.add(at).cast()));
                Self(half(0), half(8))
            }
        }

        #[inline(always)]
        unsafe fn load_bf16(from: *const bf16) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe {
                let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(8).cast()));
                Self(
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
                )
            }
        }

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            // SAFETY: guaranteed by the caller.
            let both = unsafe { _mm256_set1_ps(value) };
            Self(both, both)
        }

        #[inline(always)]
        unsafe fn fma(self, other: Self, sum: Self) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe {
                Self(
                    _mm256_fmadd_ps(self.0, other.0, sum.0),
                    _mm256_fmadd_ps(self.1, other.1, sum.1),
                )
            }
        }

        #[inline(always)]
        unsafe fn mul(self, other: Self) -> Self {
            // SAFETY: guaranteed by the caller.
            unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
        }

        #[inline(always)]
        unsafe fn tree_sums(sums: [Self; 4]) -> [f32; 4] {
            // SAFETY: guaranteed by the caller.
            unsafe {
                // Adds 8 + 8 lanes.
                let [a, b, c, d] = sums;
                let (a, b) = (_mm256_add_ps(a.0, a.1), _mm256_add_ps(b.0, b.1));
                let (c, d) = (_mm256_add_ps(c.0, c.1), _mm256_add_ps(d.0, d.1));
                // Adds 4 + 4: the first half has the sums of `a`, the second of `b`.
                let halves = |a, b| {
                    let low = _mm256_permute2f128_ps::<0x20>(a, b);
                    _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b))
                };
                let (ab, cd) = (halves(a, b), halves(c, d));
                // Adds 2 + 2: a, a, c, c | b, b, d, d. Then adds 1 + 1: a, c, a, c | b, d, b, d.
                let low = _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd);
                let sums = _mm256_add_ps(low, _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd));
                let even = _mm256_shuffle_ps::<0b10_00_10_00>(sums, sums);
                let sums = _mm256_add_ps(even, _mm256_shuffle_ps::<0b11_01_11_01>(sums, sums));
                let (first, second) =
                    (_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
                let mut out = [0.0; 4];
                _mm_storeu_ps(out.as_mut_ptr(), _mm_unpacklo_ps(first, second));
                out
            }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                _mm256_storeu_ps(to, self.0);
                _mm256_storeu_ps(to.add(8), self.1);
            }
        }

        #[inline(always)]
        unsafe fn store_non_temporal(self, to: *mut f32) {
            // SAFETY: guaranteed by the caller; the address is aligned for the streaming stores.
            unsafe {
                if to.addr().is_multiple_of(32) {
                    _mm256_stream_ps(to, self.0);
                    _mm256_stream_ps(to.add(8), self.1);
                } else {
                    self.store(to);
                }
            }
        }

        #[inline(always)]
        unsafe fn store_half(self, to: *mut f16) {
            // SAFETY: guaranteed by the caller.
            unsafe {
                const MODE: i32 = _MM_FROUND_TO_NEAREST_INT;
                _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<MODE>(self.0));
                _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<MODE>(self.1));
            }
        }
    }
}

/// Dimensions of a [`product`].
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Rows of the left matrix and of the product.
    pub rows: usize,
    /// Columns of the left matrix, rows of the right one.
    pub depth: usize,
    /// Columns of the right matrix and of the product.
    pub cols: usize,
}

/// A row-major matrix with a stride in elements.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a, T> {
    /// Elements, row by row.
    pub elements: &'a [T],
    /// Elements from row to row.
    pub stride: usize,
}

/// A mutable row-major matrix with a stride in elements.
#[derive(Debug)]
pub struct StridedMut<'a, T> {
    /// Elements, row by row.
    pub elements: &'a mut [T],
    /// Elements from row to row.
    pub stride: usize,
}

impl<T> Strided<'_, T> {
    /// Returns whether the slice contains all rows of a matrix of this size. `rows` must not be 0.
    #[inline(always)]
    fn holds(&self, rows: usize, cols: usize) -> bool {
        self.elements.len() >= (rows - 1) * self.stride + cols
    }
}

/// Computes `out[q][c] = fma(a[q][k], b[k][c], out[q][c])` for k = 0, 1, … `depth - 1`. `VECTORS` vectors of
/// columns are held in registers for up to four rows.
///
/// # Panics
/// Panics if a slice is too short.
#[inline(always)]
pub fn product<V: Vector, const VECTORS: usize, B: Right>(
    size: Size,
    a: Strided<'_, f32>,
    b: Strided<'_, B>,
    mut out: StridedMut<'_, f32>,
) {
    let Size { rows, depth, cols } = size;
    if rows == 0 || depth == 0 || cols == 0 {
        return;
    }
    assert!(a.holds(rows, depth), "a");
    assert!(b.holds(depth, cols), "b");
    assert!(Strided { elements: &*out.elements, stride: out.stride }.holds(rows, cols), "out");
    let mut col = 0;
    while cols - col >= VECTORS * LANES {
        // SAFETY: rows, depth and columns are inside the three slices, as was checked.
        unsafe { column::<V, VECTORS, B>(size, col, a, b, &mut out) };
        col += VECTORS * LANES;
    }
    while cols - col >= LANES {
        // SAFETY: as above.
        unsafe { column::<V, 1, B>(size, col, a, b, &mut out) };
        col += LANES;
    }
    for row in 0..rows {
        for col in col..cols {
            let out = &mut out.elements[row * out.stride + col];
            for k in 0..depth {
                let (a, b) = (a.elements[row * a.stride + k], b.elements[k * b.stride + col]);
                *out = a.fused(b.to_f32(), *out);
            }
        }
    }
}

/// Computes `VECTORS` vectors of columns for all rows.
///
/// # Safety
/// The sizes must be inside the slices.
#[inline(always)]
unsafe fn column<V: Vector, const VECTORS: usize, B: Right>(
    size: Size,
    col: usize,
    a: Strided<'_, f32>,
    b: Strided<'_, B>,
    out: &mut StridedMut<'_, f32>,
) {
    let Size { rows, depth, .. } = size;
    let (a, a_stride) = (a.elements.as_ptr(), a.stride);
    let (b, b_stride) = (b.elements.as_ptr(), b.stride);
    let (out, out_stride) = (out.elements.as_mut_ptr(), out.stride);
    let mut row = 0;
    // SAFETY: guaranteed by the caller; no row beyond `rows` is accessed.
    unsafe {
        let b = b.add(col);
        let at = |row: usize| (a.add(row * a_stride), out.add(row * out_stride + col));
        while rows - row >= 4 {
            let (a, out) = at(row);
            block::<V, 4, VECTORS, B>(depth, a, a_stride, b, b_stride, out, out_stride);
            row += 4;
        }
        if rows - row >= 2 {
            let (a, out) = at(row);
            block::<V, 2, VECTORS, B>(depth, a, a_stride, b, b_stride, out, out_stride);
            row += 2;
        }
        if rows > row {
            let (a, out) = at(row);
            block::<V, 1, VECTORS, B>(depth, a, a_stride, b, b_stride, out, out_stride);
        }
    }
}

/// Computes `ROWS` rows by `VECTORS` vectors of columns, in registers.
///
/// # Safety
/// The pointers must be valid for that many rows and columns, a stride apart.
#[expect(clippy::needless_range_loop, reason = "iterators over vectors become calls")]
#[inline(always)]
unsafe fn block<V: Vector, const ROWS: usize, const VECTORS: usize, B: Right>(
    depth: usize,
    a: *const f32,
    a_stride: usize,
    b: *const B,
    b_stride: usize,
    out: *mut f32,
    out_stride: usize,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Index loops: a closure called by the library is compiled without the instruction set, so that all
        // vectors would pass through memory.
        let mut sums = [[V::splat(0.0); VECTORS]; ROWS];
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                sums[row][vector] = V::load(out.add(row * out_stride + vector * LANES));
            }
        }
        let mut right = [V::splat(0.0); VECTORS];
        for k in 0..depth {
            for vector in 0..VECTORS {
                right[vector] = B::load(b.add(k * b_stride + vector * LANES));
            }
            for row in 0..ROWS {
                let factor = V::splat(*a.add(row * a_stride + k));
                for vector in 0..VECTORS {
                    sums[row][vector] = factor.fma(right[vector], sums[row][vector]);
                }
            }
        }
        for row in 0..ROWS {
            for vector in 0..VECTORS {
                sums[row][vector].store(out.add(row * out_stride + vector * LANES));
            }
        }
    }
}

/// Converts half-precision floats exactly and stores them in the first elements of `to`.
#[inline(always)]
pub fn widen<V: Vector>(from: &[f16], to: &mut [f32]) {
    let to = &mut to[..from.len()];
    let ((from, from_tail), (to, to_tail)) = (from.as_chunks::<LANES>(), to.as_chunks_mut());
    for (from, to) in from.iter().zip(to) {
        let to: &mut [f32; LANES] = to;
        // SAFETY: both arrays have sixteen elements.
        unsafe { V::load_half(from.as_ptr()).store(to.as_mut_ptr()) }
    }
    to_tail.iter_mut().zip(from_tail).for_each(|(to, from)| *to = from.to_f32());
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

//! Vectors of x86-64.
#![expect(unsafe_code, reason = "vector loads and stores, as for `Vector`")]

use std::arch::x86_64::*;

use super::{Vector, VectorWork, bf16, f16};

/// One vector of AVX-512.
#[derive(Clone, Copy)]
pub struct Avx512(__m512);

impl Vector for Avx512 {
    const IS_WIDE: bool = true;

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    #[inline(never)]
    unsafe fn apart<W: VectorWork>(work: W) {
        work.run::<Self>();
    }

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
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            Self(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
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
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
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
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline(never)]
    unsafe fn apart<W: VectorWork>(work: W) {
        work.run::<Self>();
    }

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
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let half = |at: usize| {
                let bytes = _mm_loadl_epi64(from.add(at).cast());
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes))
            };
            Self(half(0), half(8))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(line: *const u8) {
        // SAFETY: a prefetch of any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) }
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
            Self(_mm256_fmadd_ps(self.0, other.0, sum.0), _mm256_fmadd_ps(self.1, other.1, sum.1))
        }
    }

    #[inline(always)]
    unsafe fn mul(self, other: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
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
            let (first, second) = (_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
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

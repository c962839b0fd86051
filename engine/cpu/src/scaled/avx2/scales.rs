//! Weight scales and minima of a run of groups for AVX2.
#![expect(unsafe_code, reason = "vector loads and stores of arrays as long as they are")]

use std::arch::x86_64::*;

use nestling_formats::nested::{Minima, ScaleType, SubScale, TILE_ROWS};

use super::super::{
    E4M3_FACTOR, E4M3_SHIFT, E8M0_LEAST, RUN, ScalePanel, ScaledWeights, TileValues, widen,
};

/// The 16 rows of a tile in two halves.
type Halves = [__m256; 2];

/// Implements [`ScalePanel::fill`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn fill(weights: &ScaledWeights, tile: usize, first: usize, panel: &mut ScalePanel) {
    let (form, unit) = (&weights.form, [_mm256_set1_ps(weights.table.unit); 2]);
    let (subs, span) = (form.sub_blocks(), usize::from(form.span));
    let live = RUN.min(weights.groups - first);
    for group in (0..live).step_by(span) {
        let numbers = |part| weights.span(part, tile, first + group);
        let span_scales = widen_halves(form.scale, numbers(weights.scales));
        let span_minima = match form.minima {
            Minima::None => [_mm256_setzero_ps(); 2],
            Minima::Spans => widen_halves(form.scale, numbers(weights.minima)),
            // These minima are subtracted: the product below carries the sign.
            Minima::SubBlocks => {
                let minima = widen_halves(form.scale, numbers(weights.minima));
                minima.map(|half| _mm256_xor_ps(half, _mm256_set1_ps(-0.0)))
            }
        };
        for slot in group * subs..live.min(group + span) * subs {
            let at = (tile * weights.groups + first) * subs + slot;
            let sub_scales = || weights.sub_block(weights.sub_scales, at);
            let scales = match form.sub_scale {
                SubScale::None => span_scales,
                kind => times(span_scales, factors(kind, sub_scales())),
            };
            store(times(scales, unit), &mut panel.scales[slot]);
            let minima = match form.minima {
                Minima::None => continue,
                Minima::Spans => span_minima,
                Minima::SubBlocks if form.has_sub_minima() => {
                    let integers = weights.sub_block(weights.sub_minima, at);
                    times(span_minima, factors(SubScale::U8, integers))
                }
                Minima::SubBlocks => {
                    let high = integers(sub_scales()).map(|half| _mm256_srli_epi32::<4>(half));
                    times(span_minima, high.map(|half| _mm256_cvtepi32_ps(half)))
                }
            };
            store(minima, &mut panel.minima[slot]);
        }
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn times(a: Halves, b: Halves) -> Halves {
    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(halves: Halves, out: &mut TileValues) {
    // SAFETY: both halves are in bounds.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), halves[0]);
        _mm256_storeu_ps(out[8..].as_mut_ptr(), halves[1]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn integers(bytes: &[u8; TILE_ROWS]) -> [__m256i; 2] {
    // SAFETY: 16 bytes.
    let bytes = unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
    [_mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(bytes, bytes))]
}

/// Returns the factors of the scales for the bytes of 16 rows.
#[inline]
#[target_feature(enable = "avx2")]
fn factors(kind: SubScale, bytes: &[u8; TILE_ROWS]) -> Halves {
    let integers = integers(bytes);
    match kind {
        SubScale::None => [_mm256_set1_ps(1.0); 2],
        SubScale::U8 => integers.map(|half| _mm256_cvtepi32_ps(half)),
        SubScale::I8 => integers.map(|half| {
            let signed = _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(half));
            _mm256_cvtepi32_ps(signed)
        }),
        SubScale::Nibbles => {
            integers.map(|half| _mm256_cvtepi32_ps(_mm256_and_si256(half, _mm256_set1_epi32(15))))
        }
        SubScale::E4m3 => integers.map(|half| {
            let small = _mm256_castsi256_ps(_mm256_slli_epi32::<{ E4M3_SHIFT as i32 }>(half));
            _mm256_mul_ps(small, _mm256_set1_ps(E4M3_FACTOR))
        }),
        SubScale::E8m0 => integers.map(|half| {
            let least = _mm256_set1_epi32(E8M0_LEAST.cast_signed());
            _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32::<23>(half), least))
        }),
    }
}

/// Converts sixteen numbers of a span to floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn widen_halves(scale: ScaleType, numbers: &[u8]) -> Halves {
    if scale != ScaleType::F16 {
        let floats = widen(scale, numbers);
        // SAFETY: 16 floats.
        return unsafe {
            [_mm256_loadu_ps(floats.as_ptr()), _mm256_loadu_ps(floats[8..].as_ptr())]
        };
    }
    let numbers = &numbers[..2 * TILE_ROWS];
    // SAFETY: eight numbers of two bytes each.
    unsafe {
        let half = |at: usize| _mm_loadu_si128(numbers[at..].as_ptr().cast());
        [_mm256_cvtph_ps(half(0)), _mm256_cvtph_ps(half(16))]
    }
}

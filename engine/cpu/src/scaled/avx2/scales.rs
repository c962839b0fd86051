//! Weight scales and minima of a run of groups for AVX2.
#![expect(unsafe_code, reason = "vector loads and stores of arrays as long as they are")]

use std::arch::x86_64::*;

use nestling_formats::nested::{Minima, ScaleType, SubScale, TILE_ROWS};

use crate::planes::avx2::{AHEAD, prefetch_line};

use super::super::{
    E4M3_FACTOR, E4M3_SHIFT, E8M0_LEAST, RUN, ScalePanel, ScaledWeights, TileValues, widen,
};

/// The 16 rows of a tile in two halves.
pub type Halves = [__m256; 2];

/// Implements [`ScalePanel::fill`].
#[inline(never)]
#[target_feature(enable = "avx2,fma,f16c")]
pub fn fill(weights: &ScaledWeights, tile: usize, first: usize, panel: &mut ScalePanel) {
    let subs = weights.form.sub_blocks();
    let slots = RUN.min(weights.groups - first) * subs;
    // The number of groups of a span is a power of two.
    let shift = weights.form.span.trailing_zeros();
    let run = Run {
        weights,
        span: tile * weights.spans + (first >> shift),
        slots_of_span: subs << shift,
        subs: (tile * weights.groups + first) * subs,
    };
    run.prefetch(shift);
    run.fill_scales(&mut panel.scales[..slots]);
    if weights.has_minima() {
        run.fill_minima(&mut panel.minima[..slots]);
    }
}

/// A run of groups of a tile, which starts with a span.
struct Run<'a> {
    weights: &'a ScaledWeights<'a>,
    /// Index of the first span in the matrix.
    span: usize,
    slots_of_span: usize,
    /// Index of the first sub-block in the matrix.
    subs: usize,
}

/// Runs a block for each span, with its slots and its numbers.
macro_rules! for_each_span {
    ($run:ident, $part:expr, $out:ident, |$slots:ident, $numbers:ident| $block:block) => {
        let (mut start, mut span) = (0, $run.span);
        while start < $out.len() {
            let $slots = start..$out.len().min(start + $run.slots_of_span);
            let $numbers = numbers($run.weights.form.scale, $part, span);
            (start, span) = ($slots.end, span + 1);
            $block
        }
    };
}

impl Run<'_> {
    /// Prefetches what a later run reads; a span has `1 << shift` groups. Parts that the form lacks are empty.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn prefetch(&self, shift: u32) {
        let weights = self.weights;
        let of_group = weights.form.sub_blocks() * TILE_ROWS;
        let at = self.subs * TILE_ROWS + AHEAD * of_group;
        for offset in (at..at + RUN * of_group).step_by(64) {
            prefetch_line(weights.sub_scales, offset);
            prefetch_line(weights.sub_minima, offset);
        }
        let of_span = TILE_ROWS * weights.form.scale.bytes();
        let at = (self.span + (AHEAD >> shift)) * of_span;
        for offset in (at..=at + ((RUN - 1) >> shift) * of_span).step_by(64) {
            prefetch_line(weights.scales, offset);
            prefetch_line(weights.minima, offset);
        }
    }

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fill_scales(&self, out: &mut [TileValues]) {
        let weights = self.weights;
        let unit = [_mm256_set1_ps(weights.table.unit); 2];
        macro_rules! fill {
            ($kind:expr) => {
                let bytes = self.bytes(weights.sub_scales, out.len());
                for_each_span!(self, weights.scales, out, |slots, numbers| {
                    for (out, bytes) in out[slots.clone()].iter_mut().zip(&bytes[slots]) {
                        store(times(times(numbers, factors($kind, bytes)), unit), out);
                    }
                });
            };
        }
        // The kind is a constant in each loop.
        match weights.form.sub_scale {
            SubScale::None => {
                for_each_span!(self, weights.scales, out, |slots, numbers| {
                    let scales = times(numbers, unit);
                    for out in &mut out[slots] {
                        store(scales, out);
                    }
                });
            }
            SubScale::U8 => {
                fill!(SubScale::U8);
            }
            SubScale::I8 => {
                fill!(SubScale::I8);
            }
            SubScale::E4m3 => {
                fill!(SubScale::E4m3);
            }
            SubScale::E8m0 => {
                fill!(SubScale::E8m0);
            }
            SubScale::Nibbles => {
                fill!(SubScale::Nibbles);
            }
        }
    }

    #[inline(never)]
    #[target_feature(enable = "avx2,fma,f16c")]
    fn fill_minima(&self, out: &mut [TileValues]) {
        let weights = self.weights;
        if weights.form.minima == Minima::Spans {
            for_each_span!(self, weights.minima, out, |slots, numbers| {
                for out in &mut out[slots] {
                    store(numbers, out);
                }
            });
            return;
        }
        let has_sub_minima = weights.form.has_sub_minima();
        let part = if has_sub_minima { weights.sub_minima } else { weights.sub_scales };
        let bytes = self.bytes(part, out.len());
        for_each_span!(self, weights.minima, out, |slots, numbers| {
            let numbers = negated(numbers);
            let both = out[slots.clone()].iter_mut().zip(&bytes[slots]);
            if has_sub_minima {
                for (out, bytes) in both {
                    store(times(numbers, factors(SubScale::U8, bytes)), out);
                }
            } else {
                for (out, bytes) in both {
                    let [low, high] = integers(bytes);
                    let high = [_mm256_srli_epi32::<4>(low), _mm256_srli_epi32::<4>(high)];
                    store(times(numbers, floats(high)), out);
                }
            }
        });
    }

    /// Returns the bytes of `count` sub-blocks.
    #[inline]
    fn bytes<'a>(&self, part: &'a [u8], count: usize) -> &'a [[u8; TILE_ROWS]] {
        &part.as_chunks().0[self.subs..self.subs + count]
    }
}

/// Negates minima that are subtracted: the products carry the sign.
#[inline]
#[target_feature(enable = "avx2")]
pub fn negated(minima: Halves) -> Halves {
    let sign = _mm256_set1_ps(-0.0);
    [_mm256_xor_ps(minima[0], sign), _mm256_xor_ps(minima[1], sign)]
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn times(a: Halves, b: Halves) -> Halves {
    [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])]
}

#[inline]
#[target_feature(enable = "avx2")]
pub fn store(halves: Halves, out: &mut TileValues) {
    // SAFETY: both halves are in bounds.
    unsafe {
        _mm256_storeu_ps(out.as_mut_ptr(), halves[0]);
        _mm256_storeu_ps(out[8..].as_mut_ptr(), halves[1]);
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn integers(bytes: &[u8; TILE_ROWS]) -> [__m256i; 2] {
    // SAFETY: both halves have eight bytes.
    unsafe {
        let low = _mm_loadl_epi64(bytes.as_ptr().cast());
        let high = _mm_loadl_epi64(bytes[8..].as_ptr().cast());
        [_mm256_cvtepu8_epi32(low), _mm256_cvtepu8_epi32(high)]
    }
}

#[inline]
#[target_feature(enable = "avx2")]
fn floats(integers: [__m256i; 2]) -> Halves {
    [_mm256_cvtepi32_ps(integers[0]), _mm256_cvtepi32_ps(integers[1])]
}

/// Returns the factors of the scales for the bytes of 16 rows.
#[inline]
#[target_feature(enable = "avx2")]
pub fn factors(kind: SubScale, bytes: &[u8; TILE_ROWS]) -> Halves {
    let [low, high] = integers(bytes);
    match kind {
        SubScale::None => [_mm256_set1_ps(1.0); 2],
        SubScale::U8 => floats([low, high]),
        SubScale::I8 => {
            let signed = |half| _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(half));
            floats([signed(low), signed(high)])
        }
        SubScale::Nibbles => {
            let nibble = _mm256_set1_epi32(15);
            floats([_mm256_and_si256(low, nibble), _mm256_and_si256(high, nibble)])
        }
        SubScale::E4m3 => {
            let factor = [_mm256_set1_ps(E4M3_FACTOR); 2];
            let small =
                |half| _mm256_castsi256_ps(_mm256_slli_epi32::<{ E4M3_SHIFT as i32 }>(half));
            times([small(low), small(high)], factor)
        }
        SubScale::E8m0 => {
            let least = _mm256_set1_epi32(E8M0_LEAST.cast_signed());
            let power =
                |half| _mm256_castsi256_ps(_mm256_max_epu32(_mm256_slli_epi32::<23>(half), least));
            [power(low), power(high)]
        }
    }
}

/// Returns the sixteen numbers of a span in an array of span numbers, as floats.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub fn numbers(scale: ScaleType, part: &[u8], span: usize) -> Halves {
    if scale != ScaleType::F16 {
        return other_numbers(scale, part, span);
    }
    let [low, high] = &part.as_chunks::<TILE_ROWS>().0.as_chunks::<2>().0[span];
    // SAFETY: both halves have eight numbers of two bytes.
    unsafe {
        let low = _mm_loadu_si128(low.as_ptr().cast());
        let high = _mm_loadu_si128(high.as_ptr().cast());
        [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
    }
}

#[inline(never)]
#[target_feature(enable = "avx2,f16c")]
fn other_numbers(scale: ScaleType, part: &[u8], span: usize) -> Halves {
    let bytes = TILE_ROWS * scale.bytes();
    let floats = widen(scale, &part[span * bytes..(span + 1) * bytes]);
    // SAFETY: 16 floats.
    unsafe { [_mm256_loadu_ps(floats.as_ptr()), _mm256_loadu_ps(floats[8..].as_ptr())] }
}

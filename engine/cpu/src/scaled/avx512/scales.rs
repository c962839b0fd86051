//! Weight scales and minima of a run of groups for AVX-512, with a separate loop for each form of scales.
#![expect(unsafe_code, reason = "vector loads at offsets that the caller has checked")]

use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use nestling_formats::nested::{Minima, ScaleType, SubScale, TILE_ROWS};

use super::super::super::planes::avx512::prefetch_line;
use super::super::{E4M3_FACTOR, E4M3_SHIFT, E8M0_LEAST, RUN, ScaledWeights};
use super::AHEAD;

/// Numbers of 16 rows for each sub-block of a run.
type Slots = [MaybeUninit<__m512>];

/// [`SubScale`] values as constants.
const NONE: u8 = SubScale::None as u8;
const U8: u8 = SubScale::U8 as u8;
const I8: u8 = SubScale::I8 as u8;
const E4M3: u8 = SubScale::E4m3 as u8;
const E8M0: u8 = SubScale::E8m0 as u8;
const NIBBLES: u8 = SubScale::Nibbles as u8;

/// [`Minima`] values as constants.
const NO_MINIMA: u8 = Minima::None as u8;
const OF_SPANS: u8 = Minima::Spans as u8;
const OF_SUB_BLOCKS: u8 = Minima::SubBlocks as u8;

/// In place of the slots of a span: a run has several spans, or a part of one.
const ANY: usize = 0;

/// Decodes up to [`RUN`] groups from `first` on, which starts a span, in the layout of
/// [`ScalePanel`](super::super::ScalePanel).
pub type Fill = unsafe fn(
    weights: &ScaledWeights,
    tile: usize,
    first: usize,
    scales: &mut Slots,
    minima: &mut Slots,
);

/// Returns the function for some weights. It requires the features of this module.
pub fn filler<'a>(weights: &ScaledWeights<'a>) -> Fill {
    let (form, is_span, subs) =
        (&weights.form, weights.has_plain_spans(), weights.form.sub_blocks());
    macro_rules! forms {
        ($($sub_scale:ident $kind:ident,)*) => {
            match (form.sub_scale, form.minima) {
                // Codes of Q4_K, Q5_K and Q6_K, in a pass of constant length.
                (SubScale::U8, Minima::SubBlocks) if is_span && subs == 1 => {
                    fill::<U8, OF_SUB_BLOCKS, RUN>
                }
                (SubScale::I8, Minima::None) if is_span && subs == 2 => {
                    fill::<I8, NO_MINIMA, { 2 * RUN }>
                }
                $((SubScale::$sub_scale, Minima::None) => fill::<$kind, NO_MINIMA, ANY>,
                (SubScale::$sub_scale, Minima::Spans) => fill::<$kind, OF_SPANS, ANY>,
                (SubScale::$sub_scale, Minima::SubBlocks) => fill::<$kind, OF_SUB_BLOCKS, ANY>,)*
            }
        };
    }
    forms!(None NONE, U8 U8, I8 I8, E4m3 E4M3, E8m0 E8M0, Nibbles NIBBLES,)
}

/// Implements [`Fill`]. A run is a span of `SLOTS` sub-blocks with half floats and a unit of 1, unless `SLOTS` is [`ANY`].
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn fill<const SUB: u8, const MINIMA: u8, const SLOTS: usize>(
    weights: &ScaledWeights,
    tile: usize,
    first: usize,
    scales: &mut Slots,
    minima: &mut Slots,
) {
    let (form, unit) = (&weights.form, _mm512_set1_ps(weights.table.unit));
    let (subs, of_span, slots, scale_type) = match SLOTS {
        ANY => {
            let (subs, span) = (form.sub_blocks(), usize::from(form.span));
            (subs, span * subs, RUN.min(weights.groups - first) * subs, form.scale)
        }
        _ => (SLOTS / RUN, SLOTS, SLOTS, ScaleType::F16),
    };
    assert!(scales.len() >= slots && minima.len() >= slots, "{slots} slots");
    let at = (tile * weights.groups + first) * subs * TILE_ROWS;
    let sub_scales = weights.sub_scales.as_ptr().wrapping_add(at);
    let sub_minima = weights.sub_minima.as_ptr().wrapping_add(at);
    for (part, bytes) in [(sub_scales, weights.sub_scales), (sub_minima, weights.sub_minima)] {
        if !bytes.is_empty() {
            prefetch_ahead(part, RUN * subs * TILE_ROWS, AHEAD * subs * TILE_ROWS);
        }
    }
    let mut span_scales = weights.span(weights.scales, tile, first).as_ptr();
    // Empty without minima, and then never read.
    let mut span_minima = span_scales;
    if MINIMA != NO_MINIMA {
        span_minima = weights.span(weights.minima, tile, first).as_ptr();
    }
    let ahead = AHEAD * subs / of_span * TILE_ROWS * scale_type.bytes();
    for begin in (0..slots).step_by(of_span) {
        // SAFETY: the parts that the form has hold 16 numbers of each span and 16 bytes of each sub-block,
        // and there are as many slots.
        unsafe {
            let scale = widen(scale_type, span_scales);
            let minimum = match MINIMA {
                NO_MINIMA => _mm512_setzero_ps(),
                OF_SPANS => widen(scale_type, span_minima),
                // These minima are subtracted: the product below carries the sign.
                _ => _mm512_sub_ps(_mm512_set1_ps(-0.0), widen(scale_type, span_minima)),
            };
            prefetch_line(span_scales, ahead);
            if MINIMA != NO_MINIMA {
                prefetch_line(span_minima, ahead);
            }
            span_scales = span_scales.add(TILE_ROWS * scale_type.bytes());
            span_minima = span_minima.add(TILE_ROWS * scale_type.bytes());
            for slot in begin..slots.min(begin + of_span) {
                let mut factor = scale;
                if SUB != NONE {
                    factor = _mm512_mul_ps(factor, sub_factors::<SUB>(sub_scales.add(slot * 16)));
                }
                if SLOTS == ANY {
                    factor = _mm512_mul_ps(factor, unit);
                }
                scales.get_unchecked_mut(slot).write(factor);
                if MINIMA == NO_MINIMA {
                    continue;
                }
                let mut value = minimum;
                if MINIMA == OF_SUB_BLOCKS {
                    let integers = if SUB == NIBBLES {
                        _mm512_srli_epi32::<4>(bytes(sub_scales.add(slot * 16)))
                    } else {
                        bytes(sub_minima.add(slot * 16))
                    };
                    value = _mm512_mul_ps(minimum, _mm512_cvtepi32_ps(integers));
                }
                minima.get_unchecked_mut(slot).write(value);
            }
        }
    }
}

/// Prefetches `bytes` bytes from `ahead` bytes after `part` on.
#[inline]
#[target_feature(enable = "avx512f")]
fn prefetch_ahead(part: *const u8, bytes: usize, ahead: usize) {
    for line in (0..bytes).step_by(64) {
        prefetch_line(part, ahead + line);
    }
}

/// Loads sixteen bytes as integers.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn bytes(at: *const u8) -> __m512i {
    // SAFETY: the caller guarantees 16 readable bytes.
    _mm512_cvtepu8_epi32(unsafe { _mm_loadu_si128(at.cast()) })
}

/// Returns the factors of the scales for the bytes of 16 rows.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sub_factors<const SUB: u8>(at: *const u8) -> __m512 {
    // SAFETY: the caller guarantees 16 readable bytes.
    unsafe {
        match SUB {
            I8 => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast()))),
            NIBBLES => _mm512_cvtepi32_ps(_mm512_and_si512(bytes(at), _mm512_set1_epi32(15))),
            E4M3 => {
                let small = _mm512_slli_epi32::<E4M3_SHIFT>(bytes(at));
                _mm512_mul_ps(_mm512_castsi512_ps(small), _mm512_set1_ps(E4M3_FACTOR))
            }
            E8M0 => {
                let exponent = _mm512_slli_epi32::<23>(bytes(at));
                let least = _mm512_set1_epi32(E8M0_LEAST.cast_signed());
                _mm512_castsi512_ps(_mm512_max_epu32(exponent, least))
            }
            _ => _mm512_cvtepi32_ps(bytes(at)),
        }
    }
}

/// Converts sixteen numbers of a span to floats.
#[inline]
#[target_feature(enable = "avx512f,avx512vl")]
unsafe fn widen(scale: ScaleType, numbers: *const u8) -> __m512 {
    // SAFETY: the caller guarantees 16 readable numbers of the type.
    unsafe {
        match scale {
            ScaleType::None => _mm512_set1_ps(1.0),
            ScaleType::F16 => _mm512_cvtph_ps(_mm256_loadu_si256(numbers.cast())),
            ScaleType::Bf16 => {
                let upper = _mm512_cvtepu16_epi32(_mm256_loadu_si256(numbers.cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(upper))
            }
            ScaleType::F32 => _mm512_loadu_ps(numbers.cast()),
        }
    }
}

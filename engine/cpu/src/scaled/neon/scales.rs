//! Weight scales and minima of a run of groups for NEON: the same numbers as those of [`ScalePanel::fill`].
#![expect(unsafe_code, reason = "vector loads and stores of whole arrays")]

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use nestling_formats::nested::{Minima, ScaleType, SubScale, TILE_ROWS};

use super::super::{RUN, ScalePanel, ScaledWeights, TileValues, sub_factors, widen};
use crate::planes::neon::{Floats, parts, store};

/// Bytes of 16 rows for each sub-block.
type SubBlocks = [[u8; TILE_ROWS]];

/// Decodes the groups from `first` on, which is a multiple of [`RUN`].
#[target_feature(enable = "neon")]
pub fn fill(weights: &ScaledWeights, tile: usize, first: usize, out: &mut ScalePanel) {
    let (form, count) = (&weights.form, RUN.min(weights.groups - first));
    let (subs, span) = (form.sub_blocks(), usize::from(form.span));
    let sub_scales = sub_blocks(weights, weights.sub_scales, tile, first..first + count);
    let sub_minima = sub_blocks(weights, weights.sub_minima, tile, first..first + count);
    for start in (0..count).step_by(span) {
        let slots = start * subs..count.min(start + span) * subs;
        let scales = numbers(form.scale, weights.span(weights.scales, tile, first + start));
        let (unit, slot_scales) = (weights.table.unit, &mut out.scales[slots.clone()]);
        match form.sub_scale {
            SubScale::None => slot_scales.fill(stored(times(scales, [vdupq_n_f32(unit); 4]))),
            kind => fill_scales(kind, scales, unit, &sub_scales[slots.clone()], slot_scales),
        }
        if !weights.has_minima() {
            continue;
        }
        let minima = numbers(form.scale, weights.span(weights.minima, tile, first + start));
        let out = &mut out.minima[slots.clone()];
        match form.minima {
            Minima::SubBlocks if form.has_sub_minima() => {
                fill_minima::<0>(minima, &sub_minima[slots], out);
            }
            Minima::SubBlocks => fill_minima::<4>(minima, &sub_scales[slots], out),
            Minima::None | Minima::Spans => out.fill(stored(minima)),
        }
    }
}

/// Returns the bytes of some groups in an array for sub-blocks, or none if the form has no such array.
fn sub_blocks<'a>(
    weights: &ScaledWeights<'a>,
    part: &'a [u8],
    tile: usize,
    groups: Range<usize>,
) -> &'a SubBlocks {
    if part.is_empty() {
        return &[];
    }
    let subs = weights.form.sub_blocks();
    let start = (tile * weights.groups + groups.start) * subs;
    &part.as_chunks().0[start..start + groups.len() * subs]
}

/// Sets the weight scales of sub-blocks from those of their span and from factors.
#[inline]
#[target_feature(enable = "neon")]
fn fill_scales(
    kind: SubScale,
    scales: Floats,
    unit: f32,
    bytes: &SubBlocks,
    out: &mut [TileValues],
) {
    let unit = [vdupq_n_f32(unit); 4];
    match kind {
        SubScale::U8 => {
            for (bytes, out) in bytes.iter().zip(out) {
                store(times(times(scales, floats(load(bytes))), unit), out);
            }
        }
        SubScale::Nibbles => {
            for (bytes, out) in bytes.iter().zip(out) {
                let nibbles = vandq_u8(load(bytes), vdupq_n_u8(15));
                store(times(times(scales, floats(nibbles)), unit), out);
            }
        }
        SubScale::I8 => {
            for (bytes, out) in bytes.iter().zip(out) {
                let factors = signed_floats(vreinterpretq_s8_u8(load(bytes)));
                store(times(times(scales, factors), unit), out);
            }
        }
        SubScale::None | SubScale::E4m3 | SubScale::E8m0 => {
            for (bytes, out) in bytes.iter().zip(out) {
                let factors = parts(&sub_factors(kind, bytes));
                store(times(times(scales, factors), unit), out);
            }
        }
    }
}

/// Sets the minima of sub-blocks from that of their span and the bits of bytes from bit `FIRST` on. These minima are
/// subtracted, so that the product carries the sign.
#[inline]
#[target_feature(enable = "neon")]
fn fill_minima<const FIRST: u8>(minima: Floats, bytes: &SubBlocks, out: &mut [TileValues]) {
    let mut negative = minima;
    for minimum in &mut negative {
        *minimum = vnegq_f32(*minimum);
    }
    for (bytes, out) in bytes.iter().zip(out) {
        let bytes = load(bytes);
        let integers = if FIRST == 0 { bytes } else { vshrq_n_u8::<4>(bytes) };
        store(times(negative, floats(integers)), out);
    }
}

/// Converts the sixteen numbers of a span.
#[inline]
#[target_feature(enable = "neon")]
fn numbers(kind: ScaleType, bytes: &[u8]) -> Floats {
    let Some(halves) = bytes.first_chunk::<32>().filter(|_| kind == ScaleType::F16) else {
        return parts(&widen(kind, bytes));
    };
    // SAFETY: there are sixteen numbers of two bytes.
    let [low, high] = unsafe {
        let start = halves.as_ptr().cast::<u16>();
        [vld1q_u16(start), vld1q_u16(start.add(8))]
    };
    [wide_low(low), wide_high(low), wide_low(high), wide_high(high)]
}

/// Converts the lower four of eight half floats, by an instruction whose intrinsic is not stable.
#[inline]
#[target_feature(enable = "neon")]
fn wide_low(halves: uint16x8_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: the instruction only accesses registers.
    unsafe {
        asm!(
            "fcvtl {out:v}.4s, {halves:v}.4h",
            out = out(vreg) out,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    out
}

/// Converts the upper four.
#[inline]
#[target_feature(enable = "neon")]
fn wide_high(halves: uint16x8_t) -> float32x4_t {
    wide_low(vextq_u16::<4>(halves, halves))
}

#[inline]
#[target_feature(enable = "neon")]
fn load(bytes: &[u8; TILE_ROWS]) -> uint8x16_t {
    // SAFETY: there are sixteen bytes.
    unsafe { vld1q_u8(bytes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "neon")]
fn stored(floats: Floats) -> TileValues {
    let mut out = [0.0; TILE_ROWS];
    store(floats, &mut out);
    out
}

#[inline]
#[target_feature(enable = "neon")]
fn times(a: Floats, b: Floats) -> Floats {
    let mut out = a;
    for (out, b) in out.iter_mut().zip(b) {
        *out = vmulq_f32(*out, b);
    }
    out
}

/// Converts bytes to floats.
#[inline]
#[target_feature(enable = "neon")]
fn floats(bytes: uint8x16_t) -> Floats {
    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
    [
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
        vcvtq_f32_u32(vmovl_high_u16(low)),
        vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
        vcvtq_f32_u32(vmovl_high_u16(high)),
    ]
}

/// Converts signed bytes to floats.
#[inline]
#[target_feature(enable = "neon")]
fn signed_floats(bytes: int8x16_t) -> Floats {
    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
    [
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
        vcvtq_f32_s32(vmovl_high_s16(low)),
        vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
        vcvtq_f32_s32(vmovl_high_s16(high)),
    ]
}

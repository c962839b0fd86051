//! Weight scales and minima of a run of groups for codes like those of Q4_K, Q5_K and Q6_K.
//!
//! A run of these codes is one span with a constant number of sub-blocks, so that one pass of constant
//! length fills all slots. Other codes use [`super::scales`]. Scales were 30 % of the instructions of a row of Q4_K before
//! (docs/perf/067).

use half::f16;
use nestling_formats::nested::{Minima, ScaleType, SubScale, TILE_ROWS};

use super::super::{RUN, ScalePanel, ScaledWeights, TileValues};
use super::scales::{self, Halves, factors, negated, numbers, store, times};
use crate::planes::avx2::{AHEAD, prefetch_line};

/// Implements [`ScalePanel::fill`] for codes with `SUBS` sub-blocks in a group.
#[target_feature(enable = "avx2,fma,f16c")]
pub fn fill<const SUBS: usize>(
    weights: &ScaledWeights,
    tile: usize,
    first: usize,
    panel: &mut ScalePanel,
) {
    if !fill_span::<SUBS>(weights, tile, first, panel) {
        scales::fill(weights, tile, first, panel);
    }
}

/// Fills the panel in one pass. Returns false for other codes, and at levels whose unit is not 1.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn fill_span<const SUBS: usize>(
    weights: &ScaledWeights,
    tile: usize,
    first: usize,
    panel: &mut ScalePanel,
) -> bool {
    if !weights.has_plain_spans() {
        return false;
    }
    let run = (tile * weights.groups + first) / RUN;
    let ScalePanel { scales, minima } = panel;
    match (SUBS, weights.form.sub_scale, weights.form.minima) {
        (1, SubScale::U8, Minima::SubBlocks) => {
            let numbers = numbers_ahead(weights.scales, run);
            fill_slots::<RUN>(SubScale::U8, numbers, weights.sub_scales, run, scales);
            let numbers = negated(numbers_ahead(weights.minima, run));
            fill_slots::<RUN>(SubScale::U8, numbers, weights.sub_minima, run, minima);
        }
        (2, SubScale::I8, Minima::None) => {
            let numbers = numbers_ahead(weights.scales, run);
            fill_slots::<{ 2 * RUN }>(SubScale::I8, numbers, weights.sub_scales, run, scales);
        }
        _ => return false,
    }
    true
}

/// Returns the numbers of a span, and prefetches those of a later one.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn numbers_ahead(part: &[u8], span: usize) -> Halves {
    prefetch_line(part, (span + AHEAD / RUN) * TILE_ROWS * size_of::<f16>());
    numbers(ScaleType::F16, part, span)
}

/// Multiplies the numbers of a span with the factors in the `SLOTS` sub-blocks of a run, and prefetches those of a later
/// run. Fills the first `SLOTS` slots of `out`.
#[inline]
#[target_feature(enable = "avx2")]
fn fill_slots<const SLOTS: usize>(
    kind: SubScale,
    numbers: Halves,
    part: &[u8],
    run: usize,
    out: &mut [TileValues; 2 * RUN],
) {
    let out = &mut out.as_chunks_mut::<SLOTS>().0[0];
    let bytes = &part.as_chunks::<TILE_ROWS>().0.as_chunks::<SLOTS>().0[run];
    for line in (0..SLOTS * TILE_ROWS).step_by(64) {
        prefetch_line(part, (run + AHEAD / RUN) * SLOTS * TILE_ROWS + line);
    }
    for (out, bytes) in out.iter_mut().zip(bytes) {
        store(times(numbers, factors(kind, bytes)), out);
    }
}

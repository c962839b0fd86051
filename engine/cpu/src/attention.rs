//! Attention of the query heads that share one KV head, one page at a time.
//!
//! The result of a block of 64 positions does not depend on other blocks, and blocks are merged in ascending
//! order. The bits of a row therefore do not depend on what else is computed. For one query head:
//!
//! ```text
//! score[p]  = (Σ_i fma(query[i], key[i][p], ·)) * (key_scale[p] * scale)     i ascending
//! weight[p] = exp(score[p] - max score)
//! block[c]  = Σ_p fma(weight[p] * value_scale[p], value[p][c], ·)           p ascending
//! ```
//!
//! Keys are stored transposed in their page, so that one query element is multiplied with 64 positions and
//! nothing is summed across lanes.

use std::ops::Range;

use half::f16;
use nestling_formats::memory::{OutOfMemory, try_reserve};

use super::aligned::{AlignedFloats, STEP};
use super::math;
use super::vector::{Right, Size, Strided, StridedMut, Vector, product, widen};
use crate::fused::Fused;
use nestling_core::kv_cache::PAGE_POSITIONS;

/// Keys and values of one head in one page.
#[derive(Clone, Copy, Debug)]
pub enum KvBlock<'a> {
    /// Single precision.
    F32 {
        /// Keys, `[head_dim, 64]`.
        keys: &'a [f32],
        /// Values, `[64, head_dim]`.
        values: &'a [f32],
    },
    /// Half precision.
    F16 {
        /// Keys, `[head_dim, 64]`.
        keys: &'a [f16],
        /// Values, `[64, head_dim]`.
        values: &'a [f16],
    },
    /// Integers with a key scale and a value scale for each position.
    Int8 {
        /// Keys, `[head_dim, 64]`.
        keys: &'a [i8],
        /// Values, `[64, head_dim]`.
        values: &'a [i8],
        /// Scales of the keys, `[64]`.
        key_scales: &'a [f32],
        /// Scales of the values, `[64]`.
        value_scales: &'a [f32],
    },
    /// Keys whose first elements are also the values.
    Shared(SharedRows<'a>),
}

/// Keys of one head in one page, by position, whose first elements are the values.
#[derive(Clone, Copy, Debug)]
pub enum SharedRows<'a> {
    /// Single precision, `[64, head_dim]`.
    F32(&'a [f32]),
    /// Half precision, `[64, head_dim]`.
    F16(&'a [f16]),
    /// Integers. Each position has a scale for the value and one for the other elements.
    Int8 {
        /// Rows, `[64, head_dim]`.
        rows: &'a [i8],
        /// Scales, `[64]`.
        scales: &'a [[f32; 2]],
    },
}

/// Running softmax state of one query head.
#[derive(Clone, Copy, Debug)]
pub struct AttentionState {
    /// Maximum score of the blocks so far.
    pub max: f32,
    /// Sum of exp(score - max).
    pub sum: f32,
}

impl AttentionState {
    /// Initial state, before any block.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Query heads that share a KV head, with their accumulators and working memory. Reuse does not allocate.
#[derive(Clone, Debug, Default)]
pub struct AttentionRows {
    head_dim: usize,
    value_dim: usize,
    queries: AlignedFloats, // [Q, head_dim]
    /// First visible position of each query, ascending.
    starts: Vec<usize>, // [Q]
    /// End of the visible positions of each query, ascending.
    visible: Vec<usize>, // [Q]
    states: Vec<AttentionState>, // [Q]
    out: AlignedFloats,     // [Q, value_dim]
    scores: AlignedFloats,  // [Q, 64]
    block: AlignedFloats,   // [Q, value_dim]
    keys: AlignedFloats,    // [head_dim, 64]
    values: AlignedFloats,  // [64, head_dim]
}

impl AttentionRows {
    /// Removes all queries and sets the sizes for the next ones.
    pub fn clear(&mut self, head_dim: usize, value_dim: usize) {
        (self.head_dim, self.value_dim) = (head_dim, value_dim);
        self.queries.clear();
        self.starts.clear();
        self.visible.clear();
    }

    /// Reserves memory for `queries` queries.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn try_reserve(&mut self, queries: usize, head_dim: usize) -> Result<(), OutOfMemory> {
        fn reserve<T>(values: &mut Vec<T>, count: usize) -> Result<(), OutOfMemory> {
            try_reserve(values, STEP, count.saturating_sub(values.len()))
        }
        reserve(&mut self.starts, queries)?;
        reserve(&mut self.visible, queries)?;
        reserve(&mut self.states, queries)?;
        for values in [&mut self.queries, &mut self.out, &mut self.block] {
            values.try_reserve(queries * head_dim)?;
        }
        self.scores.try_reserve(queries * PAGE_POSITIONS)?;
        for values in [&mut self.keys, &mut self.values] {
            values.try_reserve(head_dim * PAGE_POSITIONS)?;
        }
        Ok(())
    }

    /// Adds a query that sees the positions `visible` of its sequence. Neither end may precede that of the
    /// previous query.
    pub fn push(&mut self, query: &[f32], visible: Range<usize>) {
        self.queries.extend_from_slice(query);
        self.starts.push(visible.start);
        self.visible.push(visible.end);
    }

    /// Resets the accumulators of all queries.
    pub fn start(&mut self) {
        let (count, d, value_dim) = (self.visible.len(), self.head_dim, self.value_dim);
        self.states.clear();
        self.states.resize(count, AttentionState::EMPTY);
        self.out.resize(count * value_dim);
        self.out.fill(0.0);
        self.block.resize(count * value_dim);
        self.scores.resize(count * PAGE_POSITIONS);
        self.keys.resize(d * PAGE_POSITIONS);
        self.values.resize(d * PAGE_POSITIONS);
    }

    /// Divides the accumulators by the sums of weights and returns them, `[Q, value_dim]`. `sinks` are logits
    /// without values, repeated cyclically over the queries; empty means none.
    pub fn finish(&mut self, sinks: &[f32]) -> &[f32] {
        let each = self.out.chunks_exact_mut(self.value_dim.max(1)).zip(&mut self.states);
        for (index, (out, state)) in each.enumerate() {
            if !sinks.is_empty() {
                let factor = add_sink(state, sinks[index % sinks.len()]);
                out.iter_mut().for_each(|out| *out *= factor);
            }
            out.iter_mut().for_each(|out| *out /= state.sum);
        }
        &self.out
    }

    /// Returns the softmax states, for tests.
    pub fn states(&self) -> &[AttentionState] {
        &self.states
    }
}

/// Adds the page whose first position is `first` to the accumulators of all queries.
#[inline(always)]
pub(super) fn attend_page<V: Vector, const VECTORS: usize>(
    kv: KvBlock,
    first: usize,
    scale: f32,
    rows: &mut AttentionRows,
) {
    let (d, value_dim) = (rows.head_dim, rows.value_dim);
    // Queries ascend: the first ones may end before this page, and the last ones may start after it.
    let from = rows.visible.partition_point(|visible| *visible <= first);
    let to = rows.starts.partition_point(|start| *start < first + PAGE_POSITIONS).max(from);
    let visible = &rows.visible[from..to];
    let most = visible.last().map_or(0, |last| (last - first).min(PAGE_POSITIONS));
    let page = PageQueries {
        first,
        head_dim: d,
        value_dim,
        queries: &rows.queries[from * d..to * d],
        starts: &rows.starts[from..to],
        visible,
        states: &mut rows.states[from..to],
        out: &mut rows.out[from * value_dim..to * value_dim],
        scores: &mut rows.scores[..visible.len() * PAGE_POSITIONS],
        block: &mut rows.block,
    };
    let (factors, value_scales) = position_factors(kv, scale);
    if let KvBlock::F16 { keys, values } = kv
        && visible.len() <= MERGED
    {
        // Each element is used once, so that it is widened on use.
        return page.attend::<V, VECTORS, f16>(keys, values, factors, value_scales);
    }
    let (keys, values) = as_floats::<V>(kv, most, d, value_dim, &mut rows.keys, &mut rows.values);
    page.attend::<V, VECTORS, f32>(keys, values, factors, value_scales);
}

/// Queries that see positions of a page, with their accumulators.
struct PageQueries<'a> {
    first: usize,
    head_dim: usize,
    value_dim: usize,
    queries: &'a [f32],
    starts: &'a [usize],
    visible: &'a [usize],
    states: &'a mut [AttentionState],
    out: &'a mut [f32],
    scores: &'a mut [f32],
    block: &'a mut [f32],
}

impl PageQueries<'_> {
    /// Adds the page's keys, `[d, 64]`, and values, with rows of `d` elements.
    #[inline(always)]
    fn attend<V: Vector, const VECTORS: usize, B: Right>(
        self,
        keys: &[B],
        values: &[B],
        factors: [f32; PAGE_POSITIONS],
        value_scales: Option<&[f32]>,
    ) {
        let Self { first, head_dim: d, value_dim, starts, visible, .. } = self;
        let count = visible.len();
        self.scores.fill(0.0);
        let size = Size { rows: count, depth: d, cols: PAGE_POSITIONS };
        let queries = Strided { elements: self.queries, stride: d };
        let keys = Strided { elements: keys, stride: PAGE_POSITIONS };
        let scores = StridedMut { elements: &mut *self.scores, stride: PAGE_POSITIONS };
        product::<V, VECTORS, B>(size, queries, keys, scores);
        // Index loops: zips of many slices become calls that cost as much as the work itself.
        let mut merges = [[0.0f32; 2]; MERGED];
        for q in (0..count).step_by(MERGED) {
            let merged = MERGED.min(count - q);
            let scores = &mut self.scores[q * PAGE_POSITIONS..][..merged * PAGE_POSITIONS];
            for i in 0..merged {
                let end = (visible[q + i] - first).min(PAGE_POSITIONS);
                let visible = starts[q + i].saturating_sub(first)..end;
                let scores = &mut scores.as_chunks_mut::<PAGE_POSITIONS>().0[i];
                let state = &mut self.states[q + i];
                merges[i] = weigh(scores, visible, &factors, value_scales, state);
            }
            let block = &mut self.block[..merged * value_dim];
            let visible = &visible[q..q + merged];
            gather::<V, VECTORS, B>(scores, visible, first, values, d, block, value_dim);
            let out = &mut self.out[q * value_dim..][..merged * value_dim];
            for i in 0..merged {
                let (out, block) = (&mut out[i * value_dim..], &block[i * value_dim..]);
                merge_rows(&mut out[..value_dim], &block[..value_dim], merges[i]);
            }
        }
    }
}

/// Computes `out = fma(out, old, block * new)`.
#[inline(always)]
fn merge_rows(out: &mut [f32], block: &[f32], [old, new]: [f32; 2]) {
    for i in 0..out.len().min(block.len()) {
        out[i] = out[i].fused(old, block[i] * new);
    }
}

/// Returns the factor of each position's score, and the scales of the values if there are any.
#[inline(always)]
fn position_factors(kv: KvBlock<'_>, scale: f32) -> ([f32; PAGE_POSITIONS], Option<&[f32]>) {
    let mut factors = [scale; PAGE_POSITIONS];
    let KvBlock::Int8 { key_scales, value_scales, .. } = kv else { return (factors, None) };
    factors.iter_mut().zip(key_scales).for_each(|(factor, key_scale)| *factor = key_scale * scale);
    (factors, Some(value_scales))
}

/// Returns keys, `[d, 64]`, and the values of `positions` positions, with rows of `d` elements, as f32: in
/// place, or widened.
#[inline(always)]
fn as_floats<'a, V: Vector>(
    kv: KvBlock<'a>,
    positions: usize,
    d: usize,
    value_dim: usize,
    wide_keys: &'a mut [f32],
    wide_values: &'a mut [f32],
) -> (&'a [f32], &'a [f32]) {
    let most = positions * d;
    match kv {
        KvBlock::F32 { keys, values } => return (keys, values),
        KvBlock::F16 { keys, values } => {
            widen::<V>(keys, wide_keys);
            widen::<V>(&values[..most], wide_values);
        }
        KvBlock::Int8 { keys, values, .. } => {
            let values = &values[..most];
            wide_keys.iter_mut().zip(keys).for_each(|(to, from)| *to = f32::from(*from));
            wide_values.iter_mut().zip(values).for_each(|(to, from)| *to = f32::from(*from));
        }
        KvBlock::Shared(SharedRows::F32(rows)) => {
            transpose(&rows[..most], d, wide_keys);
            return (wide_keys, rows);
        }
        KvBlock::Shared(SharedRows::F16(rows)) => {
            widen::<V>(&rows[..most], wide_values);
            transpose(&wide_values[..most], d, wide_keys);
        }
        KvBlock::Shared(SharedRows::Int8 { rows, scales }) => {
            let rows =
                rows[..most].chunks_exact(d.max(1)).zip(wide_values.chunks_exact_mut(d.max(1)));
            for ((from, to), scales) in rows.zip(scales) {
                let scaled = |(to, from): (&mut f32, &i8), scale| *to = f32::from(*from) * scale;
                let (value, rest) = to.split_at_mut(value_dim);
                value.iter_mut().zip(from).for_each(|pair| scaled(pair, scales[0]));
                rest.iter_mut().zip(&from[value_dim..]).for_each(|pair| scaled(pair, scales[1]));
            }
            transpose(&wide_values[..most], d, wide_keys);
        }
    }
    (wide_keys, wide_values)
}

/// Number of columns that are transposed together. Their output fits in the first-level cache.
const TRANSPOSED: usize = 16;

/// Transposes up to 64 rows of `d` columns to a page, `[d, 64]`.
#[inline(always)]
fn transpose(rows: &[f32], d: usize, out: &mut [f32]) {
    for (part, out) in out.chunks_mut(TRANSPOSED * PAGE_POSITIONS).enumerate() {
        for (position, row) in rows.chunks_exact(d.max(1)).enumerate() {
            let columns = out.chunks_exact_mut(PAGE_POSITIONS).zip(&row[part * TRANSPOSED..]);
            columns.for_each(|(column, element)| column[position] = *element);
        }
    }
}

/// Number of queries whose weights are applied together.
const MERGED: usize = 4;

/// Converts scores to weights and returns the factors of the accumulators and of this block.
#[inline(always)]
fn weigh(
    scores: &mut [f32; PAGE_POSITIONS],
    visible: Range<usize>,
    factors: &[f32; PAGE_POSITIONS],
    value_scales: Option<&[f32]>,
    state: &mut AttentionState,
) -> [f32; 2] {
    for i in 0..PAGE_POSITIONS {
        scores[i] *= factors[i];
    }
    // A score of negative infinity gets weight zero and affects neither maximum nor sum.
    scores[..visible.start].fill(f32::NEG_INFINITY);
    scores[visible.end..].fill(f32::NEG_INFINITY);
    let block_max = math::max(scores);
    for score in scores.iter_mut() {
        *score = math::exp(*score - block_max);
    }
    let sum = math::sum(scores);
    if let Some(scales) = value_scales {
        scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= scale);
    }
    merge(state, block_max, sum)
}

/// Merges a block's maximum and sum into the state. Returns the factors of both.
#[inline(always)]
pub(super) fn merge(state: &mut AttentionState, block_max: f32, sum: f32) -> [f32; 2] {
    let both = if block_max > state.max { block_max } else { state.max };
    let (old, new) = (math::exp(state.max - both), math::exp(block_max - both));
    state.sum = state.sum.fused(old, sum * new);
    state.max = both;
    [old, new]
}

/// Adds a logit without a value. Returns the factor of the accumulators.
#[inline(always)]
pub(super) fn add_sink(state: &mut AttentionState, sink: f32) -> f32 {
    merge(state, sink, 1.0)[0]
}

/// Computes the weighted sum of the values that each query sees. Memory beyond them is unspecified and may
/// hold NaN, so that values visible to only some of the queries are added for each query separately.
#[inline(always)]
fn gather<V: Vector, const VECTORS: usize, B: Right>(
    weights: &[f32],
    visible: &[usize],
    first: usize,
    values: &[B],
    stride: usize,
    block: &mut [f32],
    d: usize,
) {
    block.fill(0.0);
    let seen = |visible: usize| (visible - first).min(PAGE_POSITIONS);
    let common = seen(visible.first().copied().unwrap_or(first));
    let size = Size { rows: visible.len(), depth: common, cols: d };
    let weights_of = |elements| Strided { elements, stride: PAGE_POSITIONS };
    let out = StridedMut { elements: &mut *block, stride: d };
    product::<V, VECTORS, B>(size, weights_of(weights), Strided { elements: values, stride }, out);
    for (row, visible) in visible.iter().enumerate() {
        let size = Size { rows: 1, depth: seen(*visible) - common, cols: d };
        if size.depth > 0 {
            let weights = weights_of(&weights[row * PAGE_POSITIONS + common..]);
            let values = Strided { elements: &values[common * stride..], stride };
            let out = StridedMut { elements: &mut block[row * d..], stride: d };
            product::<V, VECTORS, B>(size, weights, values, out);
        }
    }
}

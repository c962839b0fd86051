//! Attention of the query heads that share one head of keys and values, a page at a time.
//!
//! What a block of 64 positions gives does not depend on other blocks, and blocks are merged in
//! ascending order: a row's bits do not depend on what else is computed. For one query head:
//!
//! ```text
//! score[p]  = (Σ_i fma(query[i], key[i][p], ·)) * (key_scale[p] * scale)     i ascending
//! weight[p] = exp(score[p] - max score)
//! block[c]  = Σ_p fma(weight[p] * value_scale[p], value[p][c], ·)           p ascending
//! ```
//!
//! Keys lie transposed in their page, so that one query element is multiplied with 64 positions
//! and nothing is summed across lanes.

use half::f16;

use super::math;
use super::vector::{Size, Vector, product, widen};
use crate::kv_cache::PAGE_POSITIONS;

/// Keys and values of one head in one page.
#[derive(Clone, Copy, Debug)]
pub enum KvBlock<'a> {
    /// Floats.
    F32 {
        /// `[head_dim, 64]`.
        keys: &'a [f32],
        /// `[64, head_dim]`.
        values: &'a [f32],
    },
    /// Half floats.
    F16 {
        /// `[head_dim, 64]`.
        keys: &'a [f16],
        /// `[64, head_dim]`.
        values: &'a [f16],
    },
    /// Integers, each position with a scale for its key and one for its value.
    Int8 {
        /// `[head_dim, 64]`.
        keys: &'a [i8],
        /// `[64, head_dim]`.
        values: &'a [i8],
        /// `[64]`.
        key_scales: &'a [f32],
        /// `[64]`.
        value_scales: &'a [f32],
    },
}

/// What attention has gathered for one query head so far.
#[derive(Clone, Copy, Debug)]
pub struct AttentionState {
    /// Largest score of the blocks so far.
    pub max: f32,
    /// Sum of exp(score - max).
    pub sum: f32,
}

impl AttentionState {
    /// No block yet.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };
}

/// Query heads that share a head of keys and values, with what they gather and the memory for it.
/// Reused, it allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct AttentionRows {
    head_dim: usize,
    queries: Vec<f32>, // [Q, head_dim]
    /// Positions of the sequence that each query sees, ascending.
    visible: Vec<usize>, // [Q]
    states: Vec<AttentionState>, // [Q]
    out: Vec<f32>,     // [Q, head_dim]
    scores: Vec<f32>,  // [Q, 64]
    block: Vec<f32>,   // [Q, head_dim]
    keys: Vec<f32>,    // [head_dim, 64]
    values: Vec<f32>,  // [64, head_dim]
}

impl AttentionRows {
    /// Forgets all queries; the next ones have heads of this size.
    pub fn clear(&mut self, head_dim: usize) {
        self.head_dim = head_dim;
        self.queries.clear();
        self.visible.clear();
    }

    /// Makes room for so many queries.
    pub fn reserve(&mut self, queries: usize, head_dim: usize) {
        fn reserve<T>(values: &mut Vec<T>, count: usize) {
            values.reserve(count.saturating_sub(values.len()));
        }
        reserve(&mut self.queries, queries * head_dim);
        reserve(&mut self.visible, queries);
        reserve(&mut self.states, queries);
        reserve(&mut self.out, queries * head_dim);
        reserve(&mut self.scores, queries * PAGE_POSITIONS);
        reserve(&mut self.block, queries * head_dim);
        reserve(&mut self.keys, head_dim * PAGE_POSITIONS);
        reserve(&mut self.values, head_dim * PAGE_POSITIONS);
    }

    /// Adds a query that sees the first `visible` positions of its sequence, no fewer than the
    /// one before it.
    pub fn push(&mut self, query: &[f32], visible: usize) {
        self.queries.extend_from_slice(query);
        self.visible.push(visible);
    }

    /// Makes room for the results of all queries: nothing gathered yet.
    pub fn start(&mut self) {
        let (count, d) = (self.visible.len(), self.head_dim);
        self.states.clear();
        self.states.resize(count, AttentionState::EMPTY);
        self.out.clear();
        self.out.resize(count * d, 0.0);
        self.block.resize(count * d, 0.0);
        self.scores.resize(count * PAGE_POSITIONS, 0.0);
        self.keys.resize(d * PAGE_POSITIONS, 0.0);
        self.values.resize(d * PAGE_POSITIONS, 0.0);
    }

    /// Divides what was gathered by the sum of its weights and gives it, `[Q, head_dim]`.
    pub fn finish(&mut self) -> &[f32] {
        for (out, state) in self.out.chunks_exact_mut(self.head_dim.max(1)).zip(&self.states) {
            out.iter_mut().for_each(|out| *out /= state.sum);
        }
        &self.out
    }

    /// What was gathered so far: for tests.
    pub fn states(&self) -> &[AttentionState] {
        &self.states
    }
}

/// Adds the page whose first position is `first` to what every query has gathered.
#[inline(always)]
pub(super) fn attend_page<V: Vector, const VECTORS: usize>(
    kv: KvBlock,
    first: usize,
    scale: f32,
    rows: &mut AttentionRows,
) {
    let AttentionRows { head_dim: d, queries, visible, states, out, scores, block, .. } = rows;
    let d = *d;
    // Queries ascend: those that see nothing of this page come first.
    let from = visible.partition_point(|visible| *visible <= first);
    let (queries, visible) = (&queries[from * d..], &visible[from..]);
    let (states, out) = (&mut states[from..], &mut out[from * d..]);
    let count = visible.len();
    let most = visible.last().map_or(0, |last| (last - first).min(PAGE_POSITIONS));
    let (factors, value_scales) = position_factors(kv, scale);
    let wide = (&mut *rows.keys, &mut *rows.values);
    let (keys, values) = as_floats::<V>(kv, most * d, wide);
    let scores = &mut scores[..count * PAGE_POSITIONS];
    scores.fill(0.0);
    let size = Size { rows: count, depth: d, cols: PAGE_POSITIONS };
    let (left, right) = ((queries, d), (keys, PAGE_POSITIONS));
    product::<V, VECTORS>(size, left, right, (&mut *scores, PAGE_POSITIONS));
    let mut merges = [[0.0f32; 2]; MERGED];
    for (((scores, visible), states), (out, block)) in scores
        .chunks_mut(MERGED * PAGE_POSITIONS)
        .zip(visible.chunks(MERGED))
        .zip(states.chunks_mut(MERGED))
        .zip(out.chunks_mut(MERGED * d).zip(block.chunks_mut(MERGED * d)))
    {
        let each = scores.as_chunks_mut::<PAGE_POSITIONS>().0.iter_mut().zip(visible);
        for ((scores, visible), (state, merge)) in each.zip(states.iter_mut().zip(&mut merges)) {
            let visible = (visible - first).min(PAGE_POSITIONS);
            *merge = weigh(scores, visible, (&factors, value_scales), state);
        }
        let block = &mut block[..visible.len() * d];
        gather::<V, VECTORS>((scores, visible, first), (values, d), block);
        for ((out, block), merge) in out.chunks_exact_mut(d).zip(block.chunks_exact(d)).zip(&merges)
        {
            for (out, block) in out.iter_mut().zip(block) {
                *out = out.mul_add(merge[0], *block * merge[1]);
            }
        }
    }
}

/// What each position's score is multiplied with, and what its weight is.
#[inline(always)]
fn position_factors(kv: KvBlock<'_>, scale: f32) -> ([f32; PAGE_POSITIONS], Option<&[f32]>) {
    let mut factors = [scale; PAGE_POSITIONS];
    let KvBlock::Int8 { key_scales, value_scales, .. } = kv else { return (factors, None) };
    factors.iter_mut().zip(key_scales).for_each(|(factor, key_scale)| *factor = key_scale * scale);
    (factors, Some(value_scales))
}

/// Keys, and so many of the values, as floats: where they lie, or widened.
#[inline(always)]
fn as_floats<'a, V: Vector>(
    kv: KvBlock<'a>,
    most: usize,
    (wide_keys, wide_values): (&'a mut [f32], &'a mut [f32]),
) -> (&'a [f32], &'a [f32]) {
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
    }
    (wide_keys, wide_values)
}

/// Queries whose weights are applied together.
const MERGED: usize = 4;

/// Makes scores weights and gives the factors of what was gathered before and of this block.
#[inline(always)]
fn weigh(
    scores: &mut [f32; PAGE_POSITIONS],
    visible: usize,
    (factors, value_scales): (&[f32; PAGE_POSITIONS], Option<&[f32]>),
    state: &mut AttentionState,
) -> [f32; 2] {
    for (score, factor) in scores.iter_mut().zip(factors) {
        *score *= factor;
    }
    // The weight of a score of negative infinity is zero, and neither maximum nor sum see it.
    scores[visible..].fill(f32::NEG_INFINITY);
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

/// Adds a block's maximum and sum to what was gathered; gives the factors of both.
#[inline(always)]
pub(super) fn merge(state: &mut AttentionState, block_max: f32, sum: f32) -> [f32; 2] {
    let both = if block_max > state.max { block_max } else { state.max };
    let (old, new) = (math::exp(state.max - both), math::exp(block_max - both));
    state.sum = state.sum.mul_add(old, sum * new);
    state.max = both;
    [old, new]
}

/// The weighted sum of the values that each query sees. Beyond them may lie anything, NaN too, so
/// that what only some of the queries see is added for each alone.
#[inline(always)]
fn gather<V: Vector, const VECTORS: usize>(
    (weights, visible, first): (&[f32], &[usize], usize),
    (values, d): (&[f32], usize),
    block: &mut [f32],
) {
    block.fill(0.0);
    let seen = |visible: usize| (visible - first).min(PAGE_POSITIONS);
    let common = seen(visible.first().copied().unwrap_or(first));
    let size = Size { rows: visible.len(), depth: common, cols: d };
    product::<V, VECTORS>(size, (weights, PAGE_POSITIONS), (values, d), (&mut *block, d));
    for (row, visible) in visible.iter().enumerate() {
        let size = Size { rows: 1, depth: seen(*visible) - common, cols: d };
        if size.depth > 0 {
            let weights = &weights[row * PAGE_POSITIONS + common..];
            let values = &values[common * d..];
            let out = &mut block[row * d..];
            product::<V, VECTORS>(size, (weights, PAGE_POSITIONS), (values, d), (out, d));
        }
    }
}

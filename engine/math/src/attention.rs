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

use crate::aligned::{AlignedFloats, STEP};
use crate::fused::Fused;
use crate::math::{self, LANES};
use crate::product::{
    PageFloats, Size, Strided, StridedMut, Sums, page_max, page_sums, product, widen,
};
use crate::vector::{Right, Vector};

/// Number of positions of a page.
pub const PAGE_POSITIONS: usize = size_of::<PageFloats>() / size_of::<f32>();

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
    /// Factors of the accumulators and of the page.
    merges: Vec<[f32; 2]>, // [Q]
    panels: Panels,
    keys: AlignedFloats,   // [head_dim, 64]
    values: AlignedFloats, // [64, head_dim]
}

/// Working memory of a page.
#[derive(Clone, Debug, Default)]
struct Panels {
    wide: AlignedFloats,  // [max(head_dim, 64), 32]
    block: AlignedFloats, // [MERGED, value_dim]
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
        reserve(&mut self.merges, queries)?;
        for values in [&mut self.queries, &mut self.out] {
            values.try_reserve(queries * head_dim)?;
        }
        self.panels.wide.try_reserve(head_dim.max(PAGE_POSITIONS) * PANEL)?;
        self.panels.block.try_reserve(MERGED * head_dim)?;
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
        self.merges.clear();
        self.merges.resize(count, [0.0; 2]);
        self.panels.wide.resize(d.max(PAGE_POSITIONS) * PANEL);
        self.panels.block.resize(MERGED * value_dim);
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

/// Adds the page whose first position is `first` to the accumulators of all queries, and fetches the keys of the
/// page `next`.
#[inline(always)]
pub fn attend_page<V: Vector>(
    kv: KvBlock,
    next: Option<KvBlock>,
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
        merges: &mut rows.merges[..visible.len()],
        panels: &mut rows.panels,
    };
    let (factors, value_scales) = position_factors(kv, scale);
    match (kv, next) {
        (KvBlock::F32 { keys, values }, next) => {
            let next = if let Some(KvBlock::F32 { keys, .. }) = next { keys } else { &[] };
            page.attend::<V, f32>(keys, values, next, factors, None);
        }
        (KvBlock::F16 { keys, values }, next) => {
            let next = if let Some(KvBlock::F16 { keys, .. }) = next { keys } else { &[] };
            page.attend::<V, f16>(keys, values, next, factors, None);
        }
        (KvBlock::Int8 { keys, values, .. }, next) => {
            let next = if let Some(KvBlock::Int8 { keys, .. }) = next { keys } else { &[] };
            page.attend::<V, i8>(keys, values, next, factors, value_scales);
        }
        (KvBlock::Shared(shared), _) => {
            let (wide_keys, wide_values) = (&mut *rows.keys, &mut *rows.values);
            let (keys, values) =
                shared_floats::<V>(shared, most, d, value_dim, wide_keys, wide_values);
            page.attend::<V, f32>(keys, values, &[], factors, None);
        }
    }
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
    merges: &'a mut [[f32; 2]],
    panels: &'a mut Panels,
}

/// Maximum number of queries whose products convert elements of keys and values as they use them. For more queries,
/// panels are converted first.
const CONVERTING_MAX: usize = 16;

/// Number of columns of a panel of floats, which stays in the first-level cache while all queries use it.
const PANEL: usize = 32;

impl PageQueries<'_> {
    /// Adds the page's keys, `[d, 64]`, and values, with rows of `d` elements. Fetches `next` meanwhile.
    #[inline(always)]
    fn attend<V: Vector, B: Right>(
        mut self,
        keys: &[B],
        values: &[B],
        next: &[B],
        factors: PageFloats,
        value_scales: Option<&[f32]>,
    ) {
        self.score::<V, B>(keys, values);
        self.weigh::<V>(&factors, value_scales);
        self.gather::<V, B>(values, next);
    }

    /// Converts scores to weights, and merges their maxima and sums into the states.
    #[expect(clippy::needless_range_loop, reason = "zips of many slices become slow calls")]
    #[inline(always)]
    fn weigh<V: Vector>(&mut self, factors: &PageFloats, value_scales: Option<&[f32]>) {
        for q in 0..self.visible.len() {
            let end = self.seen(self.visible[q]);
            let scores = &mut self.scores.as_chunks_mut::<PAGE_POSITIONS>().0[q];
            for i in 0..PAGE_POSITIONS {
                scores[i] *= factors[i];
            }
            // A score of negative infinity gets weight zero and affects neither maximum nor sum.
            scores[..self.starts[q].saturating_sub(self.first)].fill(f32::NEG_INFINITY);
            scores[end..].fill(f32::NEG_INFINITY);
        }
        let groups = self.scores.chunks_mut(LANES * PAGE_POSITIONS);
        for (index, scores) in groups.enumerate() {
            let (mut maxima, mut sums) = ([0.0; LANES], [0.0; LANES]);
            let scores = scores.as_chunks_mut::<PAGE_POSITIONS>().0;
            let count = scores.len();
            for q in 0..count {
                maxima[q] = weights::<V>(&mut scores[q]);
            }
            for q in (0..count).step_by(SUMMED) {
                let last = count - 1;
                let rows = [q, q + 1, q + 2, q + 3].map(|q| &scores[q.min(last)]);
                sums[q..q + SUMMED].copy_from_slice(&page_sums::<V>(rows));
            }
            if let Some(scales) = value_scales {
                for q in 0..count {
                    for i in 0..PAGE_POSITIONS {
                        scores[q][i] *= scales[i];
                    }
                }
            }
            let states = &mut self.states[index * LANES..][..count];
            let merges = &mut self.merges[index * LANES..][..count];
            if count >= SUMMED {
                merge_all(states, &maxima, &sums, merges);
            } else {
                for q in 0..count {
                    merges[q] = merge(&mut states[q], maxima[q], sums[q]);
                }
            }
        }
    }

    /// Computes products of queries and keys. Those of positions that a query does not see are unspecified.
    #[inline(always)]
    fn score<V: Vector, B: Right>(&mut self, keys: &[B], ahead: &[B]) {
        let (d, count) = (self.head_dim, self.visible.len());
        if count <= CONVERTING_MAX {
            let size = Size { rows: count, depth: d, cols: PAGE_POSITIONS };
            let queries = Strided { elements: self.queries, stride: d };
            let keys = Strided { elements: keys, stride: PAGE_POSITIONS };
            let scores = StridedMut { elements: &mut *self.scores, stride: PAGE_POSITIONS };
            return product::<V, B, true>(size, queries, keys, ahead, scores, Sums::Set);
        }
        for col in (0..PAGE_POSITIONS).step_by(PANEL) {
            let first = self.first + col;
            let from = self.visible.partition_point(|visible| *visible <= first);
            let to = self.starts.partition_point(|start| *start < first + PANEL);
            if from >= to {
                continue;
            }
            let keys = Strided { elements: &keys[col..], stride: PAGE_POSITIONS };
            let wide = &mut self.panels.wide;
            let keys = panel::<V, B>(d, PANEL, keys, &ahead[col * d..], wide);
            let size = Size { rows: to - from, depth: d, cols: PANEL };
            let queries = Strided { elements: &self.queries[from * d..], stride: d };
            let scores = &mut self.scores[from * PAGE_POSITIONS + col..];
            let scores = StridedMut { elements: scores, stride: PAGE_POSITIONS };
            product::<V, f32, false>(size, queries, keys, &[], scores, Sums::Set);
        }
    }

    /// Adds the weighted sums of the values that the queries see to the accumulators.
    #[inline(always)]
    fn gather<V: Vector, B: Right>(&mut self, values: &[B], next: &[B]) {
        let d = self.head_dim;
        if self.visible.len() <= CONVERTING_MAX {
            let values = Strided { elements: values, stride: d };
            return self.gather_columns::<V, B, true>(0..self.value_dim, values, next);
        }
        // Default: there may be no queries.
        let most = self.visible.last().map_or(0, |last| self.seen(*last));
        let mut wide = std::mem::take(&mut self.panels.wide);
        for col in (0..self.value_dim).step_by(PANEL) {
            let cols = PANEL.min(self.value_dim - col);
            let values = Strided { elements: &values[col..], stride: d };
            // Default: there may be no next page.
            let ahead = next.get(col * PAGE_POSITIONS..).unwrap_or(&[]);
            let values = panel::<V, B>(most, cols, values, ahead, &mut wide);
            self.gather_columns::<V, f32, false>(col..col + cols, values, &[]);
        }
        self.panels.wide = wide;
    }

    /// Returns the number of positions of this page before the end of the visible positions.
    #[inline(always)]
    fn seen(&self, visible: usize) -> usize {
        (visible - self.first).min(PAGE_POSITIONS)
    }

    /// Adds columns of the weighted sums. Memory beyond the positions that a query sees is unspecified and may hold
    /// NaN, so that values visible to only some of the queries are added for each query separately.
    #[inline(always)]
    fn gather_columns<V: Vector, B: Right, const FETCH: bool>(
        &mut self,
        cols: Range<usize>,
        values: Strided<B>,
        ahead: &[B],
    ) {
        let count = self.visible.len();
        let mut q = 0;
        while q < count {
            let depth = self.seen(self.visible[q]);
            let same = self.visible[q..].partition_point(|visible| self.seen(*visible) == depth);
            if same >= MERGED || q + same == count {
                let size = Size { rows: same, depth, cols: cols.len() };
                let weights = &self.scores[q * PAGE_POSITIONS..];
                let weights = Strided { elements: weights, stride: PAGE_POSITIONS };
                let out = &mut self.out[q * self.value_dim + cols.start..];
                let out = StridedMut { elements: out, stride: self.value_dim };
                let merges = Sums::Merge(&self.merges[q..]);
                product::<V, B, FETCH>(size, weights, values, ahead, out, merges);
                q += same;
            } else {
                let rows = MERGED.min(count - q);
                self.gather_apart::<V, B, FETCH>(q..q + rows, cols.clone(), values, ahead);
                q += rows;
            }
        }
    }

    /// Adds columns of the weighted sums of a few queries that see different numbers of positions.
    #[inline(always)]
    fn gather_apart<V: Vector, B: Right, const FETCH: bool>(
        &mut self,
        rows: Range<usize>,
        cols: Range<usize>,
        values: Strided<B>,
        ahead: &[B],
    ) {
        let common = self.seen(self.visible[rows.start]);
        let weights_of = |elements| Strided { elements, stride: PAGE_POSITIONS };
        let width = cols.len();
        let size = Size { rows: rows.len(), depth: common, cols: width };
        let weights = weights_of(&self.scores[rows.start * PAGE_POSITIONS..]);
        let block = StridedMut { elements: &mut self.panels.block, stride: width };
        product::<V, B, FETCH>(size, weights, values, ahead, block, Sums::Set);
        for (index, q) in rows.enumerate() {
            let size = Size { rows: 1, depth: self.seen(self.visible[q]) - common, cols: width };
            let block = &mut self.panels.block[index * width..][..width];
            if size.depth > 0 {
                let weights = weights_of(&self.scores[q * PAGE_POSITIONS + common..]);
                let rest = &values.elements[common * values.stride..];
                let values = Strided { elements: rest, stride: values.stride };
                let block = StridedMut { elements: &mut *block, stride: width };
                product::<V, B, false>(size, weights, values, &[], block, Sums::Continue);
            }
            let out = &mut self.out[q * self.value_dim + cols.start..][..width];
            merge_rows(out, block, self.merges[q]);
        }
    }
}

/// Returns columns of keys or values as floats: in place, or converted to `wide`, `[rows, cols]`.
#[inline(always)]
fn panel<'a, V: Vector, B: Right>(
    rows: usize,
    cols: usize,
    from: Strided<'a, B>,
    ahead: &[B],
    wide: &'a mut [f32],
) -> Strided<'a, f32> {
    if let Some(elements) = B::floats(from.elements) {
        return Strided { elements, stride: from.stride };
    }
    widen::<V, B>(rows, cols, from, ahead, wide);
    Strided { elements: wide, stride: cols }
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
fn position_factors(kv: KvBlock<'_>, scale: f32) -> (PageFloats, Option<&[f32]>) {
    let mut factors = [scale; PAGE_POSITIONS];
    let KvBlock::Int8 { key_scales, value_scales, .. } = kv else { return (factors, None) };
    factors.iter_mut().zip(key_scales).for_each(|(factor, key_scale)| *factor = key_scale * scale);
    (factors, Some(value_scales))
}

/// Returns keys, `[d, 64]`, and the values of `positions` positions, with rows of `d` elements, as f32: in
/// place, or widened.
#[inline(always)]
fn shared_floats<'a, V: Vector>(
    shared: SharedRows<'a>,
    positions: usize,
    d: usize,
    value_dim: usize,
    wide_keys: &'a mut [f32],
    wide_values: &'a mut [f32],
) -> (&'a [f32], &'a [f32]) {
    let most = positions * d;
    match shared {
        SharedRows::F32(rows) => {
            transpose(&rows[..most], d, wide_keys);
            return (wide_keys, rows);
        }
        SharedRows::F16(rows) => {
            widen::<V, f16>(1, most, Strided { elements: rows, stride: most }, &[], wide_values);
            transpose(&wide_values[..most], d, wide_keys);
        }
        SharedRows::Int8 { rows, scales } => {
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

/// Number of queries whose weights are applied together where they see different numbers of positions.
const MERGED: usize = 4;

/// Number of queries whose weights are summed together.
const SUMMED: usize = 4;

/// Converts the scores of a query to weights and returns their maximum.
#[inline(always)]
fn weights<V: Vector>(scores: &mut PageFloats) -> f32 {
    let max = page_max::<V>(scores);
    for score in scores.iter_mut() {
        *score = math::exp(*score - max);
    }
    max
}

/// Merges the maxima and sums of a page into states. Writes the factors of the accumulators and of the page.
#[inline(always)]
fn merge_all(
    states: &mut [AttentionState],
    maxima: &[f32; LANES],
    sums: &[f32; LANES],
    merges: &mut [[f32; 2]],
) {
    // Unused lanes hold anything.
    let mut all = [AttentionState::EMPTY; LANES];
    all[..states.len()].copy_from_slice(states);
    let mut factors = [[0.0; LANES]; 2];
    let (mut max, mut sum) = (all.map(|state| state.max), all.map(|state| state.sum));
    for i in 0..LANES {
        let both = if maxima[i] > max[i] { maxima[i] } else { max[i] };
        factors[0][i] = math::exp(max[i] - both);
        factors[1][i] = math::exp(maxima[i] - both);
        sum[i] = sum[i].fused(factors[0][i], sums[i] * factors[1][i]);
        max[i] = both;
    }
    for i in 0..states.len() {
        states[i] = AttentionState { max: max[i], sum: sum[i] };
        merges[i] = [factors[0][i], factors[1][i]];
    }
}

/// Merges a block's maximum and sum into the state. Returns the factors of both.
#[inline(always)]
pub fn merge(state: &mut AttentionState, block_max: f32, sum: f32) -> [f32; 2] {
    let both = if block_max > state.max { block_max } else { state.max };
    let (old, new) = (math::exp(state.max - both), math::exp(block_max - both));
    state.sum = state.sum.fused(old, sum * new);
    state.max = both;
    [old, new]
}

/// Adds a logit without a value. Returns the factor of the accumulators.
#[inline(always)]
pub fn add_sink(state: &mut AttentionState, sink: f32) -> f32 {
    merge(state, sink, 1.0)[0]
}

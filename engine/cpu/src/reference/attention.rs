//! Attention, one head at a time.

use std::ops::Range;

use super::{Reference, ReferenceBuffer, ReferencePool};
use crate::attention::{self, AttentionState};
use crate::math;
use nestling_core::backend::{AttentionHeads, HeadNorm};
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{KvValues, PAGE_POSITIONS, PageId};

/// Implements [`Encoder::rope`](nestling_core::backend::Encoder::rope) with pages.
pub(super) fn rope_store(
    heads: &AttentionHeads<Reference>,
    rows: &StepRows,
    rope: &ReferenceBuffer,
    qkv: &mut ReferenceBuffer,
    kv: &mut ReferencePool,
) -> Result<(), EngineError> {
    let (g, d) = (heads.num_key_value_heads, heads.head_dim);
    let stored = match kv.shape().values {
        KvValues::Beside => 2 * g * d,
        KvValues::KeyPrefix(_) => g * d,
    };
    let h = if qkv.cols == stored { 0 } else { heads.num_attention_heads };
    rotate(heads, rope, qkv, h, g);
    if let Some(weight) = &heads.value_norm {
        for value in qkv.rows_mut().flat_map(|row| row[(h + g) * d..].chunks_exact_mut(d)) {
            math::rms_norm_in_place(value, weight, heads.eps);
        }
    }
    for (index, row) in qkv.rows().enumerate() {
        let (page, position) = place(rows, index)?;
        let (keys, values) = row[h * d..].split_at(g * d);
        match kv.shape().values {
            KvValues::Beside => kv.store(page, position, keys, values)?,
            KvValues::KeyPrefix(_) => kv.store_shared(page, position, keys)?,
        }
    }
    Ok(())
}

/// Implements [`Encoder::rope`](nestling_core::backend::Encoder::rope) without pages.
pub(super) fn rope_queries(
    heads: &AttentionHeads<Reference>,
    rope: &ReferenceBuffer,
    queries: &mut ReferenceBuffer,
) {
    rotate(heads, rope, queries, heads.num_attention_heads, 0);
}

/// Implements [`Encoder::attend`](nestling_core::backend::Encoder::attend).
pub(super) fn attend(
    heads: &AttentionHeads<Reference>,
    rows: &StepRows,
    qkv: &ReferenceBuffer,
    kv: &ReferencePool,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    let (h, g, d) = (heads.num_attention_heads, heads.num_key_value_heads, heads.head_dim);
    let value_dim = kv.shape().values.dim(d);
    out.resize(rows.len());
    for (index, (queries, attended)) in qkv.rows().zip(out.rows_mut()).enumerate() {
        let end = rows.positions[index] as usize + 1;
        let visible = end.saturating_sub(heads.sliding_window.unwrap_or(end))..end;
        let pages = &rows.pages[rows.sequences[index] as usize];
        let queries = queries[..h * d].chunks_exact(d);
        let outs = attended.chunks_exact_mut(value_dim);
        for (head, (query, out)) in queries.zip(outs).enumerate() {
            let sink = heads.sinks.as_ref().map(|sinks| sinks[head]);
            let kv_head = HeadPages { kv, pages, head: head * g / h };
            attend_head(heads.scale, query, kv_head, visible.clone(), sink, out)?;
        }
    }
    Ok(())
}

fn place(rows: &StepRows, index: usize) -> Result<(PageId, usize), EngineError> {
    rows.place(index).ok_or_else(|| EngineError::mismatch("page of a row", "a page", "none"))
}

/// Normalizes and rotates the first heads of each row: queries, then keys.
fn rotate(
    heads: &AttentionHeads<Reference>,
    rope: &ReferenceBuffer,
    x: &mut ReferenceBuffer,
    queries: usize,
    keys: usize,
) {
    let d = heads.head_dim;
    for (row, angles) in x.rows_mut().zip(rope.rows()) {
        let (cos, sin) = angles.split_at(angles.len() / 2);
        let (queries, rest) = row.split_at_mut(queries * d);
        for (x, norm) in [(queries, &heads.query_norm), (&mut rest[..keys * d], &heads.key_norm)] {
            if let (HeadNorm::FullWidth(weight), false) = (norm, x.is_empty()) {
                math::rms_norm_in_place(x, weight, heads.eps);
            }
            for x in x.chunks_exact_mut(d) {
                if let HeadNorm::PerHead(weight) = norm {
                    math::rms_norm_in_place(&mut x[..weight.len()], weight, heads.eps);
                }
                math::rope(heads.rope_pairs, &mut x[heads.rope_first..][..angles.len()], cos, sin);
                if let HeadNorm::PerHeadAfterRope(weight) = norm {
                    math::rms_norm_in_place(&mut x[..weight.len()], weight, heads.eps);
                }
            }
        }
    }
}

/// One KV head in the pages of a sequence.
#[derive(Clone, Copy)]
struct HeadPages<'a> {
    kv: &'a ReferencePool,
    pages: &'a [PageId],
    head: usize,
}

/// Computes attention of one query head over the `visible` positions.
fn attend_head(
    scale: f32,
    query: &[f32],
    kv_head: HeadPages,
    visible: Range<usize>,
    sink: Option<f32>,
    out: &mut [f32],
) -> Result<(), EngineError> {
    let HeadPages { kv, pages, head } = kv_head;
    let mut state = AttentionState::EMPTY;
    for (first, &page) in (0..visible.end).step_by(PAGE_POSITIONS).zip(pages) {
        let seen = visible.start.max(first)..visible.end.min(first + PAGE_POSITIONS);
        if seen.is_empty() {
            continue;
        }
        let positions = (0..seen.end - first)
            .map(|position| kv.at(page, position, head))
            .collect::<Result<Vec<_>, _>>()?;
        let mut weights: Vec<f32> = (first..)
            .zip(&positions)
            .map(|(position, at)| {
                if position < seen.start {
                    return f32::NEG_INFINITY;
                }
                let products = at.key.iter().zip(query);
                let dot = products.fold(0.0, |sum, (key, query)| query.mul_add(*key, sum));
                dot * (at.key_scale * scale)
            })
            .collect();
        let block_max = math::max(&weights);
        weights.iter_mut().for_each(|weight| *weight = math::exp(*weight - block_max));
        let [old, new] = attention::merge(&mut state, block_max, math::sum(&weights));
        for (index, out) in out.iter_mut().enumerate() {
            let block = weights.iter().zip(&positions).fold(0.0, |sum, (weight, at)| {
                (weight * at.value_scale).mul_add(at.value[index], sum)
            });
            *out = out.mul_add(old, block * new);
        }
    }
    let factor = sink.map_or(1.0, |sink| attention::add_sink(&mut state, sink));
    out.iter_mut().for_each(|out| *out = *out * factor / state.sum);
    Ok(())
}

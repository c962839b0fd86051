//! Attention: rows and key heads are independent of each other.

use super::expect;
use crate::backend::AttentionHeads;
use crate::batch::StepRows;
use crate::cpu::device::{Cpu, CpuBuffer, Team};
use crate::cpu::math::{self, AttentionState};
use crate::cpu::pages::CpuPool;
use crate::error::EngineError;
use crate::kv_cache::{PAGE_POSITIONS, PageId};

fn page_missing() -> EngineError {
    EngineError::mismatch("page of a row", "a page", "none")
}

/// Norms and rotates queries and keys, then stores keys and values.
pub(super) fn rope_store(
    team: &Team,
    (heads, rows): (&AttentionHeads<Cpu>, &StepRows),
    rope: &CpuBuffer,
    qkv: &mut CpuBuffer,
    kv: &mut CpuPool,
) -> Result<(), EngineError> {
    let (h, g, d) = (heads.num_attention_heads, heads.num_key_value_heads, heads.head_dim);
    expect("columns of queries, keys and values", (h + 2 * g) * d, qkv.cols)?;
    expect("rows of angles", rows.len(), rope.row_count())?;
    expect("rows of queries", rows.len(), qkv.row_count())?;
    expect("columns of angles", 0, usize::from(rope.cols > d))?;
    for weight in heads.query_norm.iter().chain(&heads.key_norm) {
        expect("head norm", d, weight.len())?;
    }
    let (cols, angles) = (qkv.cols.max(1), rope.cols.max(1));
    let chunk = team.rows_per_part(rows.len(), cols);
    let outputs = qkv.values.chunks_mut(chunk * cols);
    let mut parts: Vec<_> = outputs.zip(rope.values.chunks(chunk * angles)).collect();
    team.pool.for_each_mut(&mut parts, &|_, (qkv, rope)| {
        for (row, angles) in qkv.chunks_mut(cols).zip(rope.chunks(angles)) {
            let (cos, sin) = angles.split_at(angles.len() / 2);
            for (head, x) in row[..(h + g) * d].chunks_exact_mut(d).enumerate() {
                let norm = if head < h { &heads.query_norm } else { &heads.key_norm };
                if let Some(weight) = norm {
                    team.kernels.rms_norm_in_place(x, weight, heads.eps);
                }
                math::rope(&mut x[..angles.len()], cos, sin);
            }
        }
    });
    for (index, row) in qkv.values.chunks(cols).enumerate() {
        let (page, position) = rows.place(index).ok_or_else(page_missing)?;
        let (keys, values) = row[h * d..].split_at(g * d);
        kv.store(page, position, keys, values)?;
    }
    Ok(())
}

/// The heads of one row that share keys and values.
struct Part<'a> {
    queries: &'a [f32],
    out: &'a mut [f32],
    pages: &'a [PageId],
    kv_head: usize,
    visible: usize,
}

/// Causal attention over the pages.
pub(super) fn attend(
    team: &Team,
    (heads, rows): (&AttentionHeads<Cpu>, &StepRows),
    qkv: &CpuBuffer,
    kv: &CpuPool,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    let (h, g, d) = (heads.num_attention_heads, heads.num_key_value_heads, heads.head_dim);
    expect("columns of queries, keys and values", (h + 2 * g) * d, qkv.cols)?;
    expect("attended columns", h * d, out.cols)?;
    expect("rows of queries", rows.len(), qkv.row_count())?;
    expect("query heads for each key head", 0, h.checked_rem(g).unwrap_or(1))?;
    out.resize(rows.len());
    let width = h / g * d;
    let mut parts = Vec::with_capacity(rows.len() * g);
    let outputs = out.values.chunks_mut((h * d).max(1));
    for (index, (queries, out)) in qkv.values.chunks(qkv.cols.max(1)).zip(outputs).enumerate() {
        rows.place(index).ok_or_else(page_missing)?;
        let visible = rows.positions[index] as usize + 1;
        let pages = &rows.pages[rows.sequences[index] as usize];
        let pages = &pages[..visible.div_ceil(PAGE_POSITIONS)];
        pages.iter().try_for_each(|page| kv.check(*page))?;
        let both = queries[..h * d].chunks(width).zip(out.chunks_mut(width));
        for (kv_head, (queries, out)) in both.enumerate() {
            parts.push(Part { queries, out, pages, kv_head, visible });
        }
    }
    team.pool.for_each_mut(&mut parts, &|_, part| {
        let mut block = vec![0.0; d];
        for (query, out) in part.queries.chunks(d).zip(part.out.chunks_mut(d)) {
            out.fill(0.0);
            let mut both = (AttentionState::EMPTY, &mut *out);
            for (index, page) in part.pages.iter().enumerate() {
                let positions = PAGE_POSITIONS.min(part.visible - index * PAGE_POSITIONS);
                let mut scores = [0.0; PAGE_POSITIONS];
                let buffers = (&mut scores[..positions], &mut *block);
                let kv = kv.head(*page, part.kv_head, positions);
                team.kernels.attend_block(query, kv, heads.scale, buffers, &mut both);
            }
            math::attend_finish(both.0, out);
        }
    });
    Ok(())
}

//! Attention: heads are normed and rotated, stored in pages, and gathered from them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::{AttentionHeads, HeadNorm};
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS};
use nestling_gpu::{
    HeadCounts, PageLayout, PageLists, WorkKind, expect, pieces, place_of, seen_positions, work_of,
};
use nestling_import::RopePairs;

use super::Tools;
use crate::backend::WgpuBackend;
use crate::memory::{WgpuBuffer, WgpuFloats, word};
use crate::pages::{CHUNKS, WgpuPages};
use crate::pipelines::{Pipeline, Pipelines};
use crate::recorder::{Binding, Cost, spread};

type Heads = AttentionHeads<WgpuBackend>;

pub(super) fn rope_store(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    rope: &WgpuBuffer,
    qkv: &WgpuBuffer,
    kv: &mut WgpuPages,
) -> Result<(), EngineError> {
    let counts = HeadCounts::of(heads);
    let queries = counts.stored_queries(&kv.shape, qkv.cols)?;
    rotate(tools, (heads, rows), rope, qkv, (queries, counts.keys))?;
    if let Some(weight) = &heads.value_norm {
        let parts = counts.value_parts((queries, qkv.cols), weight.len)?;
        norm_parts(tools, (weight, heads.eps), qkv, parts)?;
    }
    store(tools, rows, (qkv, queries * counts.dim), kv)
}

pub(super) fn rope_queries(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    rope: &WgpuBuffer,
    queries: &WgpuBuffer,
) -> Result<(), EngineError> {
    expect("columns of queries", heads.num_attention_heads * heads.head_dim, queries.cols)?;
    rotate(tools, (heads, rows), rope, queries, (heads.num_attention_heads, 0))
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct RopeParams {
    count: u32,
    queries: u32,
    keys: u32,
    stride: u32,
    head_dim: u32,
    rope_first: u32,
    rope_dims: u32,
    adjacent: u32,
    query_norm: u32,
    key_norm: u32,
    eps: f32,
}

/// Norms and rotates the first heads of every row: queries, then keys.
fn rotate(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    rope: &WgpuBuffer,
    x: &WgpuBuffer,
    (queries, keys): (usize, usize),
) -> Result<(), EngineError> {
    let d = heads.head_dim;
    expect("rows of angles", rows.len(), rope.rows)?;
    expect("rows of queries", rows.len(), x.rows)?;
    expect("columns of angles", 0, usize::from(heads.rope_first + rope.cols > d))?;
    for (norm, first, count) in [(&heads.query_norm, 0, queries), (&heads.key_norm, queries, keys)]
    {
        match norm {
            HeadNorm::PerHead(weight) => expect("head norm", 0, usize::from(weight.len > d))?,
            HeadNorm::FullWidth(weight) if count > 0 => {
                expect("norm of all heads", count * d, weight.len)?;
                norm_parts(tools, (weight, heads.eps), x, (first * d, 1))?;
            }
            HeadNorm::FullWidth(_) | HeadNorm::Absent => {}
        }
    }
    let norms = [per_head(&heads.query_norm), per_head(&heads.key_norm)];
    let count = rows.len() * (queries + keys);
    let length = |norm: Option<&WgpuFloats>| word("norm", norm.map_or(0, |weight| weight.len));
    let params = RopeParams {
        count: word("heads of a step", count)?,
        queries: word("query heads", queries)?,
        keys: word("key heads", keys)?,
        stride: word("columns", x.cols)?,
        head_dim: word("elements of a head", d)?,
        rope_first: word("first rotated element", heads.rope_first)?,
        rope_dims: word("rotated elements", rope.cols)?,
        adjacent: u32::from(matches!(heads.rope_pairs, RopePairs::Adjacent)),
        query_norm: length(norms[0])?,
        key_norm: length(norms[1])?,
        eps: heads.eps,
    };
    // In place of a norm that is not there, anything that is only read.
    let weight = |norm: Option<&WgpuFloats>| norm.map_or(rope.binding(), WgpuFloats::binding);
    let bindings = [rope.binding(), weight(norms[0]), weight(norms[1]), x.binding()];
    let cost = (spread(count), 4 * (count * d) as u64);
    Ok(tools.recorder.dispatch(&tools.pipelines.rope, &bindings, &params, cost)?)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct NormParams {
    count: u32,
    parts: u32,
    row_stride: u32,
    part_stride: u32,
    first: u32,
    length: u32,
    eps: f32,
}

/// Norms so many parts of every row in place, from a column on.
fn norm_parts(
    tools: &mut Tools<'_>,
    (weight, eps): (&WgpuFloats, f32),
    x: &WgpuBuffer,
    (first, parts): (usize, usize),
) -> Result<(), EngineError> {
    let count = x.rows * parts;
    let length = word("norm", weight.len)?;
    let params = NormParams {
        count: word("parts of a step", count)?,
        parts: word("parts of a row", parts.max(1))?,
        row_stride: word("columns", x.cols)?,
        part_stride: length,
        first: word("first column", first)?,
        length,
        eps,
    };
    let cost = (spread(count), 2 * (count * weight.len) as u64);
    let bindings = [weight.binding(), x.binding()];
    Ok(tools.recorder.dispatch(&tools.pipelines.norm_part, &bindings, &params, cost)?)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct StoreParams {
    rows: u32,
    heads: u32,
    stride: u32,
    first: u32,
    head_dim: u32,
    prefix: u32,
    page_words: u32,
    head_words: u32,
    value_first: u32,
    scale_first: u32,
}

/// Stores keys and values, which begin at a column.
fn store(
    tools: &mut Tools<'_>,
    rows: &StepRows,
    (qkv, first): (&WgpuBuffer, usize),
    kv: &mut WgpuPages,
) -> Result<(), EngineError> {
    let mut places: [Vec<[u32; 2]>; CHUNKS] = Default::default();
    for row in 0..rows.len() {
        let (page, position) = place_of(rows, row)?;
        kv.prepare(page)?;
        let (chunk, page) = kv.chunk_of(page);
        let position = word("position in a buffer of pages", page * PAGE_POSITIONS + position)?;
        places[chunk].push([word("rows", row)?, position]);
    }
    let (shape, layout) = (kv.shape, PageLayout::of(&kv.shape));
    let prefix = match shape.values {
        KvValues::Beside => 0,
        KvValues::KeyPrefix(dim) => dim,
    };
    let pipeline = match shape.dtype {
        KvDtype::F16 => &tools.pipelines.kv_store_f16,
        KvDtype::Int8 => &tools.pipelines.kv_store_int8,
        _ => &tools.pipelines.kv_store_f32,
    };
    for (chunk, places) in places.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
        let params = StoreParams {
            rows: word("rows", places.len())?,
            heads: word("key heads", shape.num_key_value_heads)?,
            stride: word("columns", qkv.cols)?,
            first: word("first column", first)?,
            head_dim: word("elements of a head", shape.head_dim)?,
            prefix: word("elements of a value", prefix)?,
            page_words: word("words of a page", layout.page_words)?,
            head_words: word("words of a head", layout.head_words)?,
            value_first: word("words of keys", layout.value_first)?,
            scale_first: word("words of a page", layout.scale_first)?,
        };
        let count = places.len() * shape.num_key_value_heads;
        let table = tools.recorder.table(places)?;
        let bindings = [qkv.binding(), table, kv.chunk(chunk)];
        let cost = (spread(count), 2 * (count * shape.head_dim) as u64);
        tools.recorder.dispatch(pipeline, &bindings, &params, cost)?;
    }
    Ok(())
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct AttendParams {
    first: u32,
    end: u32,
    heads: u32,
    sharing: u32,
    stride: u32,
    head_dim: u32,
    value_dim: u32,
    window: u32,
    has_sinks: u32,
    scale: f32,
    page_words: u32,
    head_words: u32,
    value_first: u32,
    value_position: u32,
    value_word: u32,
    prefix_words: u32,
    scale_first: u32,
    chunk_pages: u32,
    blocks: u32,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct MergeParams {
    first: u32,
    end: u32,
    heads: u32,
    value_dim: u32,
    window: u32,
    blocks: u32,
    has_sinks: u32,
}

/// Positions of a block: what is merged before blocks are. The same as `BLOCK_PAGES` of the shaders.
const BLOCK_POSITIONS: usize = 8 * PAGE_POSITIONS;

/// Heads of rows from which on a workgroup for each keeps a device busy.
const BUSY: usize = 512;

/// Most elements of what blocks leave to be merged.
const PARTS_MAX: usize = 1 << 24;

/// Most bytes of what blocks leave, in these pages.
pub(crate) fn parts_bytes_max(shape: &KvShape) -> u64 {
    let blocks = shape.pages * PAGE_POSITIONS / BLOCK_POSITIONS + 1;
    let value_dim = shape.values.dim(shape.head_dim);
    4 * (BUSY * blocks * (2 + value_dim)).min(PARTS_MAX) as u64
}

pub(super) fn attend(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    queries: &WgpuBuffer,
    kv: &WgpuPages,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    let counts = HeadCounts::of(heads);
    let sinks = heads.sinks.as_ref().map(|sinks| sinks.len);
    let shapes = (rows.len(), (queries.rows, queries.cols));
    counts.check_attended(&kv.shape, shapes, (out.cols, sinks))?;
    let HeadCounts { queries: h, dim: d, .. } = counts;
    let value_dim = kv.shape.values.dim(d);
    out.resize(tools.gpu, rows.len())?;
    let table = tables(rows, kv)?;
    // The same blocks are merged in the same order by one workgroup or by several.
    let last = rows.positions.iter().max().map_or(0, |position| *position as usize);
    let blocks = last / BLOCK_POSITIONS + 1;
    let params = attend_params((heads, rows), queries, (kv, blocks))?;
    let work =
        |position: &u32| work_of(&[seen_positions(*position, heads.sliding_window), d + value_dim]);
    let work: Vec<u64> = rows.positions.iter().map(work).collect();
    let most = tools.recorder.rates.launch_work(WorkKind::Attention);
    for piece in attended_together((&work, h), most, (blocks, 2 + value_dim)) {
        let work = (piece.clone()).map(|at| work[at / h]).fold(0, u64::saturating_add);
        attend_some(tools, (heads, &params, &table), (queries, kv, out), (piece, work))?;
    }
    Ok(())
}

/// Heads of rows, numbered row by row, in pieces that one dispatch attends for: of so much work at the most,
/// and, where each of their blocks gets a workgroup, of so many elements that those leave. `work` is that of
/// every row for one head.
fn attended_together(
    (work, heads): (&[u64], usize),
    work_max: u64,
    (blocks, elements): (usize, usize),
) -> Vec<Range<usize>> {
    let each = |work: &u64| std::iter::repeat_n(*work, heads);
    let all = work.iter().fold(0, |sum: u64, work| sum.saturating_add(*work));
    let pieces = if all.saturating_mul(heads as u64) <= work_max {
        std::iter::once(0..work.len() * heads).collect()
    } else {
        pieces(work.iter().flat_map(each), work_max)
    };
    let parts_max = (PARTS_MAX / (blocks * elements).max(1)).max(1);
    let mut cut = Vec::new();
    for piece in pieces {
        let at_once = if is_split(piece.len(), blocks) { parts_max } else { piece.len().max(1) };
        for start in piece.clone().step_by(at_once) {
            cut.push(start..piece.end.min(start + at_once));
        }
    }
    cut
}

/// Whether so few heads of rows see so many blocks that each of these gets a workgroup.
fn is_split(count: usize, blocks: usize) -> bool {
    blocks > 1 && count < BUSY
}

/// Attention for some heads of rows, of so much work.
fn attend_some(
    tools: &mut Tools<'_>,
    (heads, params, table): (&Heads, &AttendParams, &[u32]),
    (queries, kv, out): (&WgpuBuffer, &WgpuPages, &WgpuBuffer),
    (piece, work): (Range<usize>, u64),
) -> Result<(), EngineError> {
    let blocks = params.blocks as usize;
    let is_split = is_split(piece.len(), blocks);
    let parts = piece.len() * blocks * (2 + params.value_dim as usize);
    let [first, end] = [piece.start, piece.end].map(|head| word("heads of a step", head));
    let params = AttendParams { first: first?, end: end?, ..*params };
    let pipeline = attend_pipeline(tools.pipelines, kv.shape.dtype, is_split);
    let given = if is_split { tools.scratch.parts.of(tools.gpu, parts)? } else { out.binding() };
    let sinks = heads.sinks.as_ref().map_or(queries.binding(), WgpuFloats::binding);
    let [chunk_0, chunk_1, chunk_2, chunk_3] = kv.bindings();
    let bindings = [
        queries.binding(),
        tools.recorder.table(table)?,
        sinks.clone(),
        chunk_0,
        chunk_1,
        chunk_2,
        chunk_3,
        given.clone(),
    ];
    let workgroups = spread(piece.len() * if is_split { blocks } else { 1 });
    let cost = Cost { workgroups, kind: WorkKind::Attention, work };
    tools.recorder.dispatch(pipeline, &bindings, &params, cost)?;
    if is_split {
        let places = tools.recorder.table(&table[..2 * queries.rows])?;
        merge(tools, (&params, piece.len()), &[places, sinks, given, out.binding()])?;
    }
    Ok(())
}

fn attend_pipeline(pipelines: &Pipelines, dtype: KvDtype, is_split: bool) -> &Pipeline {
    match (dtype, is_split) {
        (KvDtype::F16, false) => &pipelines.attend_f16,
        (KvDtype::F16, true) => &pipelines.attend_split_f16,
        (KvDtype::Int8, false) => &pipelines.attend_int8,
        (KvDtype::Int8, true) => &pipelines.attend_split_int8,
        (_, false) => &pipelines.attend_f32,
        (_, true) => &pipelines.attend_split_f32,
    }
}

/// Merges what the blocks of so many heads of rows left.
fn merge(
    tools: &mut Tools<'_>,
    (of, count): (&AttendParams, usize),
    bindings: &[Binding],
) -> Result<(), EngineError> {
    let params = MergeParams {
        first: of.first,
        end: of.end,
        heads: of.heads,
        value_dim: of.value_dim,
        window: of.window,
        blocks: of.blocks,
        has_sinks: of.has_sinks,
    };
    let cost = (spread(count), count as u64 * u64::from(of.blocks) * u64::from(of.value_dim));
    Ok(tools.recorder.dispatch(&tools.pipelines.attend_merge, bindings, &params, cost)?)
}

fn attend_params(
    (heads, rows): (&Heads, &StepRows),
    queries: &WgpuBuffer,
    (kv, blocks): (&WgpuPages, usize),
) -> Result<AttendParams, EngineError> {
    let (h, d) = (heads.num_attention_heads, heads.head_dim);
    let layout = PageLayout::of(&kv.shape);
    Ok(AttendParams {
        first: 0,
        end: word("heads of a step", rows.len() * h)?,
        heads: word("query heads", h)?,
        sharing: word("query heads", h / heads.num_key_value_heads.max(1))?,
        stride: word("columns", queries.cols)?,
        head_dim: word("elements of a head", d)?,
        value_dim: word("elements of a value", kv.shape.values.dim(d))?,
        window: heads
            .sliding_window
            .map_or(u32::MAX, |size| u32::try_from(size).unwrap_or(u32::MAX)),
        has_sinks: u32::from(heads.sinks.is_some()),
        scale: heads.scale,
        page_words: word("words of a page", layout.page_words)?,
        head_words: word("words of a head", layout.head_words)?,
        value_first: word("words of keys", layout.value_first)?,
        value_position: word("words of a value", layout.value_strides[0])?,
        value_word: word("words of a value", layout.value_strides[1])?,
        prefix_words: word("words of a value", layout.prefix_words)?,
        scale_first: word("words of a page", layout.scale_first)?,
        chunk_pages: word("pages", kv.chunk_pages)?,
        blocks: word("blocks of pages", blocks)?,
    })
}

/// For each row its position and where the pages of its sequence begin, then the pages.
fn tables(rows: &StepRows, kv: &WgpuPages) -> Result<Vec<u32>, EngineError> {
    let PageLists { first, pages, .. } = PageLists::of(rows)?;
    pages.iter().try_for_each(|page| kv.check(*page))?;
    let mut table = Vec::with_capacity(2 * rows.len() + pages.len());
    for (position, first) in rows.positions.iter().zip(first) {
        table.extend([*position, word("pages of a step", 2 * rows.len() + first)?]);
    }
    table.extend(pages.iter().map(|page| page.0));
    Ok(table)
}

fn per_head(norm: &HeadNorm<WgpuBackend>) -> Option<&WgpuFloats> {
    match norm {
        HeadNorm::PerHead(weight) => Some(weight),
        HeadNorm::FullWidth(_) | HeadNorm::Absent => None,
    }
}

//! Attention: rotates heads, stores keys and values in KV pages, and attends over them.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{KvDtype, KvShape, PAGE_POSITIONS};
use nestling_gpu::{
    Attend, ChunkPage, CommandRecorder, DeviceScratch, GpuFloats, GpuPages, PageLayout, PageLists,
    Rope, ScratchRoom, StoreKeys, WorkKind, pieces, place_of, seen_positions, word, work_of,
};

use crate::backend::WgpuBackend;
use crate::params::{AttendMergeParams, AttendParams, KvStoreParams, RopeParams};
use crate::pipelines::{Pipeline, Pipelines};
use crate::recorder::{Binding, Cost, spread};
use crate::storage::CHUNKS;

pub(super) fn rope(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    of: &Rope<Binding>,
) -> Result<(), EngineError> {
    let sizes = &of.sizes;
    let count = of.rows as usize * (sizes.queries + sizes.keys) as usize;
    let norms = [&of.query_norm, &of.key_norm];
    let [query_norm, key_norm] = norms.map(|norm| norm.as_ref().map_or(0, |norm| norm.length));
    let params = RopeParams {
        count: word("heads of a step", count)?,
        queries: sizes.queries,
        keys: sizes.keys,
        stride: sizes.stride,
        head_dim: sizes.head_dim,
        rope_first: sizes.rope_first,
        rope_dims: sizes.rope_dims,
        adjacent: u32::from(of.is_adjacent),
        query_norm,
        key_norm,
        late_norms: of.late_norm_bits(),
        eps: of.eps,
    };
    // A missing norm is replaced by any read-only binding.
    let [query_norm, key_norm] =
        norms.map(|norm| norm.as_ref().map_or(&of.angles, |norm| &norm.binding).clone());
    let bindings = [of.angles.clone(), query_norm, key_norm, of.x.clone()];
    let cost = Cost::elements(spread(count), 4 * (count * sizes.head_dim as usize) as u64);
    Ok(recorder.dispatch(&pipelines.rope, &bindings, &params, cost)?)
}

/// Stores keys and values, one dispatch for each chunk of pages.
pub(super) fn store(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    StoreKeys { rows, x, sizes, pages, words }: &StoreKeys<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let mut places: [Vec<[u32; 2]>; CHUNKS] = Default::default();
    for row in 0..rows.len() {
        let (page, position) = place_of(rows, row)?;
        let ChunkPage { chunk, page } = pages.chunk_page(page);
        let position = word("position in a buffer of pages", page * PAGE_POSITIONS + position)?;
        places[chunk].push([word("rows", row)?, position]);
    }
    let (shape, layout) = (pages.shape, PageLayout::of(&pages.shape));
    let pipeline = match shape.dtype {
        KvDtype::F16 => &pipelines.kv_store_f16,
        KvDtype::Int8 => &pipelines.kv_store_int8,
        _ => &pipelines.kv_store_f32,
    };
    for (chunk, places) in places.iter().enumerate().filter(|(_, places)| !places.is_empty()) {
        let params = KvStoreParams {
            rows: word("rows", places.len())?,
            heads: sizes.heads,
            stride: sizes.stride,
            first: sizes.first,
            head_dim: sizes.head_dim,
            prefix: sizes.prefix,
            page_words: word("words of a page", layout.page_words)?,
            head_words: words.head_words,
            value_first: words.value_first,
            scale_first: words.scale_first,
        };
        let count = places.len() * shape.num_key_value_heads;
        let table = recorder.table(places)?;
        let memory = pages.chunk(chunk).ok_or_else(|| {
            EngineError::mismatch("chunk of pages", "one that is prepared", chunk)
        })?;
        let cost = Cost::elements(spread(count), 2 * (count * shape.head_dim) as u64);
        recorder.dispatch(pipeline, &[x.binding(), table, memory], &params, cost)?;
    }
    Ok(())
}

/// Positions of a block, the unit of split attention. Equals `BLOCK_PAGES` of the shaders.
const BLOCK_POSITIONS: usize = 8 * PAGE_POSITIONS;

/// Number of heads of rows from which one workgroup each keeps a device busy.
const BUSY: usize = 512;

/// Maximum number of elements of the blocks' partial results.
const PARTS_MAX: usize = 1 << 24;

/// Returns the maximum size in bytes of the blocks' partial results.
pub(crate) fn parts_bytes_max(shape: &KvShape) -> u64 {
    let blocks = shape.pages * PAGE_POSITIONS / BLOCK_POSITIONS + 1;
    let value_dim = shape.values.dim(shape.head_dim);
    4 * (BUSY * blocks * (2 + value_dim)).min(PARTS_MAX) as u64
}

pub(super) fn attend(
    backend: &mut WgpuBackend,
    attend: &Attend<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let Attend { heads, rows, pages, sizes, .. } = attend;
    let (h, d) = (heads.num_attention_heads, heads.head_dim);
    let value_dim = sizes.value_dim as usize;
    let table = tables(rows, pages)?;
    // The same blocks are merged in the same order, whether by one workgroup or by several.
    let last = rows.positions.iter().max().map_or(0, |position| *position as usize);
    let blocks = last / BLOCK_POSITIONS + 1;
    let params = attend_params(attend, blocks)?;
    let work =
        |position: &u32| work_of(&[seen_positions(*position, heads.sliding_window), d + value_dim]);
    let work: Vec<u64> = rows.positions.iter().map(work).collect();
    let most = backend.recorder.meter.rates.launch_work(WorkKind::Attention);
    for piece in attended_together(&work, h, most, blocks, 2 + value_dim) {
        let work = (piece.clone()).map(|at| work[at / h]).fold(0, u64::saturating_add);
        attend_some(backend, attend, &params, &table, piece, work)?;
    }
    Ok(())
}

/// Splits heads of rows, numbered row by row, into ranges for one dispatch each. A range is limited in work
/// and, if each of its blocks gets a workgroup, in elements of partial results. `work` is the work of one
/// head of each row.
fn attended_together(
    work: &[u64],
    heads: usize,
    work_max: u64,
    blocks: usize,
    elements: usize,
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

/// Returns whether each block gets a workgroup: there are few heads of rows and more than one block.
fn is_split(count: usize, blocks: usize) -> bool {
    blocks > 1 && count < BUSY
}

/// Records attention for a range of heads of rows.
fn attend_some(
    backend: &mut WgpuBackend,
    Attend { heads, queries, pages, out, .. }: &Attend<'_, WgpuBackend>,
    params: &AttendParams,
    table: &[u32],
    piece: Range<usize>,
    work: u64,
) -> Result<(), EngineError> {
    let blocks = params.blocks as usize;
    let is_split = is_split(piece.len(), blocks);
    let parts = piece.len() * blocks * (2 + params.value_dim as usize);
    let [first, end] = [piece.start, piece.end].map(|head| word("heads of a step", head));
    let params = AttendParams { first: first?, end: end?, ..*params };
    let given = match is_split {
        true => backend.scratch(ScratchRoom::AttendParts, parts)?,
        false => out.binding(),
    };
    let sinks = heads.sinks.as_ref().map_or(queries.binding(), GpuFloats::binding);
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let WgpuBackend { recorder, pipelines, .. } = backend;
    let mut bindings = vec![queries.binding(), recorder.table(table)?, sinks.clone()];
    bindings.extend((0..CHUNKS).map(|chunk| pages.chunk(chunk).unwrap_or(none.clone())));
    bindings.push(given.clone());
    let workgroups = spread(piece.len() * if is_split { blocks } else { 1 });
    let cost = Cost { workgroups, kind: WorkKind::Attention, work };
    let pipeline = attend_pipeline(pipelines, pages.shape.dtype, is_split);
    recorder.dispatch(pipeline, &bindings, &params, cost)?;
    if is_split {
        let places = recorder.table(&table[..2 * queries.rows])?;
        merge(backend, &params, piece.len(), &[places, sinks, given, out.binding()])?;
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

/// Merges the blocks' partial results of `count` heads of rows.
fn merge(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    of: &AttendParams,
    count: usize,
    bindings: &[Binding],
) -> Result<(), EngineError> {
    let params = AttendMergeParams {
        first: of.first,
        end: of.end,
        heads: of.heads,
        value_dim: of.value_dim,
        window: of.window,
        blocks: of.blocks,
        has_sinks: of.has_sinks,
    };
    let cost = Cost::elements(
        spread(count),
        count as u64 * u64::from(of.blocks) * u64::from(of.value_dim),
    );
    Ok(recorder.dispatch(&pipelines.attend_merge, bindings, &params, cost)?)
}

fn attend_params(
    Attend { heads, rows, pages, sizes, words, .. }: &Attend<'_, WgpuBackend>,
    blocks: usize,
) -> Result<AttendParams, EngineError> {
    let layout = PageLayout::of(&pages.shape);
    Ok(AttendParams {
        first: 0,
        end: word("heads of a step", rows.len() * heads.num_attention_heads)?,
        heads: sizes.heads,
        sharing: sizes.sharing,
        stride: sizes.stride,
        head_dim: sizes.head_dim,
        value_dim: sizes.value_dim,
        window: sizes.window,
        has_sinks: u32::from(heads.sinks.is_some()),
        scale: heads.scale,
        page_words: word("words of a page", layout.page_words)?,
        head_words: words.head_words,
        value_first: words.value_first,
        value_position: words.value_position,
        value_word: words.value_word,
        prefix_words: words.prefix_words,
        scale_first: words.scale_first,
        chunk_pages: word("pages", pages.chunk_pages)?,
        blocks: word("blocks of pages", blocks)?,
    })
}

/// Returns a table with the position and first page index of each row, followed by the pages.
fn tables(rows: &StepRows, kv: &GpuPages<WgpuBackend>) -> Result<Vec<u32>, EngineError> {
    let PageLists { first, pages, .. } = PageLists::of(rows)?;
    pages.iter().try_for_each(|page| kv.get(*page).map(drop))?;
    let mut table = Vec::with_capacity(2 * rows.len() + pages.len());
    for (position, first) in rows.positions.iter().zip(first) {
        table.extend([*position, word("pages of a step", 2 * rows.len() + first)?]);
    }
    table.extend(pages.iter().map(|page| page.0));
    Ok(table)
}

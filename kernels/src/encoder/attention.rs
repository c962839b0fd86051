//! Attention: heads are normed and rotated, stored in pages, and gathered from them.

use nestling_core::EngineError;
use nestling_core::backend::{AttentionHeads, HeadNorm};
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{KvDtype, KvValues, PAGE_POSITIONS};
use nestling_gpu::{
    HeadCounts, PageLayout, PageLists, WorkKind, expect, pieces, place_of, seen_positions, work_of,
};
use nestling_import::RopePairs;

use super::Tools;
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::memory::{CudaBuffer, CudaFloats, word};
use crate::pages::CudaPages;
use crate::params::{
    AttendParams, KvStoreParams, NormPartParams, RopeParams, RowPlace, SPLIT_POSITIONS,
};
use crate::recorder::Recorder;

type Heads = AttentionHeads<CudaBackend>;

/// Pages are listed in multiples of so many, so that most steps have tables of the same size.
const PAGES_STEP: usize = 16;

/// Blocks of attention that keep a device busy without cutting rows into splits.
const BLOCKS_ENOUGH: usize = 512;

pub(super) fn rope_store(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    rope: &CudaBuffer,
    qkv: &CudaBuffer,
    kv: &mut CudaPages,
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
    rope: &CudaBuffer,
    queries: &CudaBuffer,
) -> Result<(), EngineError> {
    expect("columns of queries", heads.num_attention_heads * heads.head_dim, queries.cols)?;
    rotate(tools, (heads, rows), rope, queries, (heads.num_attention_heads, 0))
}

/// Norms and rotates the first heads of every row: queries, then keys.
fn rotate(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    rope: &CudaBuffer,
    x: &CudaBuffer,
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
    let length = |norm: Option<&CudaFloats>| word("norm", norm.map_or(0, |weight| weight.len));
    let weight = |norm: Option<&CudaFloats>| norm.map_or(0, CudaFloats::address);
    let params = RopeParams {
        x: x.address(),
        angles: rope.address(),
        query_weight: weight(norms[0]),
        key_weight: weight(norms[1]),
        rows: word("rows", rows.len())?,
        queries: word("query heads", queries)?,
        keys: word("key heads", keys)?,
        stride: word("columns", x.cols)?,
        head_dim: word("elements of a head", d)?,
        rope_first: word("first rotated element", heads.rope_first)?,
        rope_dims: word("rotated elements", rope.cols)?,
        is_adjacent: u32::from(matches!(heads.rope_pairs, RopePairs::Adjacent)),
        query_norm: length(norms[0])?,
        key_norm: length(norms[1])?,
        eps: heads.eps,
        padding: 0,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

/// Norms so many parts of every row in place, from a column on.
fn norm_parts(
    tools: &mut Tools<'_>,
    (weight, eps): (&CudaFloats, f32),
    x: &CudaBuffer,
    (first, parts): (usize, usize),
) -> Result<(), EngineError> {
    let length = word("norm", weight.len)?;
    let params = NormPartParams {
        x: x.address(),
        weight: weight.address(),
        count: word("parts of a step", x.rows * parts)?,
        parts: word("parts of a row", parts.max(1))?,
        row_stride: word("columns", x.cols)?,
        part_stride: length,
        first: word("first column", first)?,
        length,
        eps,
        padding: 0,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

/// Stores keys and values, which begin at a column.
fn store(
    tools: &mut Tools<'_>,
    rows: &StepRows,
    (qkv, first): (&CudaBuffer, usize),
    kv: &mut CudaPages,
) -> Result<(), EngineError> {
    for row in 0..rows.len() {
        let (page, _) = place_of(rows, row)?;
        kv.prepare(page)?;
    }
    let tables = Tables::new(tools, rows, kv)?;
    let (shape, layout) = (kv.shape, PageLayout::of(&kv.shape));
    let prefix = match shape.values {
        KvValues::Beside => 0,
        KvValues::KeyPrefix(dim) => dim,
    };
    let params = KvStoreParams {
        x: qkv.address(),
        places: tables.places,
        pages: tables.pages,
        rows: word("rows", rows.len())?,
        heads: word("key heads", shape.num_key_value_heads)?,
        stride: word("columns", qkv.cols)?,
        first: word("first column", first)?,
        head_dim: word("elements of a head", shape.head_dim)?,
        prefix: word("elements of a value", prefix)?,
        head_words: word("words of a head", layout.head_words)?,
        value_first: word("words of keys", layout.value_first)?,
        scale_first: word("words of a page", layout.scale_first)?,
        padding: 0,
    };
    let kernel = match shape.dtype {
        KvDtype::F16 => Kernel::KvStoreF16,
        KvDtype::Int8 => Kernel::KvStoreInt8,
        _ => Kernel::KvStoreF32,
    };
    Ok(tools.recorder.launch(params.launch(kernel), &params)?)
}

pub(super) fn attend(
    tools: &mut Tools<'_>,
    (heads, rows): (&Heads, &StepRows),
    queries: &CudaBuffer,
    kv: &CudaPages,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    let counts = HeadCounts::of(heads);
    let sinks = heads.sinks.as_ref().map(|sinks| sinks.len);
    let shapes = (rows.len(), (queries.rows, queries.cols));
    counts.check_attended(&kv.shape, shapes, (out.cols, sinks))?;
    let h = counts.queries;
    out.resize(tools.recorder, rows.len())?;
    let tables = Tables::new(tools, rows, kv)?;
    let mut params = attend_params((heads, rows), (queries, &tables), kv)?;
    params.out = out.address();
    params.block_heads = params.block_heads_max();
    let cols = h * (counts.dim + kv.shape.values.dim(counts.dim));
    let work = |position: &u32| work_of(&[seen_positions(*position, heads.sliding_window), cols]);
    let work: Vec<u64> = rows.positions.iter().map(work).collect();
    let pieces =
        pieces(work.iter().copied(), tools.recorder.rates.launch_work(WorkKind::Attention));
    // Memory that grows between two launches would be there twice.
    let most = pieces.iter().map(|piece| params.of_rows(piece)).filter(is_split);
    if let Some(most) = most.map(|params| params.part_floats()).max() {
        params.parts = tools.scratch.attended.of(tools.recorder, most)?;
    }
    for piece in pieces {
        let work = work[piece.clone()].iter().sum();
        attend_rows(tools.recorder, &params.of_rows(&piece), kv.shape.dtype, work)?;
    }
    Ok(())
}

/// Whether few rows see so much that each of their splits gets a block.
fn is_split(params: &AttendParams) -> bool {
    let heads = params.heads.div_ceil(params.block_heads.max(1));
    params.splits >= 2 && ((params.rows * heads) as usize) < BLOCKS_ENOUGH
}

/// Attention of some rows: bits are the same in both ways.
fn attend_rows(
    recorder: &mut Recorder,
    params: &AttendParams,
    dtype: KvDtype,
    work: u64,
) -> Result<(), EngineError> {
    let is_split = is_split(params);
    let kernel = match (dtype, is_split) {
        (KvDtype::F16, false) => Kernel::AttendF16,
        (KvDtype::F16, true) => Kernel::AttendSplitF16,
        (KvDtype::Int8, false) => Kernel::AttendInt8,
        (KvDtype::Int8, true) => Kernel::AttendSplitInt8,
        (_, false) => Kernel::AttendF32,
        (_, true) => Kernel::AttendSplitF32,
    };
    recorder.launch_of((WorkKind::Attention, work), params.launch(kernel), params)?;
    if is_split {
        recorder.launch(params.merge(), params)?;
    }
    Ok(())
}

/// All but where attention goes to.
fn attend_params(
    (heads, rows): (&Heads, &StepRows),
    (queries, tables): (&CudaBuffer, &Tables),
    kv: &CudaPages,
) -> Result<AttendParams, EngineError> {
    let (h, d) = (heads.num_attention_heads, heads.head_dim);
    let layout = PageLayout::of(&kv.shape);
    let positions = tables.longest * PAGE_POSITIONS;
    Ok(AttendParams {
        queries: queries.address(),
        places: tables.places,
        pages: tables.pages,
        sinks: heads.sinks.as_ref().map_or(0, CudaFloats::address),
        rows: word("rows", rows.len())?,
        heads: word("query heads", h)?,
        sharing: word("query heads", h / heads.num_key_value_heads.max(1))?,
        stride: word("columns", queries.cols)?,
        head_dim: word("elements of a head", d)?,
        value_dim: word("elements of a value", kv.shape.values.dim(d))?,
        window: heads
            .sliding_window
            .map_or(u32::MAX, |size| u32::try_from(size).unwrap_or(u32::MAX)),
        scale: heads.scale,
        head_words: word("words of a head", layout.head_words)?,
        value_first: word("words of keys", layout.value_first)?,
        value_position: word("words of a value", layout.value_strides[0])?,
        value_word: word("words of a value", layout.value_strides[1])?,
        prefix_words: word("words of a value", layout.prefix_words)?,
        scale_first: word("words of a page", layout.scale_first)?,
        splits: word("splits of a row", positions.div_ceil(SPLIT_POSITIONS as usize))?,
        ..AttendParams::default()
    })
}

/// Where rows and pages are, for kernels.
struct Tables {
    /// Of each row its position, and where the pages of its sequence begin in the list.
    places: Address,
    /// Addresses of pages.
    pages: Address,
    /// Most pages that a row may see, rounded up.
    longest: usize,
}

impl Tables {
    fn new(tools: &mut Tools<'_>, rows: &StepRows, kv: &CudaPages) -> Result<Self, EngineError> {
        let PageLists { first, pages, longest, .. } = PageLists::of(rows)?;
        let place = |(position, first): (&u32, &usize)| {
            let first_page = word("pages of a step", *first)?;
            Ok(RowPlace { position: *position, first_page })
        };
        let places = rows.positions.iter().zip(&first).map(place);
        let places = places.collect::<Result<Vec<_>, EngineError>>()?;
        let list = pages.iter().map(|page| kv.get(*page));
        let mut list = list.collect::<Result<Vec<Address>, EngineError>>()?;
        list.resize(list.len().next_multiple_of(PAGES_STEP), 0);
        let longest = longest.next_multiple_of(PAGES_STEP);
        let recorder = &mut *tools.recorder;
        Ok(Self { places: recorder.table(&places)?, pages: recorder.table(&list)?, longest })
    }
}

fn per_head(norm: &HeadNorm<CudaBackend>) -> Option<&CudaFloats> {
    match norm {
        HeadNorm::PerHead(weight) => Some(weight),
        HeadNorm::FullWidth(_) | HeadNorm::Absent => None,
    }
}

//! Attention: rotates heads, stores keys and values in KV pages, and attends over them.

use nestling_core::EngineError;
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{KvDtype, PAGE_POSITIONS};
use nestling_gpu::{
    Attend, CommandRecorder, DeviceScratch, GpuFloats, GpuPages, NormWeight, PageLists, Rope,
    ScratchRoom, StoreKeys, WorkKind, pieces, seen_positions, word, work_of,
};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::params::{AttendParams, KvStoreParams, RopeParams, RowPlace, SPLIT_POSITIONS};
use crate::recorder::Recorder;

/// Granularity of the page list, so that most steps have tables of equal size.
const PAGES_STEP: usize = 16;

/// Number of attention blocks that keep a device busy without splitting rows.
const BLOCKS_ENOUGH: usize = 512;

pub(super) fn rope(recorder: &mut Recorder, of: &Rope<Address>) -> Result<(), EngineError> {
    let absent = NormWeight { binding: 0, length: 0 };
    let query_norm = of.query_norm.as_ref().unwrap_or(&absent);
    let key_norm = of.key_norm.as_ref().unwrap_or(&absent);
    let params = RopeParams {
        x: of.x,
        angles: of.angles,
        query_weight: query_norm.binding,
        key_weight: key_norm.binding,
        rows: of.rows,
        sizes: of.sizes,
        is_adjacent: u32::from(of.is_adjacent),
        query_norm: query_norm.length,
        key_norm: key_norm.length,
        eps: of.eps,
        late_norms: of.late_norm_bits(),
    };
    Ok(recorder.launch(params.launch(), &params)?)
}

/// Stores keys and values in their pages.
pub(super) fn store(
    recorder: &mut Recorder,
    StoreKeys { rows, x, sizes, pages, words }: &StoreKeys<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let tables = Tables::new(recorder, rows, pages)?;
    let params = KvStoreParams {
        x: x.binding(),
        places: tables.places,
        pages: tables.pages,
        rows: word("rows", rows.len())?,
        sizes: *sizes,
        head_words: words.head_words,
        value_first: words.value_first,
        scale_first: words.scale_first,
        padding: 0,
    };
    let kernel = match pages.shape.dtype {
        KvDtype::F16 => Kernel::KvStoreF16,
        KvDtype::Int8 => Kernel::KvStoreInt8,
        _ => Kernel::KvStoreF32,
    };
    Ok(recorder.launch(params.launch(kernel), &params)?)
}

pub(super) fn attend(
    backend: &mut CudaBackend,
    attend: &Attend<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let Attend { heads, rows, pages, .. } = attend;
    let tables = Tables::new(&mut backend.recorder, rows, pages)?;
    let mut params = attend_params(attend, &tables)?;
    params.block_heads = params.block_heads_max();
    let (h, d) = (heads.num_attention_heads, heads.head_dim);
    let cols = h * (d + pages.shape.values.dim(d));
    let work = |position: &u32| work_of(&[seen_positions(*position, heads.sliding_window), cols]);
    let work: Vec<u64> = rows.positions.iter().map(work).collect();
    let pieces =
        pieces(work.iter().copied(), backend.recorder.meter.rates.launch_work(WorkKind::Attention));
    // The largest scratch memory is allocated once, because growing it between launches would hold both
    // copies.
    let most = pieces.iter().map(|piece| params.of_rows(piece)).filter(is_split);
    if let Some(most) = most.map(|params| params.part_floats()).max() {
        params.parts = backend.scratch(ScratchRoom::AttendParts, most)?;
    }
    for piece in pieces {
        let work = work[piece.clone()].iter().sum();
        attend_rows(&mut backend.recorder, &params.of_rows(&piece), pages.shape.dtype, work)?;
    }
    Ok(())
}

/// Returns whether each split of a row gets a block: there are few rows, and they see many positions.
fn is_split(params: &AttendParams) -> bool {
    let heads = params.sizes.heads.div_ceil(params.block_heads.max(1));
    params.splits >= 2 && ((params.rows * heads) as usize) < BLOCKS_ENOUGH
}

/// Records attention of some rows. Split and unsplit kernels give the same bits.
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
    recorder.launch_of(WorkKind::Attention, work, params.launch(kernel), params)?;
    if is_split {
        recorder.launch(params.merge(), params)?;
    }
    Ok(())
}

/// Returns all parameters except the number of heads of a block.
fn attend_params(
    Attend { heads, rows, queries, out, sizes, words, .. }: &Attend<'_, CudaBackend>,
    tables: &Tables,
) -> Result<AttendParams, EngineError> {
    let positions = tables.longest * PAGE_POSITIONS;
    Ok(AttendParams {
        queries: queries.binding(),
        places: tables.places,
        pages: tables.pages,
        sinks: heads.sinks.as_ref().map_or(0, GpuFloats::binding),
        out: out.binding(),
        rows: word("rows", rows.len())?,
        sizes: *sizes,
        scale: heads.scale,
        words: *words,
        splits: word("splits of a row", positions.div_ceil(SPLIT_POSITIONS as usize))?,
        ..AttendParams::default()
    })
}

struct Tables {
    /// Position of each row, and index of its sequence's first page in the list.
    places: Address,
    /// Addresses of pages.
    pages: Address,
    /// Maximum number of pages visible to a row, rounded up.
    longest: usize,
}

impl Tables {
    fn new(
        recorder: &mut Recorder,
        rows: &StepRows,
        kv: &GpuPages<CudaBackend>,
    ) -> Result<Self, EngineError> {
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
        Ok(Self { places: recorder.table(&places)?, pages: recorder.table(&list)?, longest })
    }
}

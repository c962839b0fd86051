//! Matrix products: splits them into blocks and records the kernels.
//!
//! A block is one matrix at one level, for some pairs of input and output rows. Blocks of all matrices share
//! a launch, regardless of their levels.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_gpu::{
    CommandRecorder, HeadsRest, Input, Job, Output, ProductKind, Products, QuantizedActivations,
    RowPair, WorkKind, at_once, pieces, word, work_of,
};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::params::{
    Block, GRID_ROWS_MAX, HeadsRestParams, MATMUL_PAIRS_MAX, MATVEC_PAIRS_MAX, MATVEC_TILES_MAX,
    ProductParams,
};
use crate::recorder::Recorder;

/// Returns whether a job multiplies one row with a nested matrix in int8.
pub(super) fn is_one_row(job: &Job<'_, CudaBackend>) -> bool {
    ProductForm::of(job) == ProductForm::One
}

/// Number of matrix cells, one tile by one group each, that a thread block processes at once.
const CELLS_AT_ONCE: usize = 128;

/// Minimum number of pairs of a job for which tensor cores pay off.
const MANY_PAIRS: usize = 9;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProductForm {
    /// Int8, one pair.
    One,
    /// Int8, few pairs.
    Few,
    /// Int8, many pairs, on tensor cores.
    Many,
    /// Int8, row-major matrix.
    RowMajor,
    /// Int8 with scaled integers, any number of pairs.
    Scaled,
    Float,
}

impl ProductForm {
    fn of(job: &Job<'_, CudaBackend>) -> Self {
        match (job.kind, job.pairs.len()) {
            (ProductKind::Float, _) => Self::Float,
            (ProductKind::Int8, _) if job.matrix.form.is_scaled => Self::Scaled,
            (ProductKind::Int8, _) if !job.matrix.form.is_tiled => Self::RowMajor,
            (ProductKind::Int8, 0..=1) => Self::One,
            (ProductKind::Int8, 2..MANY_PAIRS) => Self::Few,
            (ProductKind::Int8, _) => Self::Many,
        }
    }

    fn kernel(self) -> Kernel {
        match self {
            Self::One => Kernel::MatvecNested,
            Self::Few => Kernel::MatvecNestedRows,
            Self::Many => Kernel::MatmulNested,
            Self::RowMajor => Kernel::MatvecRowMajor,
            Self::Scaled => Kernel::MatvecScaled,
            Self::Float => Kernel::MatvecFloat,
        }
    }

    fn pairs_max(self) -> usize {
        match self {
            Self::One => 1,
            Self::Few => MATVEC_PAIRS_MAX as usize,
            Self::Many => MATMUL_PAIRS_MAX as usize,
            Self::RowMajor | Self::Scaled | Self::Float => 32,
        }
    }
}

/// Granularity of splitting a matrix by rows: a common multiple of the rows that thread blocks of all kernels
/// process at once.
const ROWS_TOGETHER: usize = 128;

/// Returns the kind of a kernel's work for estimating durations.
pub(super) fn work_kind(kernel: Kernel) -> WorkKind {
    match kernel {
        Kernel::MatmulNested => WorkKind::ManyRows,
        Kernel::MatvecFloat => WorkKind::Floats,
        _ => WorkKind::FewRows,
    }
}

/// Returns the number of pairs to count for estimating durations. A kernel is not faster with fewer pairs
/// than it processes at once.
pub(super) fn counted_pairs(kernel: Kernel, pairs: usize) -> usize {
    match kernel {
        Kernel::MatmulNested => pairs.next_multiple_of(MATMUL_PAIRS_MAX as usize),
        Kernel::MatvecFloat => pairs.next_multiple_of(FLOAT_PAIRS),
        // Weights are decoded again for each pair.
        Kernel::MatvecRowMajor => pairs * MATVEC_PAIRS_MAX as usize,
        _ => pairs.next_multiple_of(MATVEC_PAIRS_MAX as usize),
    }
}

/// Number of pairs that `matvec_float` processes at once.
const FLOAT_PAIRS: usize = 4;

/// Returns the number of tiles that occupy all threads of a block.
fn tiles_per_block(groups: usize) -> u32 {
    let tiles = CELLS_AT_ONCE / groups.max(1);
    (tiles as u32).clamp(1, MATVEC_TILES_MAX)
}

#[derive(Default)]
struct Blocks {
    all: Vec<Block>,
    /// Work of each block.
    work: Vec<u64>,
    /// Tiles of the largest block.
    tiles: usize,
}

impl Blocks {
    /// Splits a job's pairs into blocks. Blocks of more than `work_max` work are split by matrix rows.
    fn push(
        &mut self,
        job: &Job<'_, CudaBackend>,
        kernel: Kernel,
        pairs_max: usize,
        work_max: u64,
    ) -> Result<(), EngineError> {
        let cols = job.matrix.form.cols;
        for first in job.pairs.clone().step_by(pairs_max) {
            let pairs = pairs_max.min(job.pairs.end - first);
            let each = work_of(&[counted_pairs(kernel, pairs), cols]);
            let rows_max = at_once(each, work_max, ROWS_TOGETHER);
            for start in job.rows.clone().step_by(rows_max) {
                let end = job.rows.end.min(start.saturating_add(rows_max));
                let before = start - job.rows.start;
                self.tiles = self.tiles.max(end.div_ceil(TILE_ROWS) - start / TILE_ROWS);
                self.work.push(each.saturating_mul((end - start) as u64));
                self.all.push(Block {
                    matrix: job.matrix.weights.address(),
                    bias: job.bias.map_or(0, |bias| bias.binding() + 4 * before as u64),
                    level: job.level.index() as u32,
                    first_pair: word("pairs", first)?,
                    pairs: word("pairs", pairs)?,
                    first_row: word("rows", start)?,
                    end_row: word("rows", end)?,
                    out_col: word("columns", job.out_col + before)?,
                });
            }
        }
        Ok(())
    }
}

/// Records the products of all jobs.
pub(super) fn products(
    recorder: &mut Recorder,
    Products { jobs, pairs, input, output }: &Products<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let mut ways: Vec<(ProductForm, Blocks)> = Vec::new();
    for job in *jobs {
        let way = ProductForm::of(job);
        let known = ways.iter().position(|(other, _)| *other == way);
        let at = known.unwrap_or_else(|| {
            ways.push((way, Blocks::default()));
            ways.len() - 1
        });
        let work_max = recorder.meter.rates.launch_work(work_kind(way.kernel()));
        ways[at].1.push(job, way.kernel(), way.pairs_max(), work_max)?;
    }
    let pairs = recorder.table(pairs)?;
    ways.iter().try_for_each(|(way, blocks)| record(recorder, *way, blocks, pairs, input, output))
}

/// Blocks in device memory, for one kernel.
#[derive(Clone)]
pub(super) struct Call {
    pub kernel: Kernel,
    pub blocks: Address,
    /// Work of each block.
    pub work: Vec<u64>,
    /// Tiles of the largest block.
    pub tiles: usize,
    pub pairs: Address,
}

/// Part of a call's blocks, computed by one launch.
pub(super) struct CallLaunch {
    pub blocks: Address,
    /// Number of groups of blocks.
    pub count: usize,
    /// Work of the blocks.
    pub work: u64,
}

impl Call {
    /// Splits the call into launches of limited duration. Groups of `together` consecutive blocks stay
    /// together.
    pub fn launches(&self, recorder: &Recorder, together: usize) -> Vec<CallLaunch> {
        let kind = work_kind(self.kernel);
        let sum = |work: &[u64]| work.iter().fold(0, |sum: u64, work| sum.saturating_add(*work));
        let groups: Vec<u64> = self.work.chunks(together).map(sum).collect();
        let pieces = pieces(groups.iter().copied(), recorder.meter.rates.launch_work(kind));
        let launch = |first: usize, count: usize| {
            let blocks = self.blocks + (first * together * size_of::<Block>()) as u64;
            CallLaunch { blocks, count, work: sum(&groups[first..first + count]) }
        };
        // A grid has at most this many rows.
        let rows = GRID_ROWS_MAX as usize;
        let parts = |piece: Range<usize>| {
            let end = piece.end;
            piece.step_by(rows).map(move |first| (first, rows.min(end - first)))
        };
        let parts = pieces.into_iter().flat_map(parts);
        parts.map(|(first, count)| launch(first, count)).collect()
    }
}

/// Returns the parameters of a product kernel.
pub(super) fn params_of(
    Call { blocks, pairs, .. }: &Call,
    tiles_per_block: u32,
    input: &Input<Address>,
    output: &Output<Address>,
) -> Result<ProductParams, EngineError> {
    // Default: a kernel only reads the input of its kind, which is present.
    let quantized = input.quantized.unwrap_or(QuantizedActivations { values: 0, scales: 0 });
    // Default: as above.
    let floats = input.floats.unwrap_or(0);
    Ok(ProductParams {
        blocks: *blocks,
        pairs: *pairs,
        x_values: quantized.values,
        x_scales: quantized.scales,
        x: floats,
        out: output.values,
        x_groups: word("groups", input.cols.div_ceil(GROUP))?,
        x_stride: word("columns", input.stride)?,
        out_cols: word("columns", output.cols)?,
        adds: u32::from(output.write == Write::Add),
        tiles_per_block,
        padding: 0,
    })
}

fn record(
    recorder: &mut Recorder,
    way: ProductForm,
    blocks: &Blocks,
    pairs: Address,
    input: &Input<Address>,
    output: &Output<Address>,
) -> Result<(), EngineError> {
    let all = recorder.table(&blocks.all)?;
    let (kernel, work, tiles) = (way.kernel(), blocks.work.clone(), blocks.tiles);
    let call = Call { kernel, blocks: all, work, tiles, pairs };
    call_kernel(recorder, &call, input, output)
}

/// Returns a call with the blocks of all jobs for one kernel, in order.
pub(super) fn call_of(
    recorder: &mut Recorder,
    kernel: Kernel,
    jobs: &[Job<'_, CudaBackend>],
    pairs: &[RowPair],
) -> Result<Call, EngineError> {
    let mut blocks = Blocks::default();
    for job in jobs {
        // Blocks of gates and ups are not split, so that each pair stays adjacent.
        blocks.push(job, kernel, 1, u64::MAX)?;
    }
    let (pairs, all) = (recorder.table(pairs)?, recorder.table(&blocks.all)?);
    Ok(Call { kernel, blocks: all, work: blocks.work, tiles: blocks.tiles, pairs })
}

/// Records the launches of a call.
pub(super) fn call_kernel(
    recorder: &mut Recorder,
    call: &Call,
    input: &Input<Address>,
    output: &Output<Address>,
) -> Result<(), EngineError> {
    let tiles_at_once = match call.kernel {
        Kernel::MatvecNested => tiles_per_block(input.cols.div_ceil(GROUP)),
        _ => 1,
    };
    let params = params_of(call, tiles_at_once, input, output)?;
    let tiles = word("tiles", call.tiles)?;
    let kind = work_kind(call.kernel);
    for CallLaunch { blocks, count, work } in call.launches(recorder, 1) {
        let params = ProductParams { blocks, ..params };
        let count = word("blocks", count)?;
        recorder.launch_of(kind, work, params.launch(call.kernel, count, tiles), &params)?;
    }
    Ok(())
}

pub(super) fn heads_rest(
    recorder: &mut Recorder,
    &HeadsRest { x, out, heads, inputs, outputs, rest }: &HeadsRest<Address>,
) -> Result<(), EngineError> {
    let params = HeadsRestParams { x, out, places: heads, inputs, outputs, rest };
    Ok(recorder.launch(params.launch(), &params)?)
}

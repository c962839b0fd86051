//! Matrix products: splits them into blocks and records dispatches.
//!
//! A dispatch computes blocks. A block is one matrix at one level, for some pairs of input and output rows.
//! Blocks of all matrices in one slab share a dispatch, regardless of their levels.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_gpu::{
    Allocation, CommandRecorder, DeviceScratch, GpuFloats, HeadsRest, Input, Job, Output,
    ProductKind, Products, RowPair, ScratchRoom, WorkKind, at_once, pieces, word, work_of,
};

use crate::backend::{Int8Dot, WgpuBackend};
use crate::matrix::MatrixPart;
use crate::params::{self, Block};
use crate::pipelines::{Pipeline, Pipelines};
use crate::recorder::{Binding, Cost, WORKGROUPS_MAX, spread};

/// Kernels that compute blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Int8, for few pairs.
    Few,
    /// Int8, for many pairs.
    Many,
    /// Int8 with scaled integers, for any number of pairs.
    Scaled,
    Float,
}

/// Minimum number of pairs of a job for which decoding a tile once for all pairs outweighs the barriers.
const MANY_PAIRS: usize = 9;

impl Kernel {
    /// Returns the kernel for a job with `pairs` pairs.
    pub fn of(kind: ProductKind, is_scaled: bool, pairs: usize) -> Self {
        match kind {
            ProductKind::Float => Self::Float,
            ProductKind::Int8 if is_scaled => Self::Scaled,
            ProductKind::Int8 if pairs >= MANY_PAIRS => Self::Many,
            ProductKind::Int8 => Self::Few,
        }
    }

    /// Returns the kind of work for estimating durations.
    pub fn work_kind(self) -> WorkKind {
        match self {
            Self::Few | Self::Scaled => WorkKind::FewRows,
            Self::Many => WorkKind::ManyRows,
            Self::Float => WorkKind::Floats,
        }
    }

    /// Returns the work of a block for one matrix row. A block with fewer pairs than its maximum takes the
    /// same time.
    pub fn row_work(self, cols: usize) -> u64 {
        work_of(&[self.block_pairs(), cols])
    }

    fn block_pairs(self) -> usize {
        match self {
            Self::Few | Self::Scaled => 4,
            Self::Many => 64,
            Self::Float => 32,
        }
    }

    fn pipeline(self, pipelines: &Pipelines, dot: Int8Dot) -> &Pipeline {
        match (self, dot) {
            (Self::Few, Int8Dot::Packed) => &pipelines.matmul_nested,
            (Self::Few, Int8Dot::Plain) => &pipelines.matmul_nested_plain,
            (Self::Many, Int8Dot::Packed) => &pipelines.matmul_nested_rows,
            (Self::Many, Int8Dot::Plain) => &pipelines.matmul_nested_rows_plain,
            (Self::Scaled, Int8Dot::Packed) => &pipelines.matmul_scaled,
            (Self::Scaled, Int8Dot::Plain) => &pipelines.matmul_scaled_plain,
            (Self::Float, _) => &pipelines.matmul_float,
        }
    }
}

/// Bias offset of a block without bias.
const NO_BIAS: u32 = u32::MAX;

struct Dispatch<'a> {
    kernel: Kernel,
    slab: &'a MatrixPart,
    bias: Option<&'a GpuFloats<WgpuBackend>>,
    blocks: Vec<Block>,
    /// Work of each block.
    work: Vec<u64>,
    tiles: usize,
}

impl<'a> Dispatch<'a> {
    fn takes(
        &self,
        kernel: Kernel,
        part: &MatrixPart,
        bias: Option<&GpuFloats<WgpuBackend>>,
    ) -> bool {
        let same_bias = match (self.bias, bias) {
            (Some(own), Some(other)) => own.range.memory().raw == other.range.memory().raw,
            (own, other) => own.is_none() && other.is_none(),
        };
        self.kernel == kernel && self.slab.slab == part.slab && same_bias
    }

    /// Splits a job's pairs into blocks. Blocks of more than `work_max` work are split by matrix rows.
    fn push(
        &mut self,
        job: &Job<'_, WgpuBackend>,
        part: &MatrixPart,
        work_max: u64,
    ) -> Result<(), EngineError> {
        let level = job.matrix.prefix(job.level)?;
        let start = job.rows.start.max(part.first_row);
        let end = job.rows.end.min(part.first_row + part.rows);
        let row_work = self.kernel.row_work(job.matrix.form.cols);
        let rows_max = at_once(row_work, work_max, TILE_ROWS);
        for start in (start..end).step_by(rows_max) {
            let end = end.min(start.saturating_add(rows_max));
            let (first_row, end_row) = (start - part.first_row, end - part.first_row);
            let before = start - job.rows.start;
            self.tiles = self.tiles.max(end_row.div_ceil(TILE_ROWS) - first_row / TILE_ROWS);
            for first in job.pairs.clone().step_by(self.kernel.block_pairs()) {
                self.work.push(row_work.saturating_mul((end - start) as u64));
                self.blocks.push(Block {
                    matrix: part.word(),
                    level,
                    first_pair: first as u32,
                    pairs: self.kernel.block_pairs().min(job.pairs.end - first) as u32,
                    first_row: first_row as u32,
                    end_row: end_row as u32,
                    out_col: (job.out_col + before) as u32,
                    bias: job
                        .bias
                        .map_or(NO_BIAS, |bias| (bias.range.offset() / 4) as u32 + before as u32),
                });
            }
        }
        Ok(())
    }
}

/// Records the products of all jobs.
pub(super) fn products(
    backend: &mut WgpuBackend,
    Products { jobs, pairs, input, output }: &Products<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let mut dispatches: Vec<Dispatch> = Vec::new();
    for job in *jobs {
        let kernel = Kernel::of(job.kind, job.matrix.form.is_scaled, job.pairs.len());
        let overlaps = |part: &&MatrixPart| {
            part.first_row < job.rows.end && job.rows.start < part.first_row + part.rows
        };
        for slab in job.matrix.weights.parts.iter().filter(overlaps) {
            let known = dispatches.iter().position(|one| one.takes(kernel, slab, job.bias));
            let at = known.unwrap_or_else(|| {
                let (bias, blocks, work) = (job.bias, Vec::new(), Vec::new());
                dispatches.push(Dispatch { kernel, slab, bias, blocks, work, tiles: 0 });
                dispatches.len() - 1
            });
            let work_max = backend.recorder.meter.rates.launch_work(kernel.work_kind());
            dispatches[at].push(job, slab, work_max)?;
        }
    }
    for dispatch in &dispatches {
        let most = backend.recorder.meter.rates.launch_work(dispatch.kernel.work_kind());
        for piece in pieces(dispatch.work.iter().copied(), most) {
            // A dispatch has at most this many rows of workgroups.
            for start in piece.clone().step_by(WORKGROUPS_MAX as usize) {
                let part = start..piece.end.min(start + WORKGROUPS_MAX as usize);
                record(backend, dispatch, part, pairs, input, output)?;
            }
        }
    }
    let parts = jobs.iter().flat_map(|job| &job.matrix.weights.parts);
    let slots = parts.filter_map(|part| part.slot);
    slots.for_each(|slot| backend.recorder.reads_slot(Some(slot)));
    Ok(())
}

/// One dispatch: blocks of matrices in one slab.
pub(super) struct Call {
    pub kernel: Kernel,
    pub slab: Binding,
    pub blocks: Binding,
    /// Number of blocks.
    pub count: usize,
    pub pairs: Binding,
    pub bias: Binding,
    /// Tiles of the largest block.
    pub tiles: usize,
    pub work: u64,
}

/// Records a range of a dispatch's blocks.
fn record(
    backend: &mut WgpuBackend,
    known: &Dispatch,
    piece: Range<usize>,
    pairs: &[RowPair],
    input: &Input<Binding>,
    output: &Output<Binding>,
) -> Result<(), EngineError> {
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let recorder = &mut backend.recorder;
    recorder.make_room()?;
    let call = Call {
        kernel: known.kernel,
        slab: Binding::from(&known.slab.buffer),
        blocks: recorder.table(&known.blocks[piece.clone()])?,
        count: piece.len(),
        pairs: recorder.table(pairs)?,
        bias: known.bias.map_or(none, |bias| bias.range.memory().binding()),
        tiles: known.tiles,
        work: known.work[piece].iter().fold(0, |sum: u64, work| sum.saturating_add(*work)),
    };
    dispatch(backend, call, input, output)
}

/// Records one dispatch.
pub(super) fn dispatch(
    WgpuBackend { recorder, pipelines, dot, .. }: &mut WgpuBackend,
    call: Call,
    input: &Input<Binding>,
    output: &Output<Binding>,
) -> Result<(), EngineError> {
    let mut bindings = vec![call.slab, call.blocks, call.pairs];
    let x_cols = match (call.kernel, &input.quantized, &input.floats) {
        (Kernel::Few | Kernel::Many | Kernel::Scaled, Some(x), _) => {
            bindings.extend([x.values.clone(), x.scales.clone()]);
            input.cols.div_ceil(GROUP)
        }
        (Kernel::Float, _, Some(x)) => {
            bindings.push(x.clone());
            input.stride
        }
        _ => return Err(EngineError::mismatch("input of a product", "in its kind", "another")),
    };
    bindings.extend([call.bias, output.values.clone()]);
    let params = params::Products {
        out_cols: word("columns", output.cols)?,
        x_cols: word("columns", x_cols)?,
        add: u32::from(output.write == Write::Add),
        padding: 0,
    };
    let workgroups = [word("tiles", call.tiles)?, word("blocks", call.count)?, 1];
    let cost = Cost { workgroups, kind: call.kernel.work_kind(), work: call.work };
    Ok(recorder.dispatch(call.kernel.pipeline(pipelines, *dot), &bindings, &params, cost)?)
}

pub(super) fn heads_rest(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    HeadsRest { x, out, heads, inputs, outputs, rest }: &HeadsRest<Binding>,
) -> Result<(), EngineError> {
    let params =
        params::HeadTail { places: *heads, inputs: *inputs, outputs: *outputs, rest: *rest };
    let elements = u64::from(*heads) * u64::from(*rest);
    if elements == 0 {
        return Ok(());
    }
    let cost = Cost::elements(spread(elements.div_ceil(64) as usize), elements);
    let bindings = [x.clone(), out.clone()];
    Ok(recorder.dispatch(&pipelines.heads_rest, &bindings, &params, cost)?)
}

//! Products with matrices: what the host decides for them, and the dispatches.
//!
//! A dispatch computes blocks: one matrix at one level for some pairs of rows, of the input and of
//! the output. Blocks of all matrices that lie in one slab go together, whatever their levels.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::{HeadMatrices, Linear, Write};
use nestling_formats::Level;
use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_gpu::{
    HeadsForm, ProductKind, RowPair, WorkKind, at_once, expect, pairs_by_level, pieces, push_head,
    work_of,
};

use super::Tools;
use super::quantize::{Heads, quantize};
use crate::backend::{Int8Dot, WgpuBackend};
use crate::matrix::{MatrixPart, WgpuMatrix};
use crate::memory::{WgpuBuffer, WgpuFloats, word};
use crate::pipelines::{Pipeline, Pipelines};
use crate::recorder::{Binding, Cost, Recorder, WORKGROUPS_MAX, spread};
use crate::scratch::Quantized;

/// One matrix at one level.
#[derive(Clone)]
pub(super) struct Job<'a> {
    pub matrix: &'a WgpuMatrix,
    pub bias: Option<&'a WgpuFloats>,
    pub kind: ProductKind,
    /// Prefix of its codes, by place.
    pub level: u32,
    /// Its rows that are wanted.
    pub rows: Range<usize>,
    /// Column of the output that the first one goes to.
    pub out_col: usize,
    /// Its pairs.
    pub pairs: Range<usize>,
}

impl<'a> Job<'a> {
    /// All rows of a matrix at a level of the model.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub fn new(
        Linear { matrix, bias }: &'a Linear<WgpuBackend>,
        level: Level,
        (out_col, pairs): (usize, Range<usize>),
    ) -> Result<Self, EngineError> {
        let (kind, level, rows) = (matrix.form.kind, matrix.prefix(level)?, 0..matrix.form.rows);
        Ok(Self { matrix, bias: bias.as_ref(), kind, level, rows, out_col, pairs })
    }
}

/// What products read.
#[derive(Clone)]
pub(super) struct Input {
    /// For jobs with [`ProductKind::Int8`].
    pub quantized: Option<Quantized>,
    /// For the others.
    pub floats: Binding,
    /// Elements of a row.
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// Where products go: rows of `cols`.
#[derive(Clone)]
pub(super) struct Output {
    pub values: Binding,
    pub cols: usize,
    pub write: Write,
}

impl Output {
    pub fn of(buffer: &WgpuBuffer, write: Write) -> Self {
        Self { values: buffer.binding(), cols: buffer.cols, write }
    }
}

/// The ways to compute a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    /// Int8, for few pairs.
    Few,
    /// Int8, for many.
    Many,
    Float,
}

/// From so many pairs of a job on, a tile that is decoded once for all of them is worth the
/// barriers.
const MANY_PAIRS: usize = 9;

impl Kernel {
    /// The way for so many pairs of a job.
    pub fn of(kind: ProductKind, pairs: usize) -> Self {
        match kind {
            ProductKind::Int8 if pairs >= MANY_PAIRS => Self::Many,
            ProductKind::Int8 => Self::Few,
            ProductKind::Float => Self::Float,
        }
    }

    /// What its work is counted as.
    pub fn work_kind(self) -> WorkKind {
        match self {
            Self::Few => WorkKind::FewRows,
            Self::Many => WorkKind::ManyRows,
            Self::Float => WorkKind::Floats,
        }
    }

    /// Work of a block for each row of a matrix: it does not get less with fewer pairs than it takes.
    pub fn row_work(self, cols: usize) -> u64 {
        work_of(&[self.block_pairs(), cols])
    }

    /// The most pairs of a block.
    fn block_pairs(self) -> usize {
        match self {
            Self::Few => 4,
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
            (Self::Float, _) => &pipelines.matmul_float,
        }
    }
}

/// A block as shaders read it.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Block {
    matrix: u32,
    level: u32,
    first_pair: u32,
    pairs: u32,
    first_row: u32,
    end_row: u32,
    out_col: u32,
    bias: u32,
}

/// A block's bias where there is none.
const NO_BIAS: u32 = u32::MAX;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    out_cols: u32,
    x_cols: u32,
    add: u32,
    padding: u32,
}

/// Blocks of one dispatch.
struct Dispatch<'a> {
    kernel: Kernel,
    slab: &'a MatrixPart,
    bias: Option<&'a WgpuFloats>,
    blocks: Vec<Block>,
    /// Of each, how much it computes.
    work: Vec<u64>,
    tiles: usize,
}

impl<'a> Dispatch<'a> {
    fn takes(&self, kernel: Kernel, part: &MatrixPart, bias: Option<&WgpuFloats>) -> bool {
        let same_bias = match (self.bias, bias) {
            (Some(own), Some(other)) => own.place.slab == other.place.slab,
            (own, other) => own.is_none() && other.is_none(),
        };
        self.kernel == kernel && self.slab.place.slab == part.place.slab && same_bias
    }

    /// Cuts a job's pairs into blocks, and blocks of more than so much work by rows of the matrix.
    fn push(&mut self, job: &Job, part: &MatrixPart, work_max: u64) {
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
                    matrix: part.place.word(),
                    level: job.level,
                    first_pair: first as u32,
                    pairs: self.kernel.block_pairs().min(job.pairs.end - first) as u32,
                    first_row: first_row as u32,
                    end_row: end_row as u32,
                    out_col: (job.out_col + before) as u32,
                    bias: job.bias.map_or(NO_BIAS, |bias| bias.place.word() + before as u32),
                });
            }
        }
    }
}

/// Records the products of all jobs.
pub(super) fn products(
    tools: &mut Tools<'_>,
    (jobs, pairs): (&[Job], &[RowPair]),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let mut dispatches: Vec<Dispatch> = Vec::new();
    for job in jobs {
        expect("inputs of a matrix", job.matrix.form.cols, input.cols)?;
        if let Some(bias) = job.bias {
            expect("bias", job.matrix.form.rows, bias.len)?;
        }
        let kernel = Kernel::of(job.kind, job.pairs.len());
        let overlaps = |part: &&MatrixPart| {
            part.first_row < job.rows.end && job.rows.start < part.first_row + part.rows
        };
        for slab in job.matrix.parts.iter().filter(overlaps) {
            let known = dispatches.iter().position(|one| one.takes(kernel, slab, job.bias));
            let at = known.unwrap_or_else(|| {
                let (bias, blocks, work) = (job.bias, Vec::new(), Vec::new());
                dispatches.push(Dispatch { kernel, slab, bias, blocks, work, tiles: 0 });
                dispatches.len() - 1
            });
            let work_max = tools.recorder.rates.launch_work(kernel.work_kind());
            dispatches[at].push(job, slab, work_max);
        }
    }
    let none = tools.scratch.none.of(tools.gpu, 1)?;
    for dispatch in &dispatches {
        let most = tools.recorder.rates.launch_work(dispatch.kernel.work_kind());
        for piece in pieces(dispatch.work.iter().copied(), most) {
            // No more than a dispatch has rows of workgroups.
            for start in piece.clone().step_by(WORKGROUPS_MAX as usize) {
                let part = start..piece.end.min(start + WORKGROUPS_MAX as usize);
                record(tools, (dispatch, part), pairs, input, (output, &none))?;
            }
        }
    }
    Ok(())
}

/// One dispatch: blocks of matrices that lie in one slab.
pub(super) struct Call {
    pub kernel: Kernel,
    pub slab: Binding,
    /// Blocks, and how many.
    pub blocks: (Binding, usize),
    pub pairs: Binding,
    pub bias: Binding,
    /// Tiles of the largest block.
    pub tiles: usize,
    pub work: u64,
}

/// Some of a dispatch's blocks.
fn record(
    tools: &mut Tools<'_>,
    (known, piece): (&Dispatch, Range<usize>),
    pairs: &[RowPair],
    input: &Input,
    (output, none): (&Output, &Binding),
) -> Result<(), EngineError> {
    tools.recorder.make_room()?;
    let whole = |bias: &WgpuFloats| Binding::from(&bias.place.buffer);
    let call = Call {
        kernel: known.kernel,
        slab: Binding::from(&known.slab.place.buffer),
        blocks: (tools.recorder.table(&known.blocks[piece.clone()])?, piece.len()),
        pairs: tools.recorder.table(pairs)?,
        bias: known.bias.map_or_else(|| none.clone(), whole),
        tiles: known.tiles,
        work: known.work[piece].iter().fold(0, |sum: u64, work| sum.saturating_add(*work)),
    };
    dispatch(tools, &call, input, output)
}

/// Records one dispatch.
pub(super) fn dispatch(
    Tools { recorder, pipelines, dot, .. }: &mut Tools<'_>,
    call: &Call,
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let mut bindings = vec![call.slab.clone(), call.blocks.0.clone(), call.pairs.clone()];
    let x_cols = match (call.kernel, &input.quantized) {
        (Kernel::Few | Kernel::Many, Some(x)) => {
            bindings.extend([x.values.clone(), x.scales.clone()]);
            input.cols.div_ceil(GROUP)
        }
        _ => {
            bindings.push(input.floats.clone());
            input.stride
        }
    };
    bindings.extend([call.bias.clone(), output.values.clone()]);
    let params = Params {
        out_cols: word("columns", output.cols)?,
        x_cols: word("columns", x_cols)?,
        add: u32::from(output.write == Write::Add),
        padding: 0,
    };
    let workgroups = [word("tiles", call.tiles)?, word("blocks", call.blocks.1)?, 1];
    let cost = Cost { workgroups, kind: call.kernel.work_kind(), work: call.work };
    Ok(recorder.dispatch(call.kernel.pipeline(pipelines, *dot), &bindings, &params, cost)?)
}

/// The activations of a step as the input of products with these matrices.
pub(super) fn input_of<'a>(
    tools: &mut Tools<'_>,
    x: &WgpuBuffer,
    mut matrices: impl Iterator<Item = &'a WgpuMatrix>,
) -> Result<Input, EngineError> {
    let int8 = matrices.any(|matrix| matrix.form.kind == ProductKind::Int8);
    input_for(tools, x, if int8 { ProductKind::Int8 } else { ProductKind::Float })
}

/// The same for products of one kind.
pub(super) fn input_for(
    tools: &mut Tools<'_>,
    x: &WgpuBuffer,
    kind: ProductKind,
) -> Result<Input, EngineError> {
    let quantized = match kind {
        ProductKind::Int8 => {
            Some(quantize(tools, x, Heads { count: 1, width: x.cols, inputs: x.cols })?)
        }
        ProductKind::Float => None,
    };
    Ok(Input { quantized, floats: x.binding(), cols: x.cols, stride: x.cols })
}

pub(super) fn matmul(
    tools: &mut Tools<'_>,
    (weights, levels): (&[Linear<WgpuBackend>], &[Level]),
    x: &WgpuBuffer,
    write: Write,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("outputs", out.cols, weights.iter().map(|linear| linear.matrix.form.rows).sum())?;
    match write {
        Write::Set => out.resize(tools.gpu, x.rows)?,
        Write::Add => expect("rows of a sum", x.rows, out.rows)?,
    }
    linear(tools, (weights, levels), x, &Output::of(out, write))
}

fn linear(
    tools: &mut Tools<'_>,
    (weights, levels): (&[Linear<WgpuBackend>], &[Level]),
    x: &WgpuBuffer,
    output: &Output,
) -> Result<(), EngineError> {
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let (mut jobs, mut out_col) = (Vec::new(), 0);
    for linear in weights {
        for (level, pairs) in &ranges {
            jobs.push(Job::new(linear, *level, (out_col, pairs.clone()))?);
        }
        out_col += linear.matrix.form.rows;
    }
    let input = input_of(tools, x, weights.iter().map(|linear| &linear.matrix))?;
    products(tools, (&jobs, &pairs), &input, output)
}

/// `out = W x` with float activations, whatever the mode of the matrix, at its highest level: the
/// logits of a router.
pub(super) fn multiply_float(
    tools: &mut Tools<'_>,
    matrix: &WgpuMatrix,
    x: &WgpuBuffer,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    expect("outputs of a matrix", matrix.form.rows, out.cols)?;
    out.resize(tools.gpu, x.rows)?;
    let (pairs, _) = pairs_by_level(x.rows, &vec![Level::L8; x.rows])?;
    let (level, rows) = (matrix.prefix(Level::L8)?, 0..matrix.form.rows);
    let (kind, pairs_of_all) = (ProductKind::Float, 0..pairs.len());
    let job = Job { matrix, bias: None, kind, level, rows, out_col: 0, pairs: pairs_of_all };
    let input = Input { quantized: None, floats: x.binding(), cols: x.cols, stride: x.cols };
    products(tools, (&[job], &pairs), &input, &Output::of(out, Write::Set))
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Rest {
    places: u32,
    inputs: u32,
    outputs: u32,
    rest: u32,
}

pub(super) fn matmul_heads(
    tools: &mut Tools<'_>,
    (weights, levels): (&HeadMatrices<WgpuBackend>, &[Level]),
    x: &WgpuBuffer,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    let matrix = &weights.matrix;
    let heads = HeadsForm::of(&matrix.form, weights.heads, (x.cols, out.cols))?;
    let HeadsForm { count, inputs, outputs, width, rest } = heads;
    let (rows, ranges) = pairs_by_level(x.rows, levels)?;
    out.resize(tools.gpu, x.rows)?;
    let (mut pairs, mut jobs) = (Vec::with_capacity(count * rows.len()), Vec::new());
    for head in 0..count {
        for (level, range) in &ranges {
            let pairs = push_head(&mut pairs, &rows[range.clone()], (head, count));
            jobs.push(Job {
                matrix,
                bias: None,
                kind: matrix.form.kind,
                level: matrix.prefix(*level)?,
                rows: head * outputs..(head + 1) * outputs,
                out_col: head * (outputs + rest),
                pairs,
            });
        }
    }
    let quantized = match matrix.form.kind {
        ProductKind::Int8 => Some(quantize(tools, x, Heads { count, width, inputs })?),
        ProductKind::Float => None,
    };
    let input = Input { quantized, floats: x.binding(), cols: inputs, stride: width };
    products(tools, (&jobs, &pairs), &input, &Output::of(out, Write::Set))?;
    let Tools { recorder, pipelines, .. } = tools;
    let sizes = [x.rows * count, inputs, outputs, rest];
    copy_rest(recorder, &pipelines.heads_rest, sizes, [x.binding(), out.binding()])
}

/// What follows the first elements of heads.
fn copy_rest(
    recorder: &mut Recorder,
    pipeline: &Pipeline,
    [places, inputs, outputs, rest]: [usize; 4],
    bindings: [Binding; 2],
) -> Result<(), EngineError> {
    if rest == 0 {
        return Ok(());
    }
    let elements = places * rest;
    let [places, inputs] = [word("heads", places)?, word("columns", inputs)?];
    let [outputs, rest] = [word("columns", outputs)?, word("columns", rest)?];
    let params = Rest { places, inputs, outputs, rest };
    let cost = (spread(elements.div_ceil(64)), elements as u64);
    Ok(recorder.dispatch(pipeline, &bindings, &params, cost)?)
}

//! Products with matrices: what the host decides for them, and the kernels.
//!
//! A kernel computes blocks: one matrix at one level for some pairs of rows, of the input and of the
//! output. Blocks of all matrices go together, whatever their levels.

use std::ops::Range;

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
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::matrix::CudaMatrix;
use crate::memory::{CudaBuffer, CudaFloats, word};
use crate::params::{
    Block, GRID_ROWS_MAX, HeadsRestParams, MATMUL_PAIRS_MAX, MATVEC_PAIRS_MAX, MATVEC_TILES_MAX,
    ProductParams,
};
use crate::recorder::Recorder;
use crate::scratch::Quantized;

/// One matrix at one level.
#[derive(Clone)]
pub(super) struct Job<'a> {
    pub matrix: &'a CudaMatrix,
    pub bias: Option<&'a CudaFloats>,
    pub kind: ProductKind,
    pub level: Level,
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
        Linear { matrix, bias }: &'a Linear<CudaBackend>,
        level: Level,
        (out_col, pairs): (usize, Range<usize>),
    ) -> Result<Self, EngineError> {
        matrix.check(level)?;
        let (kind, rows) = (matrix.form.kind, 0..matrix.form.rows);
        Ok(Self { matrix, bias: bias.as_ref(), kind, level, rows, out_col, pairs })
    }
}

impl Job<'_> {
    /// Whether one row is multiplied with a nested matrix, in int8.
    pub fn is_one_row(&self) -> bool {
        Way::of(self) == Way::One
    }

    fn check(&self, input: &Input) -> Result<(), EngineError> {
        expect("inputs of a matrix", self.matrix.form.cols, input.cols)?;
        self.bias.map_or(Ok(()), |bias| expect("bias", self.matrix.form.rows, bias.len))
    }
}

/// What products read.
#[derive(Clone, Copy)]
pub(super) struct Input {
    /// For jobs with [`ProductKind::Int8`].
    pub quantized: Option<Quantized>,
    /// For the others.
    pub floats: Address,
    /// Elements of a row.
    pub cols: usize,
    /// Elements from one row to the next.
    pub stride: usize,
}

/// Where products go: rows of `cols`.
#[derive(Clone, Copy)]
pub(super) struct Output {
    pub values: Address,
    pub cols: usize,
    pub write: Write,
}

impl Output {
    pub fn of(buffer: &CudaBuffer, write: Write) -> Self {
        Self { values: buffer.address(), cols: buffer.cols, write }
    }
}

/// Cells of a matrix, a tile by a group each, that one block of threads takes at once.
const CELLS_AT_ONCE: usize = 128;

/// From so many pairs of a job on, tensor cores are worth what they need at least.
const MANY_PAIRS: usize = 9;

/// The ways to compute a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Int8, one pair.
    One,
    /// Int8, few pairs.
    Few,
    /// Int8, many pairs: on tensor cores.
    Many,
    /// Int8, rows of the matrix one after another.
    RowMajor,
    Float,
}

impl Way {
    fn of(job: &Job) -> Self {
        match (job.kind, job.pairs.len()) {
            (ProductKind::Float, _) => Self::Float,
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
            Self::Float => Kernel::MatvecFloat,
        }
    }

    /// The most pairs of a block.
    fn pairs_max(self) -> usize {
        match self {
            Self::One => 1,
            Self::Few => MATVEC_PAIRS_MAX as usize,
            Self::Many => MATMUL_PAIRS_MAX as usize,
            Self::RowMajor | Self::Float => 32,
        }
    }
}

/// Rows of a matrix that blocks are cut at: what blocks of threads take of it at once, of all kernels.
const ROWS_TOGETHER: usize = 128;

/// What a kernel's work is counted as.
pub(super) fn work_kind(kernel: Kernel) -> WorkKind {
    match kernel {
        Kernel::MatmulNested => WorkKind::ManyRows,
        Kernel::MatvecFloat => WorkKind::Floats,
        _ => WorkKind::FewRows,
    }
}

/// Pairs that take as long as so many: a kernel does not get faster with fewer of them than it takes at
/// once.
pub(super) fn counted_pairs(kernel: Kernel, pairs: usize) -> usize {
    match kernel {
        Kernel::MatmulNested => pairs.next_multiple_of(MATMUL_PAIRS_MAX as usize),
        Kernel::MatvecFloat => pairs.next_multiple_of(FLOAT_PAIRS),
        // Weights are decoded again for each.
        Kernel::MatvecRowMajor => pairs * MATVEC_PAIRS_MAX as usize,
        _ => pairs.next_multiple_of(MATVEC_PAIRS_MAX as usize),
    }
}

/// Pairs that `matvec_float` takes at once.
const FLOAT_PAIRS: usize = 4;

/// Tiles that one block of threads takes, so that it has work for all of them.
fn tiles_per_block(groups: usize) -> u32 {
    let tiles = CELLS_AT_ONCE / groups.max(1);
    (tiles as u32).clamp(1, MATVEC_TILES_MAX)
}

/// Blocks that one kernel computes.
#[derive(Default)]
struct Blocks {
    all: Vec<Block>,
    /// Of each, how much it computes.
    work: Vec<u64>,
    /// Tiles of the largest.
    tiles: usize,
}

impl Blocks {
    /// Cuts a job's pairs into blocks, and blocks of more than so much work by rows of the matrix.
    fn push(
        &mut self,
        job: &Job,
        (kernel, pairs_max): (Kernel, usize),
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
                    matrix: job.matrix.address(),
                    bias: job.bias.map_or(0, |bias| bias.address() + 4 * before as u64),
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
    tools: &mut Tools<'_>,
    (jobs, pairs): (&[Job], &[RowPair]),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let mut ways: Vec<(Way, Blocks)> = Vec::new();
    for job in jobs {
        job.check(input)?;
        let way = Way::of(job);
        let known = ways.iter().position(|(other, _)| *other == way);
        let at = known.unwrap_or_else(|| {
            ways.push((way, Blocks::default()));
            ways.len() - 1
        });
        let work_max = tools.recorder.rates.launch_work(work_kind(way.kernel()));
        ways[at].1.push(job, (way.kernel(), way.pairs_max()), work_max)?;
    }
    let pairs = tools.recorder.table(pairs)?;
    ways.iter().try_for_each(|(way, blocks)| record(tools, (*way, blocks, pairs), input, output))
}

/// Blocks in memory of the device, for one kernel.
#[derive(Clone)]
pub(super) struct Call {
    pub kernel: Kernel,
    pub blocks: Address,
    /// Of each block, how much it computes.
    pub work: Vec<u64>,
    /// Tiles of the largest.
    pub tiles: usize,
    pub pairs: Address,
}

impl Call {
    /// Its blocks in groups of so many that lie together, by launches that are not too long: where they
    /// are, how many, and their work.
    pub fn launches(
        &self,
        recorder: &Recorder,
        together: usize,
    ) -> Vec<(Address, usize, (WorkKind, u64))> {
        let kind = work_kind(self.kernel);
        let sum = |work: &[u64]| work.iter().fold(0, |sum: u64, work| sum.saturating_add(*work));
        let groups: Vec<u64> = self.work.chunks(together).map(sum).collect();
        let pieces = pieces(groups.iter().copied(), recorder.rates.launch_work(kind));
        let launch = |first: usize, count: usize| {
            let address = self.blocks + (first * together * size_of::<Block>()) as u64;
            (address, count, (kind, sum(&groups[first..first + count])))
        };
        // No more than a grid has rows.
        let rows = GRID_ROWS_MAX as usize;
        let parts = |piece: Range<usize>| {
            let end = piece.end;
            piece.step_by(rows).map(move |first| (first, rows.min(end - first)))
        };
        let parts = pieces.into_iter().flat_map(parts);
        parts.map(|(first, count)| launch(first, count)).collect()
    }
}

/// The parameters of a kernel that computes blocks, so many tiles a block.
pub(super) fn params_of(
    Call { blocks, pairs, .. }: &Call,
    tiles_per_block: u32,
    input: &Input,
    output: &Output,
) -> Result<ProductParams, EngineError> {
    let quantized = input.quantized.unwrap_or_default();
    Ok(ProductParams {
        blocks: *blocks,
        pairs: *pairs,
        x_values: quantized.values,
        x_scales: quantized.scales,
        x: input.floats,
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
    tools: &mut Tools<'_>,
    (way, blocks, pairs): (Way, &Blocks, Address),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let all = tools.recorder.table(&blocks.all)?;
    let (kernel, work, tiles) = (way.kernel(), blocks.work.clone(), blocks.tiles);
    let call = Call { kernel, blocks: all, work, tiles, pairs };
    call_kernel(tools, &call, input, output)
}

/// The blocks of all jobs for one kernel, in their order.
pub(super) fn call_of(
    tools: &mut Tools<'_>,
    (kernel, jobs): (Kernel, &[Job]),
    (pairs, input): (&[RowPair], &Input),
) -> Result<Call, EngineError> {
    let mut blocks = Blocks::default();
    for job in jobs {
        job.check(input)?;
        // Those of gates and ups stay whole, next to each other.
        blocks.push(job, (kernel, 1), u64::MAX)?;
    }
    let (pairs, all) = (tools.recorder.table(pairs)?, tools.recorder.table(&blocks.all)?);
    Ok(Call { kernel, blocks: all, work: blocks.work, tiles: blocks.tiles, pairs })
}

/// Records a kernel that computes blocks.
pub(super) fn call_kernel(
    Tools { recorder, .. }: &mut Tools<'_>,
    call: &Call,
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let tiles_at_once = match call.kernel {
        Kernel::MatvecNested => tiles_per_block(input.cols.div_ceil(GROUP)),
        _ => 1,
    };
    let params = params_of(call, tiles_at_once, input, output)?;
    let tiles = word("tiles", call.tiles)?;
    for (blocks, count, work) in call.launches(recorder, 1) {
        let params = ProductParams { blocks, ..params };
        let count = word("blocks", count)?;
        recorder.launch_of(work, params.launch(call.kernel, count, tiles), &params)?;
    }
    Ok(())
}

/// The activations of a step as the input of products with these matrices.
pub(super) fn input_of<'a>(
    tools: &mut Tools<'_>,
    x: &CudaBuffer,
    mut matrices: impl Iterator<Item = &'a CudaMatrix>,
) -> Result<Input, EngineError> {
    let is_int8 = matrices.any(|matrix| matrix.form.kind == ProductKind::Int8);
    input_for(tools, x, if is_int8 { ProductKind::Int8 } else { ProductKind::Float })
}

/// The activations of a step as the input of products of this kind.
pub(super) fn input_for(
    tools: &mut Tools<'_>,
    x: &CudaBuffer,
    kind: ProductKind,
) -> Result<Input, EngineError> {
    let quantized = match kind {
        ProductKind::Int8 => match x.int8(tools.recorder) {
            Some(made) => Some(made),
            None => Some(quantize(tools, x, Heads { count: 1, width: x.cols, inputs: x.cols })?),
        },
        ProductKind::Float => None,
    };
    Ok(Input { quantized, floats: x.address(), cols: x.cols, stride: x.cols })
}

pub(super) fn matmul(
    tools: &mut Tools<'_>,
    (weights, levels): (&[Linear<CudaBackend>], &[Level]),
    x: &CudaBuffer,
    write: Write,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    expect("outputs", out.cols, weights.iter().map(|linear| linear.matrix.form.rows).sum())?;
    match write {
        Write::Set => out.resize(tools.recorder, x.rows)?,
        Write::Add => expect("rows of a sum", x.rows, out.rows)?,
    }
    linear(tools, (weights, levels), x, &Output::of(out, write))
}

fn linear(
    tools: &mut Tools<'_>,
    (weights, levels): (&[Linear<CudaBackend>], &[Level]),
    x: &CudaBuffer,
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
    matrix: &CudaMatrix,
    x: &CudaBuffer,
    out: Address,
) -> Result<(), EngineError> {
    let level = Level::L8;
    matrix.check(level)?;
    let (pairs, _) = pairs_by_level(x.rows, &vec![level; x.rows])?;
    let (kind, rows, of_all) = (ProductKind::Float, 0..matrix.form.rows, 0..pairs.len());
    let job = Job { matrix, bias: None, kind, level, rows, out_col: 0, pairs: of_all };
    let input = Input { quantized: None, floats: x.address(), cols: x.cols, stride: x.cols };
    let output = Output { values: out, cols: matrix.form.rows, write: Write::Set };
    products(tools, (&[job], &pairs), &input, &output)
}

pub(super) fn matmul_heads(
    tools: &mut Tools<'_>,
    (weights, levels): (&HeadMatrices<CudaBackend>, &[Level]),
    x: &CudaBuffer,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    let matrix = &weights.matrix;
    let heads = HeadsForm::of(&matrix.form, weights.heads, (x.cols, out.cols))?;
    let HeadsForm { count, inputs, outputs, width, rest } = heads;
    let (rows, ranges) = pairs_by_level(x.rows, levels)?;
    out.resize(tools.recorder, x.rows)?;
    let (mut pairs, mut jobs) = (Vec::with_capacity(count * rows.len()), Vec::new());
    for head in 0..count {
        for (level, range) in &ranges {
            matrix.check(*level)?;
            let pairs = push_head(&mut pairs, &rows[range.clone()], (head, count));
            jobs.push(Job {
                matrix,
                bias: None,
                kind: matrix.form.kind,
                level: *level,
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
    let input = Input { quantized, floats: x.address(), cols: inputs, stride: width };
    products(tools, (&jobs, &pairs), &input, &Output::of(out, Write::Set))?;
    let params = HeadsRestParams {
        x: x.address(),
        out: out.address(),
        places: word("heads", x.rows * count)?,
        inputs: word("columns", inputs)?,
        outputs: word("columns", outputs)?,
        rest: word("columns", rest)?,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

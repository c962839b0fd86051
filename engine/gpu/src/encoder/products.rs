//! Matrix products: assigns rows to matrices and levels.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{HeadMatrices, Linear, Write};
use nestling_formats::Level;

use super::quantize::{Heads, quantize};
use crate::device::Device;
use crate::memory::GpuBuffer;
use crate::operation::{HeadsRest, Input, Job, Operation, Output, Products};
use crate::product_form::{HeadsForm, ProductKind};
use crate::row_pairs::{RowPair, pairs_by_level, push_head};
use crate::storage::word;

impl<'a, D: Device> Job<'a, D> {
    /// Creates a job for all rows of a matrix at a level, for a range of row pairs.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if the level's planes are not resident.
    pub(super) fn new(
        Linear { matrix, bias, outputs }: &'a Linear<D>,
        level: Level,
        out_col: usize,
        pairs: Range<usize>,
    ) -> Result<Self, EngineError> {
        matrix.check(level)?;
        let (kind, rows) = (matrix.form.kind, 0..matrix.form.rows);
        let out_col = out_col + outputs.first;
        Ok(Self { matrix, bias: bias.as_ref(), kind, level, rows, out_col, pairs })
    }
}

impl<B> Output<B> {
    /// Creates an output that covers a buffer.
    pub fn of<D: Device<Binding = B>>(buffer: &GpuBuffer<D>, write: Write) -> Self {
        Self { values: buffer.binding(), cols: buffer.cols, write }
    }
}

/// Records the products of all jobs.
pub(super) fn products<D: Device>(
    device: &mut D,
    products: &Products<'_, D>,
) -> Result<(), EngineError> {
    device.record(Operation::Products(Products { ..*products }))
}

/// Returns a step's activations as the input of products with these matrices.
pub(super) fn input_of<'a, D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    mut matrices: impl Iterator<Item = &'a D::Matrix>,
) -> Result<Input<D::Binding>, EngineError> {
    let is_int8 = matrices.any(|matrix| matrix.form.kind == ProductKind::Int8);
    input_for(device, x, if is_int8 { ProductKind::Int8 } else { ProductKind::Float })
}

/// Returns a step's activations as the input of products of one kind.
///
/// # Errors
/// Fails like [`Device::record`].
pub(super) fn input_for<D: Device>(
    device: &mut D,
    x: &GpuBuffer<D>,
    kind: ProductKind,
) -> Result<Input<D::Binding>, EngineError> {
    let quantized = match kind {
        ProductKind::Int8 => match x.int8(device) {
            Some(made) => Some(made),
            None => Some(quantize(device, x, Heads { count: 1, width: x.cols, inputs: x.cols })?),
        },
        ProductKind::Float => None,
    };
    Ok(Input { quantized, floats: Some(x.binding()), cols: x.cols, stride: x.cols })
}

pub(super) fn matmul<D: Device>(
    device: &mut D,
    weights: &[Linear<D>],
    levels: &[Level],
    x: &GpuBuffer<D>,
    write: Write,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    match write {
        Write::Set => out.resize(device, x.rows)?,
        Write::Add => {}
    }
    let output = Output::of(out, write);
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let (mut jobs, mut out_col) = (Vec::new(), 0);
    for linear in weights {
        for (level, pairs) in &ranges {
            jobs.push(Job::new(linear, *level, out_col, pairs.clone())?);
        }
        out_col += linear.outputs.whole;
    }
    let input = input_of(device, x, weights.iter().map(|linear| &linear.matrix))?;
    products(device, &Products { jobs: &jobs, pairs: &pairs, input: &input, output: &output })
}

/// Computes `out = W x` at the highest level with float activations, regardless of the matrix's mode. Routers
/// compute logits this way.
pub(super) fn multiply_float<D: Device>(
    device: &mut D,
    matrix: &D::Matrix,
    x: &GpuBuffer<D>,
    out: D::Binding,
) -> Result<(), EngineError> {
    let (level, kind) = (Level::L8, ProductKind::Float);
    matrix.check(level)?;
    let (pairs, _) = pairs_by_level(x.rows, &vec![level; x.rows])?;
    let (rows, of_all) = (0..matrix.form.rows, 0..pairs.len());
    let output = Output { values: out, cols: rows.end, write: Write::Set };
    let job = Job { matrix, bias: None, kind, level, rows, out_col: 0, pairs: of_all };
    let floats = Some(x.binding());
    let input = Input { quantized: None, floats, cols: x.cols, stride: x.cols };
    let (jobs, pairs): (&[_], &[RowPair]) = (&[job], &pairs);
    products(device, &Products { jobs, pairs, input: &input, output: &output })
}

pub(super) fn matmul_heads<D: Device>(
    device: &mut D,
    weights: &HeadMatrices<D>,
    levels: &[Level],
    x: &GpuBuffer<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (matrix, form) = (&weights.matrix, weights.matrix.form);
    let heads = HeadsForm::of(&form, weights.heads, x.cols, out.cols)?;
    let HeadsForm { count, inputs, outputs, width, rest } = heads;
    let (rows, ranges) = pairs_by_level(x.rows, levels)?;
    out.resize(device, x.rows)?;
    let (mut pairs, mut jobs) = (Vec::with_capacity(count * rows.len()), Vec::new());
    for head in 0..count {
        for (level, range) in &ranges {
            matrix.check(*level)?;
            let pairs = push_head(&mut pairs, &rows[range.clone()], head, count);
            jobs.push(Job {
                matrix,
                bias: None,
                kind: form.kind,
                level: *level,
                rows: head * outputs..(head + 1) * outputs,
                out_col: head * (outputs + rest),
                pairs,
            });
        }
    }
    let quantized = match form.kind {
        ProductKind::Int8 => Some(quantize(device, x, Heads { count, width, inputs })?),
        ProductKind::Float => None,
    };
    let input = Input { quantized, floats: Some(x.binding()), cols: inputs, stride: width };
    let output = Output::of(out, Write::Set);
    products(device, &Products { jobs: &jobs, pairs: &pairs, input: &input, output: &output })?;
    device.record(Operation::HeadsRest(HeadsRest {
        x: x.binding(),
        out: out.binding(),
        heads: word("heads", x.rows * count)?,
        inputs: word("columns", inputs)?,
        outputs: word("columns", outputs)?,
        rest: word("columns", rest)?,
    }))
}

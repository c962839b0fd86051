//! Feed-forward parts: dense ones, and a layer's experts.
//!
//! Gate and up of all of them are one set of products, side by side; what joins them is the input
//! of the other set, down.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, PinnedExpert, Write};
use nestling_formats::Level;
use nestling_formats::nested::GROUP;
use nestling_gpu::{
    ProductForm, ProductKind, RowPair, by_way_of, check_feed_forward, expect, pairs_by_level,
    push_uses, within,
};
use nestling_import::Activation;

use super::Tools;
use super::products::{Call, Input, Job, Output, call_of, input_of, params_of, products};
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::memory::{CudaBuffer, CudaRouting, word};
use crate::params::{GATED_TILES, GatedParams, GatedProductParams, ProductParams};

/// Bytes of gates and ups that are computed together, at most.
pub(crate) const GATE_UP_BYTES_MAX: usize = 256 << 20;

/// One feed-forward part at one level, for some pairs of rows.
#[derive(Clone)]
struct Use<'a> {
    weights: &'a FeedForward<CudaBackend>,
    level: Level,
    pairs: Range<usize>,
}

pub(super) fn ffn(
    tools: &mut Tools<'_>,
    (weights, levels): (&FeedForward<CudaBackend>, &[Level]),
    x: &CudaBuffer,
    write: Write,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    match write {
        Write::Set => out.resize(tools.recorder, x.rows)?,
        Write::Add => expect("rows of a sum", x.rows, out.rows)?,
    }
    let output = &Output::of(out, write);
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let uses = ranges.into_iter().map(|(level, pairs)| Use { weights, level, pairs });
    feed_forward(tools, (&uses.collect::<Vec<_>>(), &pairs), x, output)
}

pub(super) fn experts(
    tools: &mut Tools<'_>,
    (experts, routing): (&[PinnedExpert<'_, CudaBackend>], &CudaRouting),
    x: &CudaBuffer,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.per_token;
    expect("rows of the routing", x.rows, routing.rows)?;
    expect("outputs of an expert", x.cols, out.cols)?;
    out.resize(tools.recorder, x.rows * per_token)?;
    let (mut uses, mut pairs) = (Vec::new(), Vec::new());
    for expert in experts {
        let ranges = push_uses(&mut pairs, expert.uses, (x.rows, per_token))?;
        let weights = &*expert.weights;
        uses.extend(ranges.into_iter().map(|(level, pairs)| Use { weights, level, pairs }));
    }
    feed_forward(tools, (&uses, &pairs), x, &Output::of(out, Write::Set))
}

/// What parts must share to be computed together.
fn kind(used: &Use) -> (Activation, usize, ProductKind, bool) {
    let FeedForward { activation, gate, down, .. } = used.weights;
    (*activation, gate.matrix.form.rows, down.matrix.form.kind, down.matrix.form.rotated)
}

fn feed_forward(
    tools: &mut Tools<'_>,
    (uses, pairs): (&[Use], &[RowPair]),
    x: &CudaBuffer,
    output: &Output,
) -> Result<(), EngineError> {
    for used in uses {
        let FeedForward { gate, up, down, .. } = used.weights;
        let forms = [gate, up, down].map(|linear| &linear.matrix.form);
        check_feed_forward(forms, output.cols)?;
    }
    let first = uses.iter().flat_map(|used| [&used.weights.gate.matrix, &used.weights.up.matrix]);
    let input = input_of(tools, x, first)?;
    for uses in uses.chunk_by(|a, b| kind(a) == kind(b)) {
        let (Some(first), Some(last)) = (uses.first(), uses.last()) else { continue };
        let width = first.weights.gate.matrix.form.rows;
        let rows_max = (GATE_UP_BYTES_MAX / (8 * width.max(1))).max(1);
        for start in (first.pairs.start..last.pairs.end).step_by(rows_max) {
            let window = start..last.pairs.end.min(start + rows_max);
            joined(tools, (uses, pairs, window), &input, output)?;
        }
    }
    Ok(())
}

/// The parts' pairs of one window. Rows of gates and ups are numbered from its start on.
fn joined(
    tools: &mut Tools<'_>,
    (uses, pairs, window): (&[Use], &[RowPair], Range<usize>),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let Some(first) = uses.first() else { return Ok(()) };
    let (width, rows) = (first.weights.gate.matrix.form.rows, window.len());
    let (mut to_inner, mut to_out) = (Vec::new(), Vec::new());
    for used in uses {
        let (level, pairs) = (used.level, within(&used.pairs, &window));
        if pairs.is_empty() {
            continue;
        }
        let FeedForward { gate, up, down, .. } = used.weights;
        to_inner.push(Job::new(gate, level, (0, pairs.clone()))?);
        to_inner.push(Job::new(up, level, (width, pairs.clone()))?);
        to_out.push(Job::new(down, level, (0, pairs))?);
    }
    let (inner_pairs, out_pairs) = by_way_of(&pairs[window.clone()]);
    let joint = Joint::of(first.weights);
    if joint.kind == ProductKind::Int8 && to_inner.iter().all(Job::is_one_row) {
        let call = call_of(tools, (Kernel::MatvecGatedQuantize, &to_inner), (&inner_pairs, input))?;
        let input = gated_products(tools, (&call, joint), input, (rows, width))?;
        return products(tools, (&to_out, &out_pairs), &input, output);
    }
    let gate_up = tools.scratch.gate_up.of(tools.recorder, 2 * rows * width)?;
    let inner = Output { values: gate_up, cols: 2 * width, write: Write::Set };
    products(tools, (&to_inner, &inner_pairs), input, &inner)?;
    let input = gated(tools, joint, gate_up, (rows, width))?;
    products(tools, (&to_out, &out_pairs), &input, output)
}

/// Multiplies with gates and ups, blocks of one row each that lie one after the other, and joins what
/// they give, as down takes it in int8.
pub(super) fn gated_products(
    Tools { recorder, scratch, .. }: &mut Tools<'_>,
    (call, joint): (&Call, Joint),
    input: &Input,
    (rows, width): (usize, usize),
) -> Result<Input, EngineError> {
    let out = scratch.inner.of(recorder, rows * width.div_ceil(GROUP))?;
    let nowhere = Output { values: 0, cols: width, write: Write::Set };
    let (kind, alpha, limit) = joint.words();
    let params = GatedProductParams {
        products: params_of(call, GATED_TILES, input, &nowhere)?,
        values: out.values,
        scales: out.scales,
        kind,
        alpha,
        limit,
        is_rotated: u32::from(joint.rotated),
    };
    let tiles = word("tiles", call.tiles)?;
    // A gate and its up.
    for (blocks, gates, work) in call.launches(recorder, 2) {
        let products = ProductParams { blocks, ..params.products };
        let params = GatedProductParams { products, ..params };
        let gates = word("blocks", gates)?;
        recorder.launch_of(work, params.launch(gates, tiles), &params)?;
    }
    Ok(Input { quantized: Some(out), floats: 0, cols: width, stride: width })
}

/// How gates and ups are joined, and how down takes what they give.
#[derive(Clone, Copy)]
pub(super) struct Joint {
    pub activation: Activation,
    pub kind: ProductKind,
    pub rotated: bool,
}

impl Joint {
    fn of(FeedForward { activation, down, .. }: &FeedForward<CudaBackend>) -> Self {
        let ProductForm { kind, rotated, .. } = down.matrix.form;
        Self { activation: *activation, kind, rotated }
    }

    /// The activation, its alpha and its limit, as kernels take them.
    fn words(self) -> (u32, f32, f32) {
        match self.activation {
            Activation::Silu => (0, 0.0, 0.0),
            Activation::ClampedSwiglu { alpha, limit } => (1, alpha, limit),
            Activation::GeluTanh => (2, 0.0, 0.0),
        }
    }
}

/// Joins gates and ups, as down takes them.
pub(super) fn gated(
    Tools { recorder, scratch, .. }: &mut Tools<'_>,
    joint: Joint,
    gate_up: Address,
    (rows, width): (usize, usize),
) -> Result<Input, EngineError> {
    let (kind, alpha, limit) = joint.words();
    let mut params = GatedParams {
        x: gate_up,
        rows: word("rows", rows)?,
        cols: word("columns", width)?,
        kind,
        alpha,
        limit,
        is_rotated: u32::from(joint.rotated),
        ..GatedParams::default()
    };
    let (kernel, quantized) = match joint.kind {
        ProductKind::Int8 => {
            let out = scratch.inner.of(recorder, rows * width.div_ceil(GROUP))?;
            (params.values, params.scales) = (out.values, out.scales);
            (Kernel::GatedQuantize, Some(out))
        }
        ProductKind::Float => {
            params.out = scratch.inner_float.of(recorder, rows * width)?;
            (Kernel::Gated, None)
        }
    };
    recorder.launch(params.launch(kernel), &params)?;
    Ok(Input { quantized, floats: params.out, cols: width, stride: width })
}

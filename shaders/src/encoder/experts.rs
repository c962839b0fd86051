//! Feed-forward parts: dense ones, and a layer's experts.
//!
//! Gate and up of all of them are one set of products, side by side; what joins them is the input
//! of the other set, down.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, PinnedExpert, Write};
use nestling_formats::Level;
use nestling_formats::nested::GROUP;
use nestling_gpu::{
    ProductKind, RowPair, by_way_of, check_feed_forward, expect, pairs_by_level, push_uses, within,
};
use nestling_import::Activation;

use super::Tools;
use super::products::{Input, Job, Output, input_of, products};
use crate::backend::WgpuBackend;
use crate::memory::{WgpuBuffer, WgpuRouting, word};
use crate::recorder::{Binding, spread};

/// Bytes of gates and ups that are computed together, at most.
pub(crate) const GATE_UP_BYTES_MAX: u64 = 64 << 20;

/// One feed-forward part at one level, for some pairs of rows.
#[derive(Clone)]
struct Use<'a> {
    weights: &'a FeedForward<WgpuBackend>,
    level: Level,
    pairs: Range<usize>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Gated {
    rows: u32,
    cols: u32,
    kind: u32,
    alpha: f32,
    limit: f32,
    rotated: u32,
    padding: [u32; 2],
}

pub(super) fn ffn(
    tools: &mut Tools<'_>,
    (weights, levels): (&FeedForward<WgpuBackend>, &[Level]),
    x: &WgpuBuffer,
    write: Write,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    match write {
        Write::Set => out.resize(tools.gpu, x.rows)?,
        Write::Add => expect("rows of a sum", x.rows, out.rows)?,
    }
    let output = &Output::of(out, write);
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let uses = ranges.into_iter().map(|(level, pairs)| Use { weights, level, pairs });
    feed_forward(tools, (&uses.collect::<Vec<_>>(), &pairs), x, output)
}

pub(super) fn experts(
    tools: &mut Tools<'_>,
    (experts, routing): (&[PinnedExpert<'_, WgpuBackend>], &WgpuRouting),
    x: &WgpuBuffer,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    let per_token = routing.per_token;
    expect("rows of the routing", x.rows, routing.rows)?;
    expect("outputs of an expert", x.cols, out.cols)?;
    out.resize(tools.gpu, x.rows * per_token)?;
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
    x: &WgpuBuffer,
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
        let room = GATE_UP_BYTES_MAX.min(tools.gpu.binding_bytes_max()) as usize;
        let rows_max = (room / (8 * width.max(1))).max(1);
        for start in (first.pairs.start..last.pairs.end).step_by(rows_max) {
            let window = start..last.pairs.end.min(start + rows_max);
            joined(tools, (uses, pairs, window), &input, output)?;
        }
    }
    let parts = uses.iter().flat_map(|used| &used.weights.down.matrix.parts);
    parts.filter_map(|part| part.place.slot).for_each(|slot| tools.recorder.reads_slot(Some(slot)));
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
    let gate_up = tools.scratch.gate_up.of(tools.gpu, 2 * rows * width)?;
    let inner = Output { values: gate_up.clone(), cols: 2 * width, write: Write::Set };
    products(tools, (&to_inner, &inner_pairs), input, &inner)?;
    let FeedForward { activation, down, .. } = first.weights;
    let joint = Joint {
        activation: *activation,
        kind: down.matrix.form.kind,
        rotated: down.matrix.form.rotated,
    };
    let input = gated(tools, joint, &gate_up, (rows, width))?;
    products(tools, (&to_out, &out_pairs), &input, output)
}

/// How gates and ups are joined, and how down takes them.
#[derive(Clone, Copy)]
pub(super) struct Joint {
    pub activation: Activation,
    pub kind: ProductKind,
    pub rotated: bool,
}

/// Joins gates and ups.
pub(super) fn gated(
    Tools { gpu, pipelines, recorder, scratch, .. }: &mut Tools<'_>,
    joint: Joint,
    gate_up: &Binding,
    (rows, width): (usize, usize),
) -> Result<Input, EngineError> {
    let (kind, alpha, limit) = match joint.activation {
        Activation::Silu => (0, 0.0, 0.0),
        Activation::ClampedSwiglu { alpha, limit } => (1, alpha, limit),
        Activation::GeluTanh => (2, 0.0, 0.0),
    };
    let (cols, rotated) = (word("columns", width)?, u32::from(joint.rotated));
    let rows_word = word("rows", rows)?;
    let params = Gated { rows: rows_word, cols, kind, alpha, limit, rotated, padding: [0; 2] };
    let groups = rows * width.div_ceil(GROUP);
    let cost = (spread(groups.div_ceil(64)), (16 * groups * GROUP) as u64);
    let (quantized, floats) = match joint.kind {
        ProductKind::Int8 => {
            let out = scratch.inner.of(gpu, groups)?;
            let bindings = [gate_up.clone(), out.values.clone(), out.scales.clone()];
            recorder.dispatch(&pipelines.gated_quantize, &bindings, &params, cost)?;
            (Some(out), gate_up.clone())
        }
        ProductKind::Float => {
            let out = scratch.inner_float.of(gpu, rows * width)?;
            let bindings = [gate_up.clone(), out.clone()];
            recorder.dispatch(&pipelines.gated, &bindings, &params, cost)?;
            (None, out)
        }
    };
    Ok(Input { quantized, floats, cols: width, stride: width })
}

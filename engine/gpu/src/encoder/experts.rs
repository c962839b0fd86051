//! Feed-forward blocks: dense ones, and the experts of a layer.
//!
//! The gate and up products of all blocks form one set of products, with outputs side by side. The activation
//! joins them into the input of the down products.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{FeedForward, PinnedExpert, Write};
use nestling_formats::Level;
use nestling_formats::nested::GROUP;
use nestling_import::Activation;

use super::products::{input_of, products};
use crate::device::Device;
use crate::device_scratch::DeviceScratch;

use crate::memory::{GpuBuffer, GpuRouting};
use crate::operation::{
    Gated, GatedOutput, GatedProducts, GatesAndUps, Input, Job, Joint, Operation, Output, Products,
};
use crate::product_form::ProductKind;
use crate::row_pairs::{RowPair, by_way_of, pairs_by_level, push_uses, within};
use crate::scratch::{QuantizedRoom, ScratchRoom};
use crate::storage::word;

/// One feed-forward block at one level, for a range of row pairs.
pub(super) struct PartUse<'a, D: Device> {
    pub weights: &'a FeedForward<D>,
    pub level: Level,
    pub pairs: Range<usize>,
}

/// Properties that blocks must share to be computed together.
#[derive(PartialEq)]
pub(super) struct Likeness {
    activation: Activation,
    width: usize,
    kind: ProductKind,
    rotated: bool,
}

impl<D: Device> PartUse<'_, D> {
    pub fn likeness(&self) -> Likeness {
        let FeedForward { activation, up, down, .. } = self.weights;
        let (width, down) = (up.matrix.form.rows, down.matrix.form);
        Likeness { activation: *activation, width, kind: down.kind, rotated: down.rotated }
    }
}

/// Feed-forward blocks and the row pairs that use them.
pub(super) struct PartUses<'a, D: Device> {
    pub uses: &'a [PartUse<'a, D>],
    pub pairs: &'a [RowPair],
}

pub(super) fn ffn<D: Device>(
    device: &mut D,
    weights: &FeedForward<D>,
    levels: &[Level],
    x: &GpuBuffer<D>,
    write: Write,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (uses, pairs) = dense_uses(device, weights, levels, x, write, out)?;
    let output = Output::of(out, write);
    feed_forward(device, &PartUses { uses: &uses, pairs: &pairs }, x, &output)
}

/// Uses of parts, and the row pairs that they refer to.
pub(super) type UsesOfPairs<'a, D> = (Vec<PartUse<'a, D>>, Vec<RowPair>);

/// Returns the uses of a block that all rows pass.
pub(super) fn dense_uses<'a, D: Device>(
    device: &mut D,
    weights: &'a FeedForward<D>,
    levels: &[Level],
    x: &GpuBuffer<D>,
    write: Write,
    out: &mut GpuBuffer<D>,
) -> Result<UsesOfPairs<'a, D>, EngineError> {
    match write {
        Write::Set => out.resize(device, x.rows)?,
        Write::Add => {}
    }
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let uses = ranges.into_iter().map(|(level, pairs)| PartUse { weights, level, pairs });
    Ok((uses.collect(), pairs))
}

pub(super) fn experts<D: Device>(
    device: &mut D,
    experts: &[PinnedExpert<'_, D>],
    routing: &GpuRouting<D>,
    x: &GpuBuffer<D>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (uses, pairs) = expert_uses(device, experts, routing, x, out)?;
    let output = Output::of(out, Write::Set);
    feed_forward(device, &PartUses { uses: &uses, pairs: &pairs }, x, &output)
}

/// Returns the uses of experts.
pub(super) fn expert_uses<'a, D: Device>(
    device: &mut D,
    experts: &'a [PinnedExpert<'_, D>],
    routing: &GpuRouting<D>,
    x: &GpuBuffer<D>,
    out: &mut GpuBuffer<D>,
) -> Result<UsesOfPairs<'a, D>, EngineError> {
    let per_token = routing.per_token;
    out.resize(device, x.rows * per_token)?;
    let (mut uses, mut pairs) = (Vec::new(), Vec::new());
    for expert in experts {
        let ranges = push_uses(&mut pairs, expert.uses, x.rows, per_token)?;
        let weights = &*expert.weights;
        uses.extend(ranges.into_iter().map(|(level, pairs)| PartUse { weights, level, pairs }));
    }
    Ok((uses, pairs))
}

fn feed_forward<D: Device>(
    device: &mut D,
    PartUses { uses, pairs }: &PartUses<'_, D>,
    x: &GpuBuffer<D>,
    output: &Output<D::Binding>,
) -> Result<(), EngineError> {
    let weights = uses.iter().map(|used| used.weights);
    let first = weights.flat_map(|part| [&part.gate_or_up().matrix, &part.up.matrix]);
    let input = input_of(device, x, first)?;
    for uses in uses.chunk_by(|a, b| a.likeness() == b.likeness()) {
        let (Some(first), Some(last)) = (uses.first(), uses.last()) else { continue };
        let width = first.weights.up.matrix.form.rows;
        let room = D::GATE_UP_BYTES_MAX.min(device.allocation_bytes_max()) as usize;
        let rows_max = (room / (8 * width.max(1))).max(1);
        for start in (first.pairs.start..last.pairs.end).step_by(rows_max) {
            let window = start..last.pairs.end.min(start + rows_max);
            joined(device, &PartUses { uses, pairs }, window, &input, output)?;
        }
    }
    Ok(())
}

/// Computes the pairs of one window. Rows of gates and ups are numbered from the start of the window.
fn joined<D: Device>(
    device: &mut D,
    PartUses { uses, pairs }: &PartUses<'_, D>,
    window: Range<usize>,
    input: &Input<D::Binding>,
    output: &Output<D::Binding>,
) -> Result<(), EngineError> {
    let Some(first) = uses.first() else { return Ok(()) };
    let (width, rows) = (first.weights.up.matrix.form.rows, window.len());
    let (mut to_inner, mut to_out) = (Vec::new(), Vec::new());
    for used in *uses {
        let (level, pairs) = (used.level, within(&used.pairs, &window));
        if pairs.is_empty() {
            continue;
        }
        let FeedForward { up, down, .. } = used.weights;
        to_inner.push(Job::new(used.weights.gate_or_up(), level, 0, pairs.clone())?);
        to_inner.push(Job::new(up, level, width, pairs.clone())?);
        to_out.push(Job::new(down, level, 0, pairs)?);
    }
    let (inner_pairs, out_pairs) = by_way_of(&pairs[window]);
    let FeedForward { activation, down, .. } = first.weights;
    let (activation, form) = (*activation, down.matrix.form);
    let joint = Joint { activation, kind: form.kind, rotated: form.rotated };
    let (jobs, pairs) = (&to_inner, &inner_pairs);
    let gates = GatesAndUps::Jobs { jobs, pairs };
    let fused = GatedProducts { products: gates, input, joint, rows, cols: width };
    let input = match device.record_gated(&fused)? {
        Some(input) => input,
        None => {
            let gate_up = device.scratch(ScratchRoom::GateUp, 2 * rows * width)?;
            let values = gate_up.clone();
            let inner = &Output { values, cols: 2 * width, write: Write::Set };
            products(device, &Products { jobs, pairs, input, output: inner })?;
            gated(device, joint, gate_up, rows, width)?
        }
    };
    products(device, &Products { jobs: &to_out, pairs: &out_pairs, input: &input, output })
}

/// Joins gates and ups into the input of the down products.
///
/// # Errors
/// Fails like [`Device::record`].
pub(super) fn gated<D: Device>(
    device: &mut D,
    joint: Joint,
    gate_up: D::Binding,
    rows: usize,
    width: usize,
) -> Result<Input<D::Binding>, EngineError> {
    let groups = rows * width.div_ceil(GROUP);
    let (quantized, floats, out) = match joint.kind {
        ProductKind::Int8 => {
            let out = device.quantized_scratch(QuantizedRoom::INNER, groups)?;
            (Some(out.clone()), None, GatedOutput::Int8(out))
        }
        ProductKind::Float => {
            let out = device.scratch(ScratchRoom::InnerFloats, rows * width)?;
            (None, Some(out.clone()), GatedOutput::Floats(out))
        }
    };
    let (rows, cols) = (word("rows", rows)?, word("columns", width)?);
    device.record(Operation::Gated(Gated { joint, gate_up, out, rows, cols, groups }))?;
    Ok(Input { quantized, floats, cols: width, stride: width })
}

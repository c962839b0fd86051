//! Feed-forward parts of which each rank holds rows: dense ones, and sliced experts.
//!
//! Other ranks' gates and ups are gathered, where the CPU gathers their joined activations. So the kernels that join,
//! rotate and quantize are those of one rank.

use nestling_core::EngineError;
use nestling_core::backend::{CompleteInner, FeedForward, PinnedExpert, Write};
use nestling_formats::Level;

use super::experts::{PartUse, PartUses, dense_uses, expert_uses, gated};
use super::products::{input_of, products};
use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::{GpuBuffer, GpuRouting};
use crate::operation::{Input, Job, Joint, Output, Products};
use crate::row_pairs::{RowPair, by_way_of, within};
use crate::scratch::ScratchRoom;

/// A part of a step's row pairs: as many as scratch memory has room for, of parts that are computed together.
struct Window<'a, D: Device> {
    /// Uses with pairs relative to the window.
    uses: Vec<PartUse<'a, D>>,
    pairs: &'a [RowPair],
}

/// Computes a feed-forward part; `complete` replaces gates and ups of other ranks.
pub(super) fn ffn<D: Device>(
    device: &mut D,
    weights: &FeedForward<D>,
    levels: &[Level],
    x: &GpuBuffer<D>,
    write: Write,
    complete: CompleteInner<'_>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (uses, pairs) = dense_uses(device, weights, levels, x, write, out)?;
    let output = Output::of(out, write);
    feed_forward(device, &PartUses { uses: &uses, pairs: &pairs }, x, complete, &output)
}

/// Computes sliced experts; `complete` replaces gates and ups of other ranks.
pub(super) fn experts<D: Device>(
    device: &mut D,
    experts: &[PinnedExpert<'_, D>],
    routing: &GpuRouting<D>,
    x: &GpuBuffer<D>,
    complete: CompleteInner<'_>,
    out: &mut GpuBuffer<D>,
) -> Result<(), EngineError> {
    let (uses, pairs) = expert_uses(device, experts, routing, x, out)?;
    let output = Output::of(out, Write::Set);
    feed_forward(device, &PartUses { uses: &uses, pairs: &pairs }, x, complete, &output)
}

fn feed_forward<D: Device>(
    device: &mut D,
    PartUses { uses, pairs }: &PartUses<'_, D>,
    x: &GpuBuffer<D>,
    complete: CompleteInner<'_>,
    output: &Output<D::Binding>,
) -> Result<(), EngineError> {
    let weights = uses.iter().map(|used| used.weights);
    let first = weights.flat_map(|part| [&part.gate_or_up().matrix, &part.up.matrix]);
    let input = input_of(device, x, first)?;
    let room = D::GATE_UP_BYTES_MAX.min(device.allocation_bytes_max()) as usize;
    let windows = windows(uses, pairs, room);
    let mut values = Vec::new(); // [pairs, 2, I]
    for window in &windows {
        window.compute_gates_and_ups(device, &input, &mut values)?;
    }
    complete(&mut values)?;
    let mut rest = &values[..];
    for window in &windows {
        let (values, after) = rest.split_at(window.count());
        window.multiply_down(device, values, output)?;
        rest = after;
    }
    Ok(())
}

/// Divides uses into windows whose gates and ups fit into `room` bytes.
fn windows<'a, D: Device>(
    uses: &[PartUse<'a, D>],
    pairs: &'a [RowPair],
    room: usize,
) -> Vec<Window<'a, D>> {
    let mut windows = Vec::new();
    for uses in uses.chunk_by(|a, b| a.likeness() == b.likeness()) {
        let (Some(first), Some(last)) = (uses.first(), uses.last()) else { continue };
        let width = first.weights.up.outputs.whole;
        let rows_max = (room / (8 * width.max(1))).max(1);
        for start in (first.pairs.start..last.pairs.end).step_by(rows_max) {
            let window = start..last.pairs.end.min(start + rows_max);
            let of_use = |used: &PartUse<'a, D>| {
                let (weights, level) = (used.weights, used.level);
                PartUse { weights, level, pairs: within(&used.pairs, &window) }
            };
            let uses = uses.iter().map(of_use).filter(|used| !used.pairs.is_empty());
            windows.push(Window { uses: uses.collect(), pairs: &pairs[window.clone()] });
        }
    }
    windows
}

impl<D: Device> Window<'_, D> {
    /// Appends gates and ups to `values`. Those of other ranks are unspecified.
    fn compute_gates_and_ups(
        &self,
        device: &mut D,
        input: &Input<D::Binding>,
        values: &mut Vec<f32>, // [pairs, 2, I]
    ) -> Result<(), EngineError> {
        let (width, count) = (self.width(), self.count());
        let (pairs, _) = by_way_of(self.pairs);
        let mut jobs = Vec::with_capacity(2 * self.uses.len());
        for PartUse { weights, level, pairs } in &self.uses {
            jobs.push(Job::new(weights.gate_or_up(), *level, 0, pairs.clone())?);
            jobs.push(Job::new(&weights.up, *level, width, pairs.clone())?);
        }
        let gate_up = device.scratch(ScratchRoom::GateUp, count)?;
        let output = Output { values: gate_up.clone(), cols: 2 * width, write: Write::Set };
        products(device, &Products { jobs: &jobs, pairs: &pairs, input, output: &output })?;
        device.recorder().read(&[(gate_up, 4 * count as u64)], |bytes| {
            values.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        })?;
        Ok(device.recorder().begin_operation()?)
    }

    /// Joins gates and ups, and computes this rank's columns of the output.
    fn multiply_down(
        &self,
        device: &mut D,
        values: &[f32], // [pairs, 2, I]
        output: &Output<D::Binding>,
    ) -> Result<(), EngineError> {
        let Some(first) = self.uses.first() else { return Ok(()) };
        let FeedForward { activation, down, .. } = first.weights;
        let (_, pairs) = by_way_of(self.pairs);
        let gate_up = device.scratch(ScratchRoom::GateUp, self.count())?;
        device.recorder().write(bytemuck::cast_slice(values), &gate_up, 0)?;
        device.recorder().begin_operation()?;
        let form = down.matrix.form;
        let joint = Joint { activation: *activation, kind: form.kind, rotated: form.rotated };
        let input = gated(device, joint, gate_up, self.pairs.len(), self.width())?;
        let jobs = self.uses.iter().map(|used| {
            let PartUse { weights, level, pairs } = used;
            Job::new(&weights.down, *level, 0, pairs.clone())
        });
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        products(device, &Products { jobs: &jobs, pairs: &pairs, input: &input, output })
    }

    /// Inner width of the whole parts.
    fn width(&self) -> usize {
        // Default: a window without uses has no values.
        self.uses.first().map_or(0, |used| used.weights.up.outputs.whole)
    }

    /// Number of gates and ups.
    fn count(&self) -> usize {
        2 * self.width() * self.pairs.len()
    }
}

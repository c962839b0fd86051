//! Feed-forward parts of which each rank holds rows.
//!
//! Other ranks' gates and ups are gathered, where the CPU gathers their joined activations. So the kernels that join,
//! rotate and quantize are those of one rank.

use std::ops::Range;

use nestling_core::EngineError;
use nestling_core::backend::{CompleteInner, FeedForward, Write};
use nestling_formats::Level;

use super::experts::gated;
use super::products::{input_of, products};
use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::GpuBuffer;
use crate::operation::{Input, Job, Joint, Output, Products};
use crate::row_pairs::{RowPair, by_way_of, pairs_by_level, within};
use crate::scratch::ScratchRoom;

/// A part of a step's rows: as many as scratch memory has room for.
struct Window<'a, D: Device> {
    weights: &'a FeedForward<D>,
    /// Pairs of each level, relative to the window.
    levels: Vec<(Level, Range<usize>)>,
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
    match write {
        Write::Set => out.resize(device, x.rows)?,
        Write::Add => {}
    }
    let (pairs, ranges) = pairs_by_level(x.rows, levels)?;
    let width = weights.up.outputs.whole;
    let room = D::GATE_UP_BYTES_MAX.min(device.allocation_bytes_max()) as usize;
    let rows_max = (room / (8 * width.max(1))).max(1);
    let windows: Vec<_> = (0..pairs.len())
        .step_by(rows_max)
        .map(|start| {
            let window = start..pairs.len().min(start + rows_max);
            let of_level =
                |(level, range): &(Level, Range<usize>)| (*level, within(range, &window));
            let levels = ranges.iter().map(of_level).filter(|(_, range)| !range.is_empty());
            Window { weights, levels: levels.collect(), pairs: &pairs[window.clone()] }
        })
        .collect();
    let first = [&weights.gate_or_up().matrix, &weights.up.matrix];
    let input = input_of(device, x, first.into_iter())?;
    let mut values = Vec::new(); // [T, 2, I]
    for window in &windows {
        window.compute_gates_and_ups(device, &input, &mut values)?;
    }
    complete(&mut values)?;
    let output = Output::of(out, write);
    let mut rest = &values[..];
    for window in &windows {
        let (values, after) = rest.split_at(2 * width * window.pairs.len());
        window.multiply_down(device, values, &output)?;
        rest = after;
    }
    Ok(())
}

impl<D: Device> Window<'_, D> {
    /// Appends gates and ups to `values`. Those of other ranks are unspecified.
    fn compute_gates_and_ups(
        &self,
        device: &mut D,
        input: &Input<D::Binding>,
        values: &mut Vec<f32>, // [T, 2, I]
    ) -> Result<(), EngineError> {
        let (gate, up) = (self.weights.gate_or_up(), &self.weights.up);
        let (width, count) = (up.outputs.whole, self.count());
        let (pairs, _) = by_way_of(self.pairs);
        let mut jobs = Vec::with_capacity(2 * self.levels.len());
        for (level, pairs) in &self.levels {
            jobs.push(Job::new(gate, *level, 0, pairs.clone())?);
            jobs.push(Job::new(up, *level, width, pairs.clone())?);
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
        values: &[f32], // [T, 2, I]
        output: &Output<D::Binding>,
    ) -> Result<(), EngineError> {
        let FeedForward { activation, up, down, .. } = self.weights;
        let (_, pairs) = by_way_of(self.pairs);
        let gate_up = device.scratch(ScratchRoom::GateUp, self.count())?;
        device.recorder().write(bytemuck::cast_slice(values), &gate_up, 0)?;
        device.recorder().begin_operation()?;
        let form = down.matrix.form;
        let joint = Joint { activation: *activation, kind: form.kind, rotated: form.rotated };
        let input = gated(device, joint, gate_up, self.pairs.len(), up.outputs.whole)?;
        let job = |(level, pairs): &(Level, Range<usize>)| Job::new(down, *level, 0, pairs.clone());
        let jobs = self.levels.iter().map(job).collect::<Result<Vec<_>, _>>()?;
        products(device, &Products { jobs: &jobs, pairs: &pairs, input: &input, output })
    }

    /// Number of gates and ups.
    fn count(&self) -> usize {
        2 * self.weights.up.outputs.whole * self.pairs.len()
    }
}

//! Gated DeltaNet. Rows are independent in the convolution and the norms, heads are independent in the
//! recurrence.

use nestling_import::{Activation, DeltaNetConfig};

use super::scratch::{HeadRun, RecurrentScratch};
use crate::delta_net::{CONV_TAPS_MAX, ConvRows, DeltaHead, factors};
use crate::device::Cpu;
use crate::matrix::CpuBuffer;
use crate::states::CpuStates;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;
use nestling_core::batch::{Run, runs};
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;

/// Cost of a decay and a beta in multiplications.
const FACTOR_COST: usize = 64;

/// Number of elements that are multiplied with their gates at once.
const GATE_CHUNK: usize = 128;

pub(super) fn delta_net(
    team: &Team,
    scratch: &mut RecurrentScratch,
    net: &DeltaNet<Cpu>,
    rows: &StepRows,
    projected: &CpuBuffer,
    states: &mut CpuStates,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    check_taps("linear_conv_kernel_dim", net.shape.conv_kernel_dim)?;
    prepare_states(rows, &mut scratch.runs, states)?;
    scratch.prepare(&net.shape)?;
    out.resize(rows.len())?;
    mix(team, scratch, net, projected, states);
    take_states(scratch, net, projected, states)?;
    // Default: there may be no runs.
    let depth = scratch.runs.iter().map(|run| run.depth + 1).max().unwrap_or(0);
    for depth in 0..depth {
        pass_heads(team, scratch, net, depth, states);
    }
    for (run, values) in scratch.runs.iter().zip(scratch.taken.drain(..)) {
        states.put(run.to, values);
    }
    gate(team, scratch, net, projected, out);
    Ok(())
}

/// Checks the number of taps of a convolution.
pub(super) fn check_taps(what: &'static str, taps: usize) -> Result<(), EngineError> {
    let (found, limit) = (taps as u64, CONV_TAPS_MAX as u64);
    if (1..=limit).contains(&found) {
        Ok(())
    } else {
        Err(EngineError::Limit { what, limit, found })
    }
}

/// Computes the runs of a step, checks their states and allocates the ones to write. All fallible steps come
/// before a state is written.
pub(super) fn prepare_states(
    rows: &StepRows,
    parts: &mut Vec<Run>,
    states: &mut CpuStates,
) -> Result<(), EngineError> {
    runs(rows, parts)?;
    for run in &*parts {
        run.from.map_or(Ok(()), |from| states.get(from).map(|_| ()))?;
        states.check_place(run.to)?;
    }
    states.prepare(parts.iter().map(|run| run.to))
}

/// Returns the inputs of the convolution.
fn conv_rows<'a>(net: &DeltaNet<Cpu>, projected: &'a CpuBuffer, zeros: &'a [f32]) -> ConvRows<'a> {
    let (channels, window) = (net.shape.channels(), net.shape.window());
    ConvRows { channels, window, rows: &projected.values, stride: projected.cols, zeros }
}

/// Computes the convolution, the norms of queries and keys, and the factors, row by row.
fn mix(
    team: &Team,
    scratch: &mut RecurrentScratch,
    net: &DeltaNet<Cpu>,
    projected: &CpuBuffer,
    states: &CpuStates,
) {
    let RecurrentScratch { runs, mixed, factors: all_factors, zeros, .. } = scratch;
    let shape = &net.shape;
    let (channels, heads, stride) = (shape.channels(), shape.num_value_heads, projected.cols);
    team.for_each_row(all_factors, heads, FACTOR_COST * heads, |row, out| {
        let row = &projected.values[row * stride..][..stride];
        let (beta, alpha) = row[channels + shape.value_dim()..].split_at(heads);
        for (head, out) in out.iter_mut().enumerate() {
            *out = factors(net.rate[head], net.time_bias[head], alpha[head], beta[head]);
        }
    });
    let (runs, zeros) = (&*runs, &*zeros);
    let cost = (shape.conv_kernel_dim + ROW_COST) * channels;
    team.for_each_row(mixed, channels, cost, |row, mixed| {
        let run = &runs[runs.partition_point(|run| run.rows.end <= row)];
        let mut taps = [zeros.as_slice(); CONV_TAPS_MAX];
        let taps = &mut taps[..shape.conv_kernel_dim];
        conv_rows(net, projected, zeros).taps(run, states, row, taps);
        mixed.fill(0.0);
        team.kernels.convolve(taps, &net.conv, None, mixed);
        let queries_keys = mixed[..2 * shape.key_dim()].chunks_exact_mut(shape.key_head_dim);
        for (head, x) in queries_keys.enumerate() {
            let weight = if head < shape.num_key_heads { &net.query_norm } else { &net.key_norm };
            team.kernels.rms_norm_in_place(x, weight, net.unit_eps);
        }
    });
}

/// Takes out the states to be written, with updated windows. States at a sequence's start are zeroed.
fn take_states(
    scratch: &mut RecurrentScratch,
    net: &DeltaNet<Cpu>,
    projected: &CpuBuffer,
    states: &mut CpuStates,
) -> Result<(), EngineError> {
    let windows = &mut scratch.windows;
    for run in &scratch.runs {
        conv_rows(net, projected, &scratch.zeros).window_after(run, states, windows);
        let mut values = states.take(run.to)?;
        let (window, matrices) = values.split_at_mut(windows.len());
        window.copy_from_slice(windows);
        if run.depth == 0 && run.from.is_none() {
            matrices.fill(0.0);
        }
        scratch.taken.push(values);
    }
    Ok(())
}

/// Processes the heads of all runs at a depth, which is the number of earlier runs of the same sequence.
fn pass_heads(
    team: &Team,
    scratch: &mut RecurrentScratch,
    net: &DeltaNet<Cpu>,
    depth: usize,
    states: &CpuStates,
) {
    let RecurrentScratch { runs, mixed, factors, gathered, taken, parts: spare, .. } = scratch;
    let shape = &net.shape;
    let DeltaNetConfig {
        num_key_heads, num_value_heads: heads, key_head_dim, value_head_dim, ..
    } = *shape;
    let first = shape.window() * shape.channels();
    let mut parts: Vec<HeadRun> = recycle(std::mem::take(spare));
    let (mut multiplications, mut before) = (0, None);
    let mut gathered = gathered.as_mut_slice();
    for (run, values) in runs.iter().zip(taken) {
        let rest = std::mem::take(&mut gathered);
        let (out, rest) = rest.split_at_mut(run.rows.len() * shape.value_dim());
        gathered = rest;
        if run.depth != depth {
            before = Some(&values[first..]);
            continue;
        }
        let from: Option<&[f32]> = match (run.depth, run.from) {
            (0, None) => None,
            (0, Some(_)) if run.is_in_place() => None,
            (0, Some(from)) => states.get(from).ok().map(|state| &state[first..]),
            _ => before,
        };
        let size = key_head_dim * value_head_dim;
        let outs = out.chunks_exact_mut(run.rows.len() * value_head_dim);
        let states = values[first..].chunks_exact_mut(size);
        parts.extend(states.zip(outs).enumerate().map(|(head, (state, out))| HeadRun {
            first_row: run.rows.start,
            head,
            from: from.map(|from| &from[head * size..][..size]),
            state,
            out,
        }));
        multiplications += 3 * run.rows.len() * heads * size;
        before = None;
    }
    let (mixed, factors) = (&*mixed, &*factors);
    team.for_each_mut(&mut parts, multiplications, &|_, part| {
        let shared = part.head * num_key_heads / heads * key_head_dim;
        let value = 2 * shape.key_dim() + part.head * value_head_dim;
        let head = DeltaHead {
            rows: &mixed[part.first_row * shape.channels()..],
            stride: shape.channels(),
            columns: [shared, shape.key_dim() + shared, value],
            key_head_dim,
            value_head_dim,
            factors: &factors[part.first_row * heads..],
            heads: (heads, part.head),
        };
        team.kernels.delta_rule(head, part.from, part.state, part.out);
    });
    *spare = recycle(parts);
}

/// Normalizes the outputs of the heads and multiplies them with the gates.
fn gate(
    team: &Team,
    scratch: &mut RecurrentScratch,
    net: &DeltaNet<Cpu>,
    projected: &CpuBuffer,
    out: &mut CpuBuffer,
) {
    let RecurrentScratch { run_of, gathered, .. } = scratch;
    let shape = &net.shape;
    let (width, cols) = (shape.value_head_dim, shape.value_dim());
    let gathered = &*gathered;
    team.for_each_row(&mut out.values, cols, 2 * ROW_COST * cols, |row, out| {
        let gates = &projected.values[row * projected.cols + shape.channels()..][..cols];
        let run = &run_of[row];
        for (head, out) in out.chunks_exact_mut(width).enumerate() {
            let at = run.start * cols + (head * run.len() + row - run.start) * width;
            team.kernels.rms_norm(&gathered[at..][..width], &net.norm, net.eps, out);
            let gates = gates[head * width..][..width].chunks(GATE_CHUNK);
            for (out, gates) in out.chunks_mut(GATE_CHUNK).zip(gates) {
                let mut product = [0.0; GATE_CHUNK];
                let product = &mut product[..out.len()];
                product.copy_from_slice(gates);
                team.kernels.gated(Activation::Silu, product, out);
                out.copy_from_slice(product);
            }
        }
    });
}

//! Gated DeltaNet. Rows are independent in the convolution and the norms, heads are independent in the
//! recurrence.

use nestling_import::Activation;

use super::head_shape::HeadShape;
use super::scratch::RecurrentScratch;
use crate::conv_rows::{CONV_TAPS_MAX, ConvRows};
use crate::delta_net::FactorInputs;
use crate::device::Cpu;
use crate::matrix::CpuBuffer;
use crate::states::CpuStates;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::DeltaNet;
use nestling_core::batch::StepRows;
use nestling_core::batch::{Run, runs};
use nestling_core::error::EngineError;

/// Cost of a decay and a beta in multiplications.
pub(super) const FACTOR_COST: usize = 64;

/// Number of elements that are multiplied with their gates at once.
pub(super) const GATE_CHUNK: usize = 128;

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
    let heads = HeadShape::from(&net.shape);
    scratch.prepare(&heads)?;
    out.resize(rows.len())?;
    mix(team, scratch, net, projected, states);
    heads.pass(team, scratch, &projected.values, projected.cols, states)?;
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
        let (betas, times) = row[channels + shape.value_dim()..].split_at(heads);
        let (rate, time_bias) = (&*net.rate, &*net.time_bias);
        let inputs = FactorInputs { rate, time_bias, times, betas: Some(betas) };
        team.kernels.state_factors(inputs, out);
    });
    let (runs, zeros) = (&*runs, &*zeros);
    let cost = (shape.conv_kernel_dim + ROW_COST) * channels;
    let (window, values) = (shape.window(), &projected.values);
    let conv_rows = ConvRows { channels, window, rows: values, stride, zeros };
    team.for_each_row(mixed, channels, cost, |row, mixed| {
        let run = &runs[runs.partition_point(|run| run.rows.end <= row)];
        let mut taps = [zeros.as_slice(); CONV_TAPS_MAX];
        let taps = &mut taps[..shape.conv_kernel_dim];
        conv_rows.taps(run, states, row, taps);
        mixed.fill(0.0);
        team.kernels.convolve(taps, &net.conv, None, mixed);
        let queries_keys = mixed[..2 * shape.key_dim()].chunks_exact_mut(shape.key_head_dim);
        for (head, x) in queries_keys.enumerate() {
            let weight = if head < shape.num_key_heads { &net.query_norm } else { &net.key_norm };
            team.kernels.rms_norm_in_place(x, weight, net.unit_eps);
        }
    });
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

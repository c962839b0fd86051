//! Mamba-2. Rows are independent in the convolution and the norms, heads are independent in the recurrence.

use nestling_import::Activation;

use super::delta_net::{FACTOR_COST, GATE_CHUNK, check_taps, prepare_states};
use super::head_shape::HeadShape;
use super::scratch::RecurrentScratch;
use crate::conv_rows::{CONV_TAPS_MAX, ConvRows};
use crate::delta_net::FactorInputs;
use crate::device::Cpu;
use crate::matrix::CpuBuffer;
use crate::states::CpuStates;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::Mamba2;
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

pub(super) fn mamba2(
    team: &Team,
    scratch: &mut RecurrentScratch,
    mamba2: &Mamba2<Cpu>,
    rows: &StepRows,
    projected: &CpuBuffer,
    states: &mut CpuStates,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    check_taps("mamba_d_conv", mamba2.shape.conv_kernel)?;
    prepare_states(rows, &mut scratch.runs, states)?;
    let heads = HeadShape::from(&mamba2.shape);
    scratch.prepare(&heads)?;
    out.resize(rows.len())?;
    mix(team, scratch, mamba2, projected, states);
    // Default: a step without rows has no channels.
    let inputs = projected.values.get(mamba2.shape.inner()..).unwrap_or_default();
    heads.pass(team, scratch, inputs, projected.cols, states)?;
    gate(team, scratch, mamba2, projected, out);
    Ok(())
}

/// Computes the convolution and the factors, row by row.
fn mix(
    team: &Team,
    scratch: &mut RecurrentScratch,
    mamba2: &Mamba2<Cpu>,
    projected: &CpuBuffer,
    states: &CpuStates,
) {
    let RecurrentScratch { runs, mixed, factors, zeros, .. } = scratch;
    let shape = &mamba2.shape;
    let (inner, channels, heads) = (shape.inner(), shape.channels(), shape.num_heads);
    let stride = projected.cols;
    team.for_each_row(factors, heads, FACTOR_COST * heads, |row, out| {
        let times = &projected.values[row * stride + inner + channels..][..heads];
        let (rate, time_bias) = (&*mamba2.rate, &*mamba2.time_bias);
        team.kernels.state_factors(FactorInputs { rate, time_bias, times, betas: None }, out);
    });
    let (runs, zeros) = (&*runs, zeros.as_slice());
    // Default: a step without rows has no channels.
    let rows = projected.values.get(inner..).unwrap_or_default();
    let conv_rows = ConvRows { channels, window: shape.window(), rows, stride, zeros };
    let cost = (shape.conv_kernel + ROW_COST) * channels;
    team.for_each_row(mixed, channels, cost, |row, mixed| {
        let run = &runs[runs.partition_point(|run| run.rows.end <= row)];
        let mut taps = [zeros; CONV_TAPS_MAX];
        let taps = &mut taps[..shape.conv_kernel];
        conv_rows.taps(run, states, row, taps);
        // Default: a layer without a bias starts its sums at 0.
        mixed.copy_from_slice(mamba2.bias.as_deref().unwrap_or(zeros));
        team.kernels.convolve(taps, &mamba2.conv, None, mixed);
    });
}

/// Adds the inputs times D to the outputs of the heads, multiplies them with the gates and normalizes them.
fn gate(
    team: &Team,
    scratch: &RecurrentScratch,
    mamba2: &Mamba2<Cpu>,
    projected: &CpuBuffer,
    out: &mut CpuBuffer,
) {
    let RecurrentScratch { run_of, gathered, mixed, .. } = scratch;
    let shape = &mamba2.shape;
    let (width, cols, channels) = (shape.head_dim, shape.inner(), shape.channels());
    team.for_each_row(&mut out.values, cols, 3 * ROW_COST * cols, |row, out| {
        let run = &run_of[row];
        let inputs = mixed[row * channels..][..cols].chunks_exact(width);
        for (head, (out, inputs)) in out.chunks_exact_mut(width).zip(inputs).enumerate() {
            let at = run.start * cols + (head * run.len() + row - run.start) * width;
            out.copy_from_slice(&gathered[at..][..width]);
            team.kernels.add_scaled(out, mamba2.skip[head], inputs);
        }
        let gates = projected.values[row * projected.cols..][..cols].chunks(GATE_CHUNK);
        for (out, gates) in out.chunks_mut(GATE_CHUNK).zip(gates) {
            let mut product = [0.0; GATE_CHUNK];
            let product = &mut product[..out.len()];
            product.copy_from_slice(gates);
            team.kernels.gated(Activation::Silu, product, out);
            out.copy_from_slice(product);
        }
        let group = shape.norm_group();
        for (out, weight) in out.chunks_exact_mut(group).zip(mamba2.norm.chunks_exact(group)) {
            team.kernels.rms_norm_in_place(out, weight, shape.norm_eps);
        }
    });
}

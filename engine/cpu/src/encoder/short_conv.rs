//! Gated short convolution. All rows are independent once their inputs are multiplied, so that a prompt and
//! single rows have the same bits.

use super::delta_net::{check_taps, prepare_states};
use super::scratch::RecurrentScratch;
use crate::aligned::try_resize;
use crate::conv_rows::{CONV_TAPS_MAX, ConvRows};
use crate::device::Cpu;
use crate::matrix::CpuBuffer;
use crate::states::CpuStates;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::ShortConv;
use nestling_core::batch::StepRows;
use nestling_core::error::EngineError;

pub(super) fn short_conv(
    team: &Team,
    scratch: &mut RecurrentScratch,
    conv: &ShortConv<Cpu>,
    rows: &StepRows,
    projected: &CpuBuffer,
    states: &mut CpuStates,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    let RecurrentScratch { runs, mixed: inputs, zeros, windows, .. } = scratch;
    let (channels, window, stride) = (conv.shape.channels, conv.shape.window(), projected.cols);
    check_taps("conv_L_cache", conv.shape.taps)?;
    prepare_states(rows, runs, states)?;
    try_resize(zeros, channels, 0.0)?;
    try_resize(inputs, rows.len() * channels, 0.0)?;
    try_resize(windows, conv.shape.state_floats(), 0.0)?;
    out.resize(rows.len())?;
    team.for_each_row(inputs, channels, channels, |row, out| {
        let row = &projected.values[row * stride..][..stride];
        for ((out, gate), x) in out.iter_mut().zip(row).zip(&row[2 * channels..]) {
            *out = gate * x;
        }
    });
    let conv_rows = ConvRows { channels, window, rows: inputs, stride: channels, zeros };
    let cost = (conv.shape.taps + ROW_COST) * channels;
    team.for_each_row(&mut out.values, channels, cost, |row, out| {
        let run = &runs[runs.partition_point(|run| run.rows.end <= row)];
        let mut taps = [conv_rows.zeros; CONV_TAPS_MAX];
        let taps = &mut taps[..conv.shape.taps];
        conv_rows.taps(run, states, row, taps);
        // Default: a layer without a bias starts its sums at 0.
        out.copy_from_slice(conv.bias.as_deref().unwrap_or(conv_rows.zeros));
        let gate = &projected.values[row * stride + channels..][..channels];
        team.kernels.convolve(taps, &conv.taps, Some(gate), out);
    });
    for run in &*runs {
        conv_rows.window_after(run, states, windows);
        let mut values = states.take(run.to)?;
        values.copy_from_slice(windows);
        states.put(run.to, values);
    }
    Ok(())
}

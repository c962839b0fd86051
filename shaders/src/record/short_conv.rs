//! Gated short convolution: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_gpu::{
    DeviceScratch, ScratchRoom, ShortConvRuns, WorkKind, short_conv_row_work, word, work_of,
};

use super::state_runs::{RunStates, run_states};
use crate::backend::WgpuBackend;
use crate::params::ShortConvParams;
use crate::recorder::{Cost, spread};

/// Number of invocations of a workgroup.
const LANES: usize = 64;

pub(super) fn short_conv(
    backend: &mut WgpuBackend,
    of: ShortConvRuns<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let ShortConvRuns { conv, runs, projected, states, out } = of;
    let shape = &conv.shape;
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let mut last = None;
    for run in runs {
        // Later runs of a sequence continue from the state after the previous run.
        let from = if run.depth == 0 { run.from } else { last };
        let RunStates { source, before, after } = run_states(backend, states, run, from)?;
        let params = ShortConvParams {
            rows: word("rows", run.rows.len())?,
            first_row: word("rows", run.rows.start)?,
            taps: word("rows of a convolution", shape.taps)?,
            channels: word("columns", shape.channels)?,
            source: source as u32,
            has_bias: u32::from(conv.bias.is_some()),
        };
        let bias = conv.bias.as_ref().map_or_else(|| none.clone(), |bias| bias.binding());
        let bindings =
            [projected.binding(), conv.taps.binding(), bias, before, after, out.binding()];
        let work = work_of(&[run.rows.len()]).saturating_mul(short_conv_row_work(shape));
        let workgroups = spread(shape.channels.div_ceil(LANES));
        let cost = Cost { workgroups, kind: WorkKind::Recurrence, work };
        backend.recorder.dispatch(&backend.pipelines.short_conv, &bindings, &params, cost)?;
        last = Some(run.to);
    }
    Ok(())
}

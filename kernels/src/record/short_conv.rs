//! Gated short convolution: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_gpu::{ShortConvRuns, WorkKind, short_conv_row_work, word};

use super::state_runs::launch_runs;
use crate::backend::CudaBackend;
use crate::params::ShortConvParams;

pub(super) fn short_conv(
    backend: &mut CudaBackend,
    of: ShortConvRuns<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let ShortConvRuns { conv, runs, projected, states, out } = of;
    let shape = &conv.shape;
    let mut params = ShortConvParams {
        projected: projected.binding(),
        conv: conv.taps.binding(),
        // Default: address 0 means no bias.
        bias: conv.bias.as_ref().map_or(0, |bias| bias.binding()),
        out: out.binding(),
        channels: word("columns", shape.channels)?,
        taps: word("rows of a convolution", shape.taps)?,
        ..ShortConvParams::default()
    };
    launch_runs(backend, runs, states, short_conv_row_work(shape), |recorder, launched| {
        params.runs = launched.runs;
        params.runs_count = launched.count;
        Ok(recorder.launch_of(WorkKind::Recurrence, launched.work, params.launch(), &params)?)
    })
}

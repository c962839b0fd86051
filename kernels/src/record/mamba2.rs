//! Mamba-2: runs consecutive rows of each sequence and updates their recurrent states.

use nestling_core::EngineError;
use nestling_gpu::{Mamba2Runs, WorkKind, mamba2_row_work, word};

use super::state_runs::launch_runs;
use crate::backend::CudaBackend;
use crate::params::Mamba2Params;

pub(super) fn mamba2(
    backend: &mut CudaBackend,
    of: Mamba2Runs<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let mut params = params(&of)?;
    let Mamba2Runs { mamba2, runs, states, .. } = of;
    launch_runs(backend, runs, states, mamba2_row_work(&mamba2.shape), |recorder, launched| {
        params.runs = launched.runs;
        params.runs_count = launched.count;
        let [conv, scan, _] = params.launches();
        recorder.launch(conv, &params)?;
        Ok(recorder.launch_of(WorkKind::Recurrence, launched.work, scan, &params)?)
    })?;
    let [_, _, norm] = params.launches();
    Ok(backend.recorder.launch(norm, &params)?)
}

/// Returns all parameters except the runs.
fn params(
    Mamba2Runs { mamba2, projected, mixed, out, .. }: &Mamba2Runs<'_, CudaBackend>,
) -> Result<Mamba2Params, EngineError> {
    let shape = &mamba2.shape;
    Ok(Mamba2Params {
        projected: projected.binding(),
        conv: mamba2.conv.binding(),
        // Default: address 0 means no bias.
        bias: mamba2.bias.as_ref().map_or(0, |bias| bias.binding()),
        rate: mamba2.rate.binding(),
        time_bias: mamba2.time_bias.binding(),
        skip: mamba2.skip.binding(),
        norm: mamba2.norm.binding(),
        mixed: *mixed,
        out: out.binding(),
        rows: word("rows", projected.rows)?,
        stride: word("columns", projected.cols)?,
        channels: word("columns", shape.channels())?,
        taps: word("rows of a convolution", shape.conv_kernel)?,
        heads: word("heads", shape.num_heads)?,
        groups: word("groups", shape.n_groups)?,
        head_dim: word("elements of a head", shape.head_dim)?,
        state_size: word("rows of a state", shape.state_size)?,
        eps: shape.norm_eps,
        ..Mamba2Params::default()
    })
}

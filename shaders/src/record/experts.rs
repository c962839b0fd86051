//! The activation that joins gates and ups.

use nestling_core::EngineError;
use nestling_formats::nested::GROUP;
use nestling_gpu::{Gated, GatedOutput};

use crate::backend::WgpuBackend;
use crate::params;
use crate::recorder::{Binding, Cost, spread};

pub(super) fn gated(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    Gated { joint, gate_up, out, rows, cols, groups }: &Gated<Binding>,
) -> Result<(), EngineError> {
    let (kind, alpha, limit) = joint.words();
    let rotated = u32::from(joint.rotated);
    let params =
        params::Gated { rows: *rows, cols: *cols, kind, alpha, limit, rotated, padding: [0; 2] };
    let cost = Cost::elements(spread(groups.div_ceil(64)), (16 * groups * GROUP) as u64);
    let done = match out {
        GatedOutput::Int8(out) => {
            let bindings = [gate_up.clone(), out.values.clone(), out.scales.clone()];
            recorder.dispatch(&pipelines.gated_quantize, &bindings, &params, cost)
        }
        GatedOutput::Floats(out) => {
            recorder.dispatch(&pipelines.gated, &[gate_up.clone(), out.clone()], &params, cost)
        }
    };
    Ok(done?)
}

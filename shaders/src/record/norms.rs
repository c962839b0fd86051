//! RMSNorm of rows and of parts of rows.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_gpu::{NormParts, RmsNorm};

use crate::backend::WgpuBackend;
use crate::params::{NormPartParams, RmsNormParams};
use crate::recorder::{Binding, Cost, spread};

pub(super) fn rms_norm(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    RmsNorm { x, weight, out, rows, cols, eps, write, .. }: &RmsNorm<Binding>,
) -> Result<(), EngineError> {
    let adds = u32::from(*write == Write::Add);
    let params = RmsNormParams { rows: *rows, cols: *cols, eps: *eps, adds };
    let bindings = [x.clone(), weight.clone(), out.clone()];
    let cost = Cost::elements(spread(*rows as usize), 2 * u64::from(*rows) * u64::from(*cols));
    Ok(recorder.dispatch(&pipelines.rms_norm, &bindings, &params, cost)?)
}

pub(super) fn norm_parts(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    of: &NormParts<Binding>,
) -> Result<(), EngineError> {
    let params = NormPartParams {
        count: of.count,
        parts: of.parts,
        row_stride: of.stride,
        part_stride: of.length,
        first: of.first,
        length: of.length,
        eps: of.eps,
    };
    let cost =
        Cost::elements(spread(of.count as usize), 2 * u64::from(of.count) * u64::from(of.length));
    let bindings = [of.weight.clone(), of.x.clone()];
    Ok(recorder.dispatch(&pipelines.norm_part, &bindings, &params, cost)?)
}

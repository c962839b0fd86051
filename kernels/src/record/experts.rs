//! The activation that joins gates and ups, after their products or fused with them.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::nested::GROUP;
use nestling_gpu::{
    DeviceScratch, Gated, GatedOutput, GatedProducts, GatesAndUps, Input, Joint, Output,
    ProductKind, QuantizedRoom, word,
};

use super::products::{Call, CallLaunch, call_of, is_one_row, params_of, work_kind};
use super::routed::call_of_blocks;
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::kernel::Kernel;
use crate::params::{GATED_TILES, GatedParams, GatedProductParams, ProductParams};
use crate::recorder::Recorder;

/// Records gate and up products fused with the activation, if each block has one row. Returns `None`
/// otherwise.
pub(super) fn gated_products(
    backend: &mut CudaBackend,
    GatedProducts { products, input, joint, rows, cols }: &GatedProducts<'_, CudaBackend>,
) -> Result<Option<Input<Address>>, EngineError> {
    let kernel = Kernel::MatvecGatedQuantize;
    let call = match *products {
        _ if joint.kind != ProductKind::Int8 => return Ok(None),
        GatesAndUps::Jobs { jobs, pairs } if jobs.iter().all(is_one_row) => {
            call_of(&mut backend.recorder, kernel, jobs, pairs)?
        }
        GatesAndUps::Found { blocks, form }
            if !blocks.are_several && form.kind == ProductKind::Int8 && !form.is_scaled =>
        {
            call_of_blocks(blocks, kernel, form)
        }
        GatesAndUps::Jobs { .. } | GatesAndUps::Found { .. } => return Ok(None),
    };
    gated_call(backend, &call, *joint, input, *rows, *cols).map(Some)
}

/// Records fused products for blocks of one row each, stored consecutively.
fn gated_call(
    backend: &mut CudaBackend,
    call: &Call,
    joint: Joint,
    input: &Input<Address>,
    rows: usize,
    width: usize,
) -> Result<Input<Address>, EngineError> {
    let out = backend.quantized_scratch(QuantizedRoom::INNER, rows * width.div_ceil(GROUP))?;
    let recorder = &mut backend.recorder;
    let nowhere = Output { values: 0, cols: width, write: Write::Set };
    let (kind, alpha, limit) = joint.words();
    let params = GatedProductParams {
        products: params_of(call, GATED_TILES, input, &nowhere)?,
        values: out.values,
        scales: out.scales,
        kind,
        alpha,
        limit,
        is_rotated: u32::from(joint.rotated),
    };
    let tiles = word("tiles", call.tiles)?;
    // A group is a gate and its up.
    let work_kind = work_kind(call.kernel);
    for CallLaunch { blocks, count: gates, work } in call.launches(recorder, 2) {
        let products = ProductParams { blocks, ..params.products };
        let params = GatedProductParams { products, ..params };
        let gates = word("blocks", gates)?;
        recorder.launch_of(work_kind, work, params.launch(gates, tiles), &params)?;
    }
    Ok(Input { quantized: Some(out), floats: None, cols: width, stride: width })
}

/// Records the activation that joins gates and ups into the input of the down products.
pub(super) fn gated(recorder: &mut Recorder, of: &Gated<Address>) -> Result<(), EngineError> {
    let (kind, alpha, limit) = of.joint.words();
    let mut params = GatedParams {
        x: of.gate_up,
        rows: of.rows,
        cols: of.cols,
        kind,
        alpha,
        limit,
        is_rotated: u32::from(of.joint.rotated),
        ..GatedParams::default()
    };
    let kernel = match &of.out {
        GatedOutput::Int8(out) => {
            (params.values, params.scales) = (out.values, out.scales);
            Kernel::GatedQuantize
        }
        GatedOutput::Floats(out) => {
            params.out = *out;
            Kernel::Gated
        }
    };
    Ok(recorder.launch(params.launch(kernel), &params)?)
}

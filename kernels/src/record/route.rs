//! The router: selects the experts of each row from logits.

use nestling_core::EngineError;
use nestling_gpu::Route;

use crate::driver::Address;
use crate::params::RouteParams;
use crate::recorder::Recorder;

pub(super) fn route(recorder: &mut Recorder, of: &Route<Address>) -> Result<(), EngineError> {
    let params = RouteParams {
        logits: of.logits,
        // Default: address 0 stands for a missing vector.
        logit_bias: of.logit_bias.unwrap_or(0),
        selection_bias: of.selection_bias.unwrap_or(0),
        expert_scale: of.expert_scale.unwrap_or(0),
        ids: of.ids,
        weights: of.weights,
        sizes: of.sizes,
        padding: 0,
    };
    Ok(recorder.launch(params.launch(), &params)?)
}

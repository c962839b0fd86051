//! The router: selects the experts of each row from logits.

use nestling_core::EngineError;
use nestling_gpu::Route;

use crate::backend::WgpuBackend;
use crate::params::RouteParams;
use crate::recorder::{Binding, Cost, spread};

pub(super) fn route(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    of: &Route<Binding>,
) -> Result<(), EngineError> {
    let sizes = &of.sizes;
    let params = RouteParams {
        rows: sizes.rows,
        experts: sizes.experts,
        per_token: sizes.per_token,
        sigmoid_scores: sizes.is_sigmoid,
        normalizes: sizes.normalizes,
        scale: sizes.scale,
        has_logit_bias: u32::from(of.logit_bias.is_some()),
        has_selection_bias: u32::from(of.selection_bias.is_some()),
        has_expert_scale: u32::from(of.expert_scale.is_some()),
        groups: sizes.groups,
        groups_kept: sizes.groups_kept,
        two_best: sizes.two_best,
    };
    // A missing vector is replaced by any read-only binding.
    let vector = |vector: &Option<Binding>| vector.as_ref().unwrap_or(&of.logits).clone();
    let bindings = [
        of.logits.clone(),
        vector(&of.logit_bias),
        vector(&of.selection_bias),
        vector(&of.expert_scale),
        of.ids.clone(),
        of.weights.clone(),
    ];
    let work = u64::from(sizes.rows) * u64::from(sizes.experts) * (u64::from(sizes.per_token) + 8);
    let cost = Cost::elements(spread(sizes.rows as usize), work);
    Ok(recorder.dispatch(&pipelines.route, &bindings, &params, cost)?)
}

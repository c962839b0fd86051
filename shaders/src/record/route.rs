//! The router: which experts a row uses, from logits.

use nestling_core::EngineError;
use nestling_gpu::Route;
use nestling_import::RouterScore;

use crate::backend::WgpuBackend;
use crate::params::RouteParams;
use crate::recorder::{Binding, spread};

pub(super) fn route(
    WgpuBackend { recorder, pipelines, .. }: &mut WgpuBackend,
    of: &Route<'_, Binding>,
) -> Result<(), EngineError> {
    let params = RouteParams {
        rows: of.rows,
        experts: of.experts,
        per_token: of.per_token,
        sigmoid_scores: u32::from(matches!(of.rule.score, RouterScore::Sigmoid)),
        normalizes: u32::from(of.rule.norm_topk_prob),
        scale: of.rule.scale,
        has_logit_bias: u32::from(of.logit_bias.is_some()),
        has_selection_bias: u32::from(of.selection_bias.is_some()),
        has_expert_scale: u32::from(of.expert_scale.is_some()),
        groups: of.groups,
        groups_kept: of.groups_kept,
        two_best: u32::from(of.two_best),
    };
    // In place of a vector that is not there, anything that is only read.
    let vector = |vector: &Option<Binding>| vector.as_ref().unwrap_or(&of.logits).clone();
    let bindings = [
        of.logits.clone(),
        vector(&of.logit_bias),
        vector(&of.selection_bias),
        vector(&of.expert_scale),
        of.ids.clone(),
        of.weights.clone(),
    ];
    let work = u64::from(of.rows) * u64::from(of.experts) * (u64::from(of.per_token) + 8);
    let cost = (spread(of.rows as usize), work);
    Ok(recorder.dispatch(&pipelines.route, &bindings, &params, cost)?)
}

//! The router: which experts a row uses.

use nestling_engine::EngineError;
use nestling_engine::backend::{Router, Routing};
use nestling_engine::device::expect;
use nestling_formats::{GroupScore, RouterScore};

use super::{NUM_EXPERTS_MAX, PER_TOKEN_MAX, Tools, products};
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::error::CudaError;
use crate::memory::{CudaBuffer, CudaFloats, CudaRouting, word};
use crate::params::RouteParams;
use crate::recorder::Recorder;

/// Most groups of experts.
const GROUPS_MAX: usize = 64;

/// Puts a routing of the host in place of the router's.
pub(super) fn write(
    recorder: &mut Recorder,
    routing: &Routing,
    out: &CudaRouting,
) -> Result<(), EngineError> {
    let count = out.rows * out.per_token;
    expect("experts of a row", out.per_token, routing.num_experts_per_tok)?;
    expect("experts of a routing", count, routing.expert_ids.len())?;
    expect("weights of a routing", count, routing.expert_weights.len())?;
    recorder.write(bytemuck::cast_slice(&routing.expert_ids), out.ids())?;
    Ok(recorder.write(bytemuck::cast_slice(&routing.expert_weights), out.weights())?)
}

pub(super) fn route(
    tools: &mut Tools<'_>,
    router: &Router<CudaBackend>,
    x: &CudaBuffer,
    out: &mut CudaRouting,
) -> Result<(), EngineError> {
    let experts = router.weights.form.rows;
    let biases = router.logit_bias.iter().chain(&router.selection_bias);
    for vector in biases.chain(&router.expert_scale) {
        expect("numbers of the router", experts, vector.len)?;
    }
    let groups = router.rule.groups.as_ref().map_or(0, |groups| groups.n_group);
    for (what, limit, found) in [
        ("experts of a layer", NUM_EXPERTS_MAX, experts),
        ("experts of a token", PER_TOKEN_MAX.min(experts), router.num_experts_per_tok),
        ("groups of experts", GROUPS_MAX.min(experts), groups),
        ("rows of a routing", out.rows_max, x.rows),
    ] {
        if found > limit {
            let (limit, found) = (limit as u64, found as u64);
            return Err(CudaError::Limit { what, limit, found }.into());
        }
    }
    let Tools { recorder, scratch, .. } = tools;
    let logits = scratch.router_logits.of(recorder, x.rows * experts)?;
    products::multiply_float(tools, &router.weights, x, logits)?;
    choose(tools, router, (logits, x.rows), out)
}

/// The choice, from logits.
fn choose(
    tools: &mut Tools<'_>,
    router: &Router<CudaBackend>,
    (logits, rows): (Address, usize),
    out: &mut CudaRouting,
) -> Result<(), EngineError> {
    let (rule, per_token) = (&router.rule, router.num_experts_per_tok);
    out.set(tools.recorder, rows, per_token)?;
    let groups = rule.groups.as_ref();
    let vector = |vector: &Option<CudaFloats>| vector.as_ref().map_or(0, CudaFloats::address);
    let params = RouteParams {
        logits,
        logit_bias: vector(&router.logit_bias),
        selection_bias: vector(&router.selection_bias),
        expert_scale: vector(&router.expert_scale),
        ids: out.ids(),
        weights: out.weights(),
        rows: word("rows", rows)?,
        experts: word("experts", router.weights.form.rows)?,
        per_token: word("experts of a token", per_token)?,
        is_sigmoid: u32::from(matches!(rule.score, RouterScore::Sigmoid)),
        normalizes: u32::from(rule.norm_topk_prob),
        scale: rule.scale,
        groups: word("groups of experts", groups.map_or(0, |groups| groups.n_group))?,
        groups_kept: word("groups of experts", groups.map_or(0, |groups| groups.topk_group))?,
        two_best: u32::from(
            groups.is_some_and(|groups| matches!(groups.score, GroupScore::TwoBest)),
        ),
        padding: 0,
    };
    Ok(tools.recorder.launch(params.launch(), &params)?)
}

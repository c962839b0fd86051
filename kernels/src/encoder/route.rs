//! The router: which experts a row uses.

use nestling_core::EngineError;
use nestling_core::backend::{Router, Routing};
use nestling_gpu::{RouterLimits, check_routing};
use nestling_import::{GroupScore, RouterScore};

use super::{NUM_EXPERTS_MAX, PER_TOKEN_MAX, Tools, products};
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::memory::{CudaBuffer, CudaFloats, CudaRouting, word};
use crate::params::RouteParams;
use crate::recorder::Recorder;

/// What the kernel has room for.
const LIMITS: RouterLimits =
    RouterLimits { experts: NUM_EXPERTS_MAX, per_token: PER_TOKEN_MAX, groups: 64 };

/// Puts a routing of the host in place of the router's.
pub(super) fn write(
    recorder: &mut Recorder,
    routing: &Routing,
    out: &CudaRouting,
) -> Result<(), EngineError> {
    check_routing(routing, (out.rows, out.per_token))?;
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
    let rows = (x.rows, out.rows_max);
    LIMITS.check((router, experts), |vector| vector.len, rows)?;
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

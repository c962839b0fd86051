//! The router: which experts a row uses.

use bytemuck::{Pod, Zeroable};
use nestling_core::EngineError;
use nestling_core::backend::{Router, Routing};
use nestling_gpu::{RouterLimits, check_routing};
use nestling_import::{GroupScore, RouterScore};

use super::{NUM_EXPERTS_MAX, PER_TOKEN_MAX, Tools, products};
use crate::backend::WgpuBackend;
use crate::memory::{WgpuBuffer, WgpuFloats, WgpuRouting, word};
use crate::recorder::{Binding, Recorder, spread};

/// What the shader has room for.
const LIMITS: RouterLimits =
    RouterLimits { experts: NUM_EXPERTS_MAX, per_token: PER_TOKEN_MAX, groups: 64 };

/// Puts a routing of the host in place of the router's.
pub(super) fn write(
    recorder: &mut Recorder,
    routing: &Routing,
    out: &WgpuRouting,
) -> Result<(), EngineError> {
    check_routing(routing, (out.rows, out.per_token))?;
    recorder.write(bytemuck::cast_slice(&routing.expert_ids), (&out.ids, 0))?;
    Ok(recorder.write(bytemuck::cast_slice(&routing.expert_weights), (&out.weights, 0))?)
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    rows: u32,
    experts: u32,
    per_token: u32,
    sigmoid_scores: u32,
    normalizes: u32,
    scale: f32,
    has_logit_bias: u32,
    has_selection_bias: u32,
    has_expert_scale: u32,
    groups: u32,
    groups_kept: u32,
    two_best: u32,
}

pub(super) fn route(
    tools: &mut Tools<'_>,
    router: &Router<WgpuBackend>,
    x: &WgpuBuffer,
    logits: &mut Option<WgpuBuffer>,
    out: &mut WgpuRouting,
) -> Result<(), EngineError> {
    let experts = router.weights.form.rows;
    let rows = (x.rows, out.rows_max);
    LIMITS.check((router, experts), |vector| vector.len, rows)?;
    let mut scratch = match logits.take() {
        Some(scratch) if scratch.cols == experts => scratch,
        _ => WgpuBuffer::new(tools.gpu, usize::MAX, experts)?,
    };
    products::multiply_float(tools, &router.weights, x, &mut scratch)?;
    choose(tools, router, &scratch, out)?;
    *logits = Some(scratch);
    Ok(())
}

/// The choice, from logits.
fn choose(
    tools: &mut Tools<'_>,
    router: &Router<WgpuBackend>,
    logits: &WgpuBuffer,
    out: &mut WgpuRouting,
) -> Result<(), EngineError> {
    let (rule, per_token) = (&router.rule, router.num_experts_per_tok);
    out.set(tools.gpu, logits.rows, per_token)?;
    let groups = rule.groups.as_ref();
    let params = Params {
        rows: word("rows", logits.rows)?,
        experts: word("experts", logits.cols)?,
        per_token: word("experts of a token", per_token)?,
        sigmoid_scores: u32::from(matches!(rule.score, RouterScore::Sigmoid)),
        normalizes: u32::from(rule.norm_topk_prob),
        scale: rule.scale,
        has_logit_bias: u32::from(router.logit_bias.is_some()),
        has_selection_bias: u32::from(router.selection_bias.is_some()),
        has_expert_scale: u32::from(router.expert_scale.is_some()),
        groups: word("groups of experts", groups.map_or(0, |groups| groups.n_group))?,
        groups_kept: word("groups of experts", groups.map_or(0, |groups| groups.topk_group))?,
        two_best: u32::from(
            groups.is_some_and(|groups| matches!(groups.score, GroupScore::TwoBest)),
        ),
    };
    // In place of a vector that is not there, anything that is only read.
    let vector =
        |vector: &Option<WgpuFloats>| vector.as_ref().map_or(logits.binding(), WgpuFloats::binding);
    let bindings = [
        logits.binding(),
        vector(&router.logit_bias),
        vector(&router.selection_bias),
        vector(&router.expert_scale),
        Binding::from(&out.ids),
        Binding::from(&out.weights),
    ];
    let cost = (spread(logits.rows), (logits.len() * (per_token + 8)) as u64);
    Ok(tools.recorder.dispatch(&tools.pipelines.route, &bindings, &params, cost)?)
}

//! The router: selects the experts of each row.

use nestling_core::EngineError;
use nestling_core::backend::{Router, Routing};
use nestling_import::{ExpertGroups, GroupScore, RouterScore};

use super::{NUM_EXPERTS_MAX, PER_TOKEN_MAX, products};
use crate::command_recorder::CommandRecorder;
use crate::device::Device;
use crate::device_scratch::DeviceScratch;
use crate::memory::{GpuBuffer, GpuFloats, GpuRouting};
use crate::operation::{Operation, Route};
use crate::router::RouterLimits;
use crate::scratch::ScratchRoom;
use crate::sizes::RouteSizes;
use crate::storage::word;

const LIMITS: RouterLimits =
    RouterLimits { experts: NUM_EXPERTS_MAX, per_token: PER_TOKEN_MAX, groups: 64 };

/// Uploads a routing chosen by the host.
pub(super) fn write<D: Device>(
    device: &mut D,
    routing: &Routing,
    out: &GpuRouting<D>,
) -> Result<(), EngineError> {
    let recorder = device.recorder();
    recorder.write(bytemuck::cast_slice(&routing.expert_ids), &out.ids(), 0)?;
    Ok(recorder.write(bytemuck::cast_slice(&routing.expert_weights), &out.weights(), 0)?)
}

pub(super) fn route<D: Device>(
    device: &mut D,
    router: &Router<D>,
    x: &GpuBuffer<D>,
    out: &mut GpuRouting<D>,
) -> Result<(), EngineError> {
    let experts = router.weights.form.rows;
    LIMITS.check(router, experts, x.rows, out.rows_max)?;
    let logits = device.scratch(ScratchRoom::RouterLogits, x.rows * experts)?;
    products::multiply_float(device, &router.weights, x, logits.clone())?;
    choose(device, router, logits, x.rows, out)
}

/// Records the selection of experts from logits.
fn choose<D: Device>(
    device: &mut D,
    router: &Router<D>,
    logits: D::Binding,
    rows: usize,
    out: &mut GpuRouting<D>,
) -> Result<(), EngineError> {
    let (rule, per_token) = (&router.rule, router.num_experts_per_tok);
    out.set(device, rows, per_token)?;
    let groups = rule.groups.as_ref();
    let is_by_two = |groups: &ExpertGroups| matches!(groups.score, GroupScore::TwoBest);
    let vector = |vector: &Option<GpuFloats<D>>| vector.as_ref().map(GpuFloats::binding);
    device.record(Operation::Route(Route {
        logits,
        logit_bias: vector(&router.logit_bias),
        selection_bias: vector(&router.selection_bias),
        expert_scale: vector(&router.expert_scale),
        ids: out.ids(),
        weights: out.weights(),
        sizes: RouteSizes {
            rows: word("rows", rows)?,
            experts: word("experts", router.weights.form.rows)?,
            per_token: word("experts of a token", per_token)?,
            is_sigmoid: u32::from(matches!(rule.score, RouterScore::Sigmoid)),
            normalizes: u32::from(rule.norm_topk_prob),
            scale: rule.scale,
            groups: word("groups of experts", groups.map_or(0, |groups| groups.n_group))?,
            groups_kept: word("groups of experts", groups.map_or(0, |groups| groups.topk_group))?,
            two_best: u32::from(groups.is_some_and(is_by_two)),
        },
    }))
}

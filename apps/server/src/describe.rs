//! JSON descriptions of the served models: `/v1/models`, `/status`, `/plan`.

use nestling::{Level, PlannedResidence, ServiceStatus};
use serde_json::{Value, json};

use crate::pool::{ModelState, OpenState};
use crate::server::ServedModel;
use crate::source::ListedModel;

pub(crate) fn model(served: &ServedModel) -> Value {
    let can = served.model.capabilities();
    json!({
        "id": served.id,
        "object": "model",
        "created": served.created,
        "owned_by": "nestling",
        "meta": {
            "context_length": can.context_length,
            "context_trained": can.context_trained,
            "vocab_size": served.model.limits().vocab_size,
            "chat": can.chat,
            "tools": served.takes_tools(),
            "tool_style": if can.tools { "native" } else { "generic" },
            "thinking": can.thinking,
        },
    })
}

/// Returns the entry of a source's model in `/v1/models`.
pub(crate) fn listed(listed: &ListedModel, state: ModelState, open: &[OpenState]) -> Value {
    let served = open.iter().map(|open| &open.served).find(|served| served.id == listed.name);
    let mut object = served.map_or_else(
        || json!({ "id": listed.name, "object": "model", "owned_by": "nestling" }),
        |served| model(served),
    );
    if let Value::Object(map) = &mut object {
        map.insert("created".into(), listed.created.into());
        map.insert("status".into(), json!({ "value": state.name() }));
        map.insert("bytes".into(), listed.bytes.into());
        map.insert("format".into(), listed.format.into());
    }
    object
}

/// `GET /v1/models`.
pub(crate) fn models(models: Vec<Value>) -> Value {
    json!({ "object": "list", "data": models })
}

/// `GET /status`.
pub(crate) fn status(served: &ServedModel) -> Value {
    let status = served.model.engine().status();
    let (pages, step, disk) = (status.pages, status.last_step, status.page_store);
    json!({
        "model": served.id,
        "device": served.model.device_name(),
        "level_max_bits": served.model.limits().level_max.map(Level::bits),
        "running": status.running,
        "waiting": status.waiting,
        "parked": status.parked,
        "pages": {
            "total": pages.total, "free": pages.free, "idle": pages.idle, "running": pages.running,
            "waiting": pages.waiting, "promised": pages.promised, "resting": pages.resting,
        },
        "prefixes": {
            "asked_tokens": status.prefixes.asked_tokens,
            "found_tokens": status.prefixes.found_tokens,
        },
        "page_store": {
            "pages": disk.pages, "bytes": disk.bytes, "queued": disk.queued, "hits": disk.hits,
            "writes": disk.writes, "dropped": disk.dropped, "damaged": disk.damaged,
            "failed": disk.failed, "is_writing": disk.is_writing,
        },
        "preemptions": status.preemptions,
        "late": status.late,
        "steps": status.steps,
        "rows": status.rows,
        "experts": experts(&status),
        "last_step": { "rows": step.rows, "sequences": step.sequences, "seconds": step.seconds },
        "gap_in_force_seconds": status.gap_in_force,
        "ranks_replaced": status.ranks_replaced,
        "idle_sessions": served.idle.count(),
        "requests_free": served.requests.available_permits(),
        "memory": memory(served),
        "expert_bytes": served.model.expert_bytes(),
    })
}

/// Returns expert statistics since the model was opened.
fn experts(status: &ServiceStatus) -> Value {
    let (uses, streaming) = (status.experts.uses, &status.experts.streaming);
    let served_bits: u64 =
        Level::ALL.into_iter().zip(uses).map(|(level, uses)| u64::from(level.bits()) * uses).sum();
    json!({
        "uses": uses.iter().sum::<u64>(),
        "served_bits": served_bits,
        "hits": streaming.expert_hits,
        "misses": streaming.expert_misses,
        "wanted_bytes": streaming.wanted_bytes,
        "missing_bytes": streaming.missing_total() + streaming.ahead_bytes,
        "read_bytes": streaming.read_total(),
    })
}

/// Returns the memory budget, the memory in use and the accepted range of budgets.
pub(crate) fn memory(served: &ServedModel) -> Value {
    let engine = served.model.engine();
    let budget = engine.budget();
    json!({
        "used_bytes": budget.used_bytes(),
        "budget_bytes": budget.total_bytes(),
        "budget_max_bytes": served.memory_max,
    })
}

/// Returns `GET /plan`: the memory plan, or `null` for a model that was not opened from files.
pub(crate) fn plan(served: &ServedModel) -> Value {
    let Some(plan) = served.model.memory_plan() else { return Value::Null };
    let residence = match plan.residence {
        PlannedResidence::Resident => "resident",
        PlannedResidence::Streamed => "streamed",
        PlannedResidence::Lazy => "lazy",
    };
    json!({
        "residence": residence,
        "weight_bytes": plan.weight_bytes,
        "expert_bytes": plan.expert_bytes,
        "expert_bytes_total": plan.expert_bytes_total,
        "kv_bytes": plan.kv_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "program_bytes": plan.program_bytes,
        "total_bytes": plan.total_bytes(),
        "context_length": plan.context_length,
        "kv_pages": plan.kv_pages,
        "rows_max": plan.rows_max,
    })
}

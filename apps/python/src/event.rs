//! Events of a generation, as tuples that the Python package converts to classes.

use nestling::{Event, FinishReason, GenerationSummary, TokenEvent};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use serde_json::json;

/// Converts an event to a tuple of its kind and its values.
pub(crate) fn tuple<'py>(py: Python<'py>, event: Event) -> PyResult<Bound<'py, PyTuple>> {
    match event {
        Event::Text(text) => ("text", text).into_pyobject(py),
        Event::Reasoning(text) => ("reasoning", text).into_pyobject(py),
        Event::Token(event) => token(py, "token", event),
        Event::PromptToken(event) => token(py, "prompt_token", event),
        Event::ToolCallStart { index, id, name } => {
            ("tool_call_start", index, id, name).into_pyobject(py)
        }
        Event::ToolCallArguments { index, delta } => {
            ("tool_call_arguments", index, delta).into_pyobject(py)
        }
        Event::ToolCall(call) => {
            let arguments = call.arguments_text();
            ("tool_call", call.id, call.name, arguments).into_pyobject(py)
        }
        Event::Finished(finished) => ("finished", written(&finished)).into_pyobject(py),
        _ => ("other",).into_pyobject(py),
    }
}

fn token<'py>(
    py: Python<'py>,
    kind: &'static str,
    event: TokenEvent,
) -> PyResult<Bound<'py, PyTuple>> {
    let TokenEvent { token, bytes, log_prob, top, .. } = event;
    (kind, token, PyBytes::new(py, &bytes), log_prob, top).into_pyobject(py)
}

fn reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ContextFull => "context_full",
        FinishReason::ToolCalls => "tool_calls",
        FinishReason::Cancelled => "cancelled",
        _ => "other",
    }
}

fn written(finished: &GenerationSummary) -> String {
    let (usage, stats) = (&finished.usage, &finished.stats);
    let told = json!({
        "reason": reason(finished.reason),
        "stop": finished.stop,
        "seed": finished.seed,
        "message": finished.message,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "cached_tokens": usage.cached_tokens,
            "completion_tokens": usage.completion_tokens,
        },
        "stats": {
            "prompt_tokens": stats.prompt_tokens,
            "prompt_seconds": stats.prompt_seconds,
            "decode_tokens": stats.decode_tokens,
            "decode_seconds": stats.decode_seconds,
            "first_token_seconds": stats.time_to_first_token_seconds,
            "is_late": stats.is_late,
            "preemptions": stats.preemptions,
            "steps": stats.steps,
            "mean_level": stats.mean_level(),
            "weight_read_bytes": stats.weight_read_bytes,
            "weight_bytes": stats.weight_bytes,
            "kv_bytes": stats.kv_bytes,
        },
    });
    told.to_string()
}

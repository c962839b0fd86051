//! Schemas common to several bodies: tools, messages and output formats.

use serde_json::{Value, json};

use super::schema::{any_of, anything, component, flag, integer, list, object, text, word};
use crate::limits::{
    BODY_BYTES_MAX, CALLS_MAX, NAME_BYTES_MAX, PARTS_MAX, STOP_BYTES_MAX, STOPS_MAX,
    TEXT_BYTES_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX,
};

pub(super) fn all() -> Value {
    json!({
        "Any": { "type": "object" },
        "Schema": { "type": "object", "description": "A JSON schema." },
        "Function": function(),
        "Tool": any_of(&[
            object(&["type", "function"], json!({
                "type": word(&["function"]), "function": component("Function"),
            })),
            hosted_tool(),
        ]),
        "ToolChoice": any_of(&[
            word(&["none", "auto", "required"]),
            object(&["type", "function"], json!({
                "type": word(&["function"]),
                "function": object(&["name"], json!({ "name": name(TOOL_NAME_BYTES_MAX) })),
            })),
            object(&["type", "allowed_tools"], json!({
                "type": word(&["allowed_tools"]), "allowed_tools": allowed_tools(&[], json!({})),
            })),
        ]),
        "Form": form(),
        "NamedSchema": object(&["name"], named_schema()),
        "Stop": any_of(&[stop_text(), list(&stop_text(), 0, STOPS_MAX)]),
        "Message": message(),
        "Part": any_of(&[
            // Of a repeated message, such as an image in the result of a tool.
            object(&["type"], json!({ "type": text(NAME_BYTES_MAX) })),
            object(&["type", "text"], json!({ "type": word(&["text"]), "text": text(BODY_BYTES_MAX) })),
            object(&["type", "refusal"], json!({ "type": word(&["refusal"]), "refusal": text(BODY_BYTES_MAX) })),
        ]),
    })
}

/// Returns the schema of a tool that another server would run itself. Beside functions it is ignored.
pub(super) fn hosted_tool() -> Value {
    object(&["type"], json!({ "type": text(NAME_BYTES_MAX) }))
}

/// Returns the schema of a choice among some of the tools.
pub(super) fn allowed_tools(required: &[&str], more: Value) -> Value {
    let mut all = json!({
        "mode": word(&["auto", "required"]), "tools": list(&component("Any"), 0, TOOLS_MAX),
    });
    if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
        all.extend(more);
    }
    object(&[required, &["mode", "tools"]].concat(), all)
}

fn stop_text() -> Value {
    json!({ "type": "string", "maxLength": STOP_BYTES_MAX })
}

pub(super) fn name(bytes_max: usize) -> Value {
    json!({ "type": "string", "minLength": 1, "maxLength": bytes_max, "pattern": "^[A-Za-z0-9_.:/-]+$" })
}

pub(super) fn named_schema() -> Value {
    json!({
        "name": text(NAME_BYTES_MAX), "description": text(BODY_BYTES_MAX), "strict": flag(),
        "schema": component("Schema"),
    })
}

fn function() -> Value {
    object(
        &["name"],
        json!({
            "name": name(TOOL_NAME_BYTES_MAX), "description": text(BODY_BYTES_MAX),
            "parameters": component("Schema"), "strict": flag(),
        }),
    )
}

fn form() -> Value {
    any_of(&[
        object(&["type"], json!({ "type": word(&["text", "json_object"]) })),
        object(
            &["type", "json_schema"],
            json!({ "type": word(&["json_schema"]), "json_schema": component("NamedSchema") }),
        ),
    ])
}

fn message() -> Value {
    let call = object(
        &["id", "function"],
        json!({
            "id": text(TEXT_BYTES_MAX), "type": text(NAME_BYTES_MAX),
            "function": object(&["name", "arguments"], json!({
                "name": { "type": "string" }, "arguments": anything(),
            })),
        }),
    );
    object(
        &["role"],
        json!({
            "role": word(&["system", "developer", "user", "assistant", "tool", "function"]),
            "content": any_of(&[text(BODY_BYTES_MAX), list(&component("Part"), 0, PARTS_MAX)]),
            "name": { "type": "string" },
            "refusal": { "type": "string" },
            "reasoning_content": { "type": "string" },
            "reasoning": { "type": "string" },
            "tool_calls": list(&call, 0, CALLS_MAX),
            "tool_call_id": { "type": "string" },
            "annotations": anything(),
        }),
    )
}

pub(super) fn token() -> Value {
    integer(0, u64::from(u32::MAX))
}

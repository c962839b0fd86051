//! Request bodies of Anthropic's and Ollama's APIs.

use serde_json::{Map, Value, json};

use super::parts::{hosted_tool, name};
use super::schema::{
    any_of, component, flag, integer, list, object, text, token_limit, with_constraints,
    with_rules, with_samplers, word,
};
use crate::field_rules::{MESSAGES, OLLAMA, OLLAMA_GENERATE, OLLAMA_OPTIONS};
use crate::limits::{
    BODY_BYTES_MAX, CALLS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX, STOP_BYTES_MAX, STOPS_MAX,
    TEXT_BYTES_MAX, TOKENS_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX,
};
use crate::reasoning::EFFORTS;

pub(super) fn all() -> Value {
    json!({
        "Messages": messages(),
        "CountTokens": object(&["model", "messages"], counted()),
        "CacheControl": { "type": "object", "description": "Prompts are always cached." },
        "Thinking": object(&["type"], json!({
            "type": word(&["enabled", "adaptive", "auto", "disabled"]), "budget_tokens": integer(0, TOKENS_MAX),
        })),
        "TextBlock": block("text", &["text"], json!({
            "text": text(BODY_BYTES_MAX),
        })),
        "MessageBlock": blocks(),
        "AnthropicTool": anthropic_tool(),
        "OllamaShow": ollama_show(),
        "OllamaChat": ollama(&["model"], json!({
            "messages": list(&ollama_message(), 0, MESSAGES_MAX),
            "tools": list(&component("Tool"), 0, TOOLS_MAX),
        })),
        "OllamaGenerate": ollama(&["model"], with_rules(json!({
            "prompt": text(BODY_BYTES_MAX), "system": text(BODY_BYTES_MAX), "raw": flag(),
        }), &[OLLAMA_GENERATE])),
        "OllamaOptions": ollama_options(),
    })
}

/// Returns the schema of a content block. All blocks may have `cache_control`.
fn block(kind: &str, required: &[&str], fields: Value) -> Value {
    let mut all = json!({ "type": word(&[kind]), "cache_control": component("CacheControl") });
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend::<Map<String, Value>>(fields);
    }
    let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
    object(&required, all)
}

fn words() -> Value {
    any_of(&[text(BODY_BYTES_MAX), list(&component("TextBlock"), 0, PARTS_MAX)])
}

fn blocks() -> Value {
    let plain = |kind: &str, required: &[&str], fields: Value| {
        let mut all = json!({ "type": word(&[kind]) });
        if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
            all.extend::<Map<String, Value>>(fields);
        }
        let required: Vec<&str> = ["type"].iter().chain(required).copied().collect();
        object(&required, all)
    };
    any_of(&[
        component("TextBlock"),
        block(
            "tool_result",
            &["tool_use_id"],
            json!({
                "tool_use_id": text(TEXT_BYTES_MAX), "content": words(), "is_error": flag(),
            }),
        ),
        block(
            "tool_use",
            &["id", "name", "input"],
            json!({
                "id": text(TEXT_BYTES_MAX), "name": text(TEXT_BYTES_MAX), "input": { "type": "object" },
            }),
        ),
        plain(
            "thinking",
            &["thinking"],
            json!({
                "thinking": text(BODY_BYTES_MAX), "signature": text(BODY_BYTES_MAX),
            }),
        ),
        plain("redacted_thinking", &[], json!({ "data": text(BODY_BYTES_MAX) })),
        // Of a hosted tool in an answer of another server, or an image in the result of a tool.
        object(&["type"], json!({ "type": text(NAME_BYTES_MAX) })),
    ])
}

fn anthropic_tool() -> Value {
    let own = object(
        &["name", "input_schema"],
        json!({
            "type": word(&["custom"]), "name": name(TOOL_NAME_BYTES_MAX), "description": text(BODY_BYTES_MAX),
            "input_schema": component("Schema"), "strict": flag(), "cache_control": component("CacheControl"),
            "eager_input_streaming": flag(),
        }),
    );
    any_of(&[own, hosted_tool()])
}

fn counted() -> Value {
    let message = object(
        &["role", "content"],
        json!({
            "role": word(&["user", "assistant", "system"]),
            "content": any_of(&[text(BODY_BYTES_MAX), list(&component("MessageBlock"), 0, PARTS_MAX)]),
        }),
    );
    let choice = object(
        &["type"],
        json!({
            "type": word(&["auto", "any", "tool", "none"]), "name": text(TOOL_NAME_BYTES_MAX),
            "disable_parallel_tool_use": flag(),
        }),
    );
    let format = object(
        &["type", "schema"],
        json!({ "type": word(&["json_schema"]), "schema": component("Schema") }),
    );
    let efforts = word(&EFFORTS);
    let own = json!({
        "model": text(TEXT_BYTES_MAX),
        "messages": list(&message, 1, MESSAGES_MAX),
        "system": words(),
        "tools": list(&component("AnthropicTool"), 0, TOOLS_MAX),
        "tool_choice": choice,
        "thinking": component("Thinking"),
        "output_config": object(&[], json!({ "effort": efforts, "format": format })),
        "cache_control": component("CacheControl"),
    });
    with_constraints(with_rules(own, &[MESSAGES]))
}

fn messages() -> Value {
    let stop = text(STOP_BYTES_MAX);
    let mut all = counted();
    let own = json!({
        "max_tokens": token_limit(),
        "stop_sequences": list(&stop, 0, STOPS_MAX),
        "metadata": object(&[], json!({ "user_id": text(TEXT_BYTES_MAX) })),
        "stream": flag(),
    });
    if let (Value::Object(all), Value::Object(own)) = (&mut all, own) {
        all.extend::<Map<String, Value>>(own);
    }
    object(&["model", "messages", "max_tokens"], with_samplers(all, 1.0))
}

/// Returns the schema of a list of images, of which only the empty one is supported.
fn no_images() -> Value {
    json!({ "enum": [[], null], "description": "Not supported: no model here sees images." })
}

fn ollama_show() -> Value {
    object(
        &[],
        json!({
            "model": text(TEXT_BYTES_MAX), "name": text(TEXT_BYTES_MAX),
        }),
    )
}

/// Adds the fields common to chats and completions of this API.
fn ollama(required: &[&str], fields: Value) -> Value {
    let own = json!({
        "model": { "type": "string", "minLength": 1, "maxLength": TEXT_BYTES_MAX },
        "stream": flag(),
        "keep_alive": any_of(&[json!({ "type": "number" }), json!({ "type": "string" })]),
        "options": component("OllamaOptions"),
        "format": any_of(&[word(&["", "json"]), component("Schema")]),
        "think": any_of(&[flag(), word(&EFFORTS)]),
    });
    let mut all = with_rules(own, &[OLLAMA]);
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend::<Map<String, Value>>(fields);
    }
    object(required, all)
}

fn ollama_message() -> Value {
    let function = object(
        &["name"],
        json!({
            "name": text(TEXT_BYTES_MAX), "arguments": { "type": "object" },
        }),
    );
    let call = object(
        &["function"],
        json!({ "id": text(TEXT_BYTES_MAX), "type": text(NAME_BYTES_MAX), "function": function }),
    );
    object(
        &["role"],
        json!({
            "role": word(&["system", "user", "assistant", "tool"]), "content": text(BODY_BYTES_MAX),
            "images": no_images(), "thinking": text(BODY_BYTES_MAX),
            "tool_calls": list(&call, 0, CALLS_MAX), "tool_name": text(TEXT_BYTES_MAX),
            "tool_call_id": text(TEXT_BYTES_MAX),
        }),
    )
}

fn ollama_options() -> Value {
    let own = json!({
        "stop": component("Stop"),
        "num_predict": token_limit(),
        "num_ctx": integer(0, TOKENS_MAX),
    });
    object(&[], with_samplers(with_rules(own, &[OLLAMA_OPTIONS]), 100.0))
}

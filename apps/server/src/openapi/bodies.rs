//! Request bodies of the OpenAI API and of this server's own routes.

use serde_json::{Map, Value, json};

use super::parts::{name, named_schema, token};
use super::schema::{any_of, anything, component, flag, integer, list, number, object, text, word};
use crate::limits::{
    BIASES_MAX, BODY_BYTES_MAX, CHOICES_MAX, LOGPROBS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX,
    PROMPTS_MAX, TEXT_BYTES_MAX, TOKENS_MAX, TOOLS_MAX, TOP_LOGPROBS_MAX,
};
use crate::reasoning::EFFORTS;

pub(super) fn all() -> Value {
    json!({
        "Chat": chat(),
        "Completion": completion(),
        "Response": response(),
        "ResponseItem": response_item(),
        "Tokenize": object(&["prompt"], json!({
            "model": text(TEXT_BYTES_MAX), "prompt": text(BODY_BYTES_MAX), "add_special_tokens": flag(),
        })),
        "Detokenize": object(&["tokens"], json!({
            "model": text(TEXT_BYTES_MAX), "tokens": list(&token(), 0, TOKENS_MAX as usize),
        })),
        "Memory": object(&["budget_bytes"], json!({
            "model": text(TEXT_BYTES_MAX), "budget_bytes": integer(0, u64::MAX),
        })),
    })
}

fn with_shared(fields: Value) -> Value {
    let mut all = json!({
        "model": text(TEXT_BYTES_MAX),
        "temperature": number(0.0, 2.0),
        "top_p": number(0.0, 1.0),
        "top_k": integer(0, u64::from(u32::MAX)),
        "min_p": number(0.0, 1.0),
        "repetition_penalty": number(0.01, 100.0),
        "frequency_penalty": number(-2.0, 2.0),
        "presence_penalty": number(-2.0, 2.0),
        "seed": { "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX },
        "logit_bias": {
            "type": "object", "maxProperties": BIASES_MAX, "additionalProperties": number(-100.0, 100.0),
        },
        "n": integer(1, CHOICES_MAX),
        "stream": flag(),
        "stream_options": object(&[], json!({ "include_usage": flag() })),
        "stop": component("Stop"),
        "user": text(TEXT_BYTES_MAX),
        "cache_prompt": flag(),
        "ignore_eos": flag(),
        "max_tokens": integer(0, TOKENS_MAX),
    });
    if let (Value::Object(all), Value::Object(fields)) = (&mut all, fields) {
        all.extend::<Map<String, Value>>(fields);
    }
    all
}

fn chat() -> Value {
    let own = json!({
        "messages": list(&component("Message"), 1, MESSAGES_MAX),
        "tools": list(&component("Tool"), 0, TOOLS_MAX),
        "tool_choice": component("ToolChoice"),
        "parallel_tool_calls": flag(),
        "response_format": component("Form"),
        "logprobs": flag(),
        "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
        "max_tokens": integer(1, TOKENS_MAX),
        "max_completion_tokens": integer(1, TOKENS_MAX),
        "chat_template_kwargs": { "type": "object" },
        "reasoning_effort": word(&EFFORTS),
    });
    object(&["model", "messages"], with_shared(own))
}

fn completion() -> Value {
    let tokens = list(&token(), 1, TOKENS_MAX as usize);
    let own = json!({
        "prompt": any_of(&[
            text(BODY_BYTES_MAX),
            list(&text(BODY_BYTES_MAX), 1, PROMPTS_MAX),
            tokens.clone(),
            list(&tokens, 1, PROMPTS_MAX),
        ]),
        "logprobs": integer(0, LOGPROBS_MAX),
        "echo": flag(),
    });
    object(&["model", "prompt"], with_shared(own))
}

fn response() -> Value {
    let tool = object(
        &["type", "name"],
        json!({
            "type": word(&["function"]), "name": name(NAME_BYTES_MAX), "description": text(BODY_BYTES_MAX),
            "parameters": component("Schema"), "strict": flag(),
        }),
    );
    let choice = any_of(&[
        word(&["none", "auto", "required"]),
        object(
            &["type", "name"],
            json!({ "type": word(&["function"]), "name": text(NAME_BYTES_MAX) }),
        ),
    ]);
    object(
        &["model", "input"],
        json!({
            "model": text(TEXT_BYTES_MAX),
            "input": any_of(&[text(BODY_BYTES_MAX), list(&component("ResponseItem"), 1, MESSAGES_MAX)]),
            "instructions": text(BODY_BYTES_MAX),
            "tools": list(&tool, 0, TOOLS_MAX),
            "tool_choice": choice,
            "parallel_tool_calls": flag(),
            "text": object(&[], json!({ "format": response_form(), "verbosity": word(&["medium"]) })),
            "reasoning": object(&[], json!({ "effort": word(&EFFORTS) })),
            "temperature": number(0.0, 2.0),
            "top_p": number(0.0, 1.0),
            "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
            "include": list(&word(&["message.output_text.logprobs"]), 0, TOOLS_MAX),
            "max_output_tokens": integer(1, TOKENS_MAX),
            "stream": flag(),
            "stream_options": object(&[], json!({ "include_obfuscation": { "type": "boolean", "enum": [false] } })),
            "user": text(TEXT_BYTES_MAX),
            "safety_identifier": text(TEXT_BYTES_MAX),
            "prompt_cache_key": text(TEXT_BYTES_MAX),
            "metadata": { "type": "object", "additionalProperties": text(TEXT_BYTES_MAX) },
            "store": { "type": "boolean", "enum": [false] },
            "background": { "type": "boolean", "enum": [false] },
            "truncation": word(&["disabled"]),
            "service_tier": word(&["auto", "default"]),
            "prompt_cache_retention": word(&["in_memory"]),
        }),
    )
}

fn response_form() -> Value {
    let mut named = json!({ "type": word(&["json_schema"]) });
    if let (Value::Object(named), Value::Object(more)) = (&mut named, named_schema()) {
        named.extend(more);
    }
    any_of(&[
        object(&["type"], json!({ "type": word(&["text", "json_object"]) })),
        object(&["type", "name"], named),
    ])
}

fn response_item() -> Value {
    let part = |kind: &str, field: &str| {
        object(
            &["type", field],
            json!({
                "type": word(&[kind]), field: text(BODY_BYTES_MAX), "annotations": list(&anything(), 0, 0),
                "logprobs": anything(),
            }),
        )
    };
    let parts =
        |kinds: &[Value]| any_of(&[text(BODY_BYTES_MAX), list(&any_of(kinds), 0, PARTS_MAX)]);
    let said =
        [part("input_text", "text"), part("output_text", "text"), part("refusal", "refusal")];
    let item = |required: &[&str], kind: &str, more: Value| {
        let mut all = json!({
            "type": word(&[kind]), "id": text(TEXT_BYTES_MAX), "status": text(NAME_BYTES_MAX),
        });
        if let (Value::Object(all), Value::Object(more)) = (&mut all, more) {
            all.extend(more);
        }
        object(required, all)
    };
    any_of(&[
        item(
            &["role", "content"],
            "message",
            json!({
                "role": word(&["user", "assistant", "system", "developer"]), "content": parts(&said),
            }),
        ),
        item(
            &["type"],
            "reasoning",
            json!({
                "content": parts(&[part("reasoning_text", "text")]),
                "summary": parts(&[part("summary_text", "text")]),
            }),
        ),
        item(
            &["type", "call_id", "name", "arguments"],
            "function_call",
            json!({
                "call_id": text(TEXT_BYTES_MAX), "name": text(TEXT_BYTES_MAX), "arguments": text(BODY_BYTES_MAX),
            }),
        ),
        item(
            &["type", "call_id", "output"],
            "function_call_output",
            json!({
                "call_id": text(TEXT_BYTES_MAX), "output": parts(&[part("input_text", "text")]),
            }),
        ),
    ])
}

//! Request bodies of the OpenAI API and of this server's own routes.

use serde_json::{Map, Value, json};

use super::parts::{allowed_tools, hosted_tool, name, named_schema, token};
use super::schema::{
    any_of, anything, component, flag, integer, list, object, text, token_limit, with_constraints,
    with_rules, with_samplers, word,
};
use crate::field_rules::{CHAT, COMPLETION, RESPONSE, SHARED};
use crate::limits::{
    BODY_BYTES_MAX, CHOICES_MAX, LOGPROBS_MAX, MESSAGES_MAX, NAME_BYTES_MAX, PARTS_MAX,
    PROMPTS_MAX, TEXT_BYTES_MAX, TOKENS_MAX, TOOL_NAME_BYTES_MAX, TOOLS_MAX, TOP_LOGPROBS_MAX,
};
use crate::reasoning::EFFORTS;
use crate::sampling::TEMPERATURES;

pub(super) fn all() -> Value {
    json!({
        "Chat": chat(),
        "Completion": completion(),
        "Response": response(),
        "ResponseItem": response_item(),
        "Tokenize": object(&[], json!({
            "model": text(TEXT_BYTES_MAX), "prompt": text(BODY_BYTES_MAX), "content": text(BODY_BYTES_MAX),
            "add_special_tokens": flag(), "add_special": flag(),
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
    let own = json!({
        "model": text(TEXT_BYTES_MAX),
        "n": integer(1, CHOICES_MAX),
        "stream": flag(),
        "stream_options": object(&[], json!({ "include_usage": flag(), "include_obfuscation": flag() })),
        "stop": component("Stop"),
        "user": text(TEXT_BYTES_MAX),
        "safety_identifier": text(TEXT_BYTES_MAX),
        "cache_prompt": flag(),
        "ignore_eos": flag(),
        "max_tokens": token_limit(),
        "n_predict": token_limit(),
    });
    let mut all = with_samplers(with_constraints(with_rules(own, &[SHARED])), *TEMPERATURES.end());
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
        "max_completion_tokens": token_limit(),
        "chat_template_kwargs": { "type": "object" },
        "enable_thinking": flag(),
        "add_generation_prompt": flag(),
        "continue_final_message": flag(),
        "thinking": component("Thinking"),
        "reasoning": object(&[], json!({ "effort": word(&EFFORTS) })),
        "reasoning_effort": word(&EFFORTS),
        "modalities": list(&word(&["text"]), 0, CHOICES_MAX as usize),
    });
    object(&["model", "messages"], with_shared(with_rules(own, &[CHAT])))
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
        "logprobs": any_of(&[integer(0, LOGPROBS_MAX), json!({ "enum": [false] })]),
        "best_of": integer(1, CHOICES_MAX),
        "echo": flag(),
    });
    object(&["model", "prompt"], with_shared(with_rules(own, &[COMPLETION])))
}

fn response() -> Value {
    let function = object(
        &["type", "name"],
        json!({
            "type": word(&["function"]), "name": name(TOOL_NAME_BYTES_MAX),
            "description": text(BODY_BYTES_MAX), "parameters": component("Schema"), "strict": flag(),
        }),
    );
    let namespace = object(
        &["type", "name"],
        json!({
            "type": word(&["namespace"]), "name": name(TOOL_NAME_BYTES_MAX),
            "description": text(BODY_BYTES_MAX), "tools": list(&function, 0, TOOLS_MAX),
        }),
    );
    let tool = any_of(&[function, namespace, hosted_tool()]);
    let choice = any_of(&[
        word(&["none", "auto", "required"]),
        object(
            &["type", "name"],
            json!({ "type": word(&["function"]), "name": name(TOOL_NAME_BYTES_MAX) }),
        ),
        allowed_tools(&["type"], json!({ "type": word(&["allowed_tools"]) })),
    ]);
    let own = json!({
        "model": text(TEXT_BYTES_MAX),
        "input": any_of(&[text(BODY_BYTES_MAX), list(&component("ResponseItem"), 1, MESSAGES_MAX)]),
        "instructions": text(BODY_BYTES_MAX),
        "tools": list(&tool, 0, TOOLS_MAX),
        "tool_choice": choice,
        "parallel_tool_calls": flag(),
        "text": object(&[], json!({ "format": response_form(), "verbosity": text(NAME_BYTES_MAX) })),
        "reasoning": object(&[], json!({ "effort": word(&EFFORTS) })),
        "top_logprobs": integer(0, TOP_LOGPROBS_MAX),
        "include": list(&anything(), 0, TOOLS_MAX),
        "store": flag(),
        "stop": component("Stop"),
        "previous_response_id": text(TEXT_BYTES_MAX),
        "max_output_tokens": token_limit(),
        "stream": flag(),
        "stream_options": object(&[], json!({ "include_obfuscation": flag() })),
        "user": text(TEXT_BYTES_MAX),
        "safety_identifier": text(TEXT_BYTES_MAX),
        "metadata": { "type": "object", "additionalProperties": text(TEXT_BYTES_MAX) },
    });
    let all = with_constraints(with_rules(own, &[RESPONSE]));
    object(&["model", "input"], with_samplers(all, *TEMPERATURES.end()))
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
        // Of a hosted tool in an answer of another server.
        object(&["type"], json!({ "type": text(NAME_BYTES_MAX) })),
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
                "encrypted_content": text(BODY_BYTES_MAX),
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

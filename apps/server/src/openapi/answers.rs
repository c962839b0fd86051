//! Responses of the routes, including errors.

use serde_json::{Value, json};

use super::parts::token;
use super::schema::{answer, component, list};

pub(super) fn all() -> Value {
    let text = json!({ "type": "string" });
    let count = json!({ "type": "integer", "minimum": 0 });
    let inner =
        answer(&["message", "type", "param", "code"], json!({ "message": text, "type": text }));
    let anthropic = answer(&["type", "message"], json!({ "type": text, "message": text }));
    let models = |of: &str| json!({ "type": "array", "items": component(of) });
    json!({
        "Error": answer(&["error"], json!({ "error": inner })),
        "AnthropicError": answer(&["type", "error", "request_id"], json!({
            "type": { "const": "error" }, "error": anthropic,
        })),
        "OllamaError": answer(&["error"], json!({ "error": text })),
        "Health": answer(&["status"], json!({ "status": { "const": "ok" } })),
        "Model": answer(&["id", "object", "created", "owned_by"], json!({
            "id": text, "object": { "const": "model" }, "created": count, "owned_by": text,
        })),
        "Models": answer(&["object", "data"], json!({
            "object": { "const": "list" }, "data": models("Model"),
        })),
        "TokenizerInfo": answer(
            &["bos_token", "eos_token", "eos_token_ids", "chat_template", "vocab_size", "max_model_len"],
            json!({ "vocab_size": count, "max_model_len": count }),
        ),
        "Tokens": answer(&["tokens", "count", "max_model_len"], json!({
            "tokens": { "type": "array", "items": token() }, "count": count, "max_model_len": count,
        })),
        "Detokenized": answer(&["prompt"], json!({ "prompt": text })),
        "TokenCount": answer(&["input_tokens"], json!({ "input_tokens": count })),
        "OllamaVersion": answer(&["version"], json!({ "version": text })),
        "OllamaModels": answer(&["models"], json!({ "models": { "type": "array", "items": {
            "type": "object", "required": ["name", "model", "size", "digest", "details"],
        } } })),
        "OllamaAnswer": answer(&["model", "created_at", "done"], json!({
            "model": text, "created_at": text, "done": { "const": true }, "done_reason": text,
        })),
        "ChatAnswer": of_choices("chat.completion", "message"),
        "CompletionAnswer": of_choices("text_completion", "text"),
        "ResponseAnswer": answer(
            &["id", "object", "created_at", "status", "model", "output", "usage", "error", "tools"],
            json!({
                "id": text, "object": { "const": "response" }, "created_at": count, "model": text,
                "status": { "enum": ["completed", "incomplete"] },
                "output": { "type": "array", "items": answer(&["id", "type", "status"], json!({})) },
            }),
        ),
        "ResponseDeleted": answer(&["id", "object", "deleted"], json!({
            "id": text, "object": { "const": "response" }, "deleted": { "const": true },
        })),
        "ResponseItems": answer(&["object", "data", "first_id", "last_id", "has_more"], json!({
            "object": { "const": "list" }, "data": { "type": "array", "items": { "type": "object" } },
            "has_more": { "type": "boolean" },
        })),
        "MessageAnswer": answer(
            &["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"],
            json!({
                "id": text, "type": { "const": "message" }, "role": { "const": "assistant" }, "model": text,
                "content": { "type": "array", "items": answer(&["type"], json!({})) },
                "stop_reason": { "enum": [
                    "end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded",
                ] },
            }),
        ),
    })
}

fn of_choices(object: &str, says: &str) -> Value {
    let count = json!({ "type": "integer", "minimum": 0 });
    let reasons = ["stop", "length", "tool_calls"];
    let choice = answer(
        &["index", says, "logprobs", "finish_reason"],
        json!({ "index": count, "finish_reason": { "enum": reasons } }),
    );
    let usage = answer(
        &["prompt_tokens", "completion_tokens", "total_tokens"],
        json!({ "prompt_tokens": count, "completion_tokens": count, "total_tokens": count }),
    );
    answer(
        &["id", "object", "created", "model", "choices", "usage"],
        json!({
            "id": { "type": "string" }, "object": { "const": object }, "created": count,
            "model": { "type": "string" }, "choices": list(&choice, 1, usize::MAX >> 1), "usage": usage,
        }),
    )
}

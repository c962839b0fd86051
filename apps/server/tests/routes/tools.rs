//! Tool calls of a random model, which calls tools only because of a constraint.

use nestling_server::Server;
use serde_json::{Value, json};

use crate::models::{dense_server, tool_server};
use crate::{CHAT, chat_with, post};

/// Returns the argument schema of a weather tool.
pub fn weather_schema() -> Value {
    json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": { "type": "string", "maxLength": 8 },
            "days": { "type": "integer", "minimum": 1, "maximum": 9 },
        },
    })
}

/// Returns the argument schema of a tool without arguments.
pub fn now_schema() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn tools() -> Value {
    let (parameters, now) = (weather_schema(), now_schema());
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": parameters } },
        { "type": "function", "function": { "name": "now", "parameters": now } },
    ])
}

fn check(call: &Value) {
    assert_eq!(call["type"], "function");
    assert!(!call["id"].as_str().unwrap().is_empty());
    let arguments = call["function"]["arguments"].as_str().unwrap();
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    if call["function"]["name"] == "weather" {
        assert!(arguments["city"].is_string() && arguments["days"].as_u64().unwrap() < 10);
    } else {
        assert_eq!((&call["function"]["name"], arguments), (&json!("now"), json!({})));
    }
}

#[test]
fn a_named_tool_is_called_once() {
    for server in [tool_server(), dense_server()] {
        expect_one_call(&server);
    }
}

fn expect_one_call(server: &Server) {
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let options = json!({ "tools": tools(), "tool_choice": named, "max_tokens": 300 });
    let reply = post(server, CHAT, &chat_with(&options)).ok();
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{reply}");
    assert!(choice["message"]["content"].is_null());
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &calls[0]["function"]["name"]), (1, &json!("weather")));
    check(&calls[0]);
    let mut options = options;
    options["stream"] = true.into();
    let events = post(server, CHAT, &chat_with(&options)).events();
    let deltas =
        events.iter().filter_map(|event| event["choices"][0]["delta"]["tool_calls"].as_array());
    let parts: Vec<Value> = deltas.flatten().cloned().collect();
    assert!(parts.iter().all(|part| part["index"] == 0));
    assert_eq!(parts[0]["id"], calls[0]["id"]);
    assert_eq!(parts[0]["function"], json!({ "name": "weather", "arguments": "" }));
    assert!(parts.len() > 2, "arguments come in pieces: {parts:?}");
    assert!(parts[1..].iter().all(|part| part.get("id").is_none()));
    let texts = parts.iter().filter_map(|part| part["function"]["arguments"].as_str());
    assert_eq!(texts.collect::<String>(), calls[0]["function"]["arguments"]);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn one_call_is_enough_where_calls_are_not_parallel() {
    let server = tool_server();
    let options = json!({
        "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false, "max_tokens": 600,
        "temperature": 1, "seed": 2,
    });
    let reply = post(&server, CHAT, &chat_with(&options)).ok();
    let calls = reply["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert_eq!((calls.len(), &reply["choices"][0]["finish_reason"]), (1, &json!("tool_calls")));
    check(&calls[0]);
}

#[test]
fn calls_and_their_results_are_messages() {
    let server = tool_server();
    let call = json!({
        "id": "call_0", "type": "function", "function": { "name": "now", "arguments": "{}" },
    });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "When?" }] },
        { "role": "assistant", "content": null, "tool_calls": [call], "refusal": null },
        { "role": "tool", "tool_call_id": "call_0", "content": "noon" },
    ]);
    let options = json!({ "messages": messages, "tools": tools(), "tool_choice": "none" });
    let without = post(&server, CHAT, &chat_with(&options)).ok();
    let options = json!({ "messages": messages, "tools": tools() });
    let with = post(&server, CHAT, &chat_with(&options)).ok();
    let tokens = |reply: &Value| reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&with) > tokens(&without), "tools are part of the prompt unless they are none");
}

#[test]
fn a_template_can_be_told_not_to_reason() {
    let server = tool_server();
    let tokens = |fields: Value| {
        post(&server, CHAT, &chat_with(&fields)).ok()["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let plain = tokens(json!({}));
    assert!(tokens(json!({ "reasoning_effort": "none" })) > plain);
    assert!(tokens(json!({ "chat_template_kwargs": { "enable_thinking": false } })) > plain);
    assert_eq!(tokens(json!({ "reasoning_effort": "low" })), plain);
}

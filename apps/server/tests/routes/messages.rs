//! Anthropic's API.

use axum::body::Body;
use axum::http::Request;
use nestling_server::{Access, Server, ServerOptions};
use serde_json::{Value, json};

use crate::models::{self, server, server_with, tool_server};
use crate::tools::{now_schema, weather_schema};
use crate::{Answer, chat_with, join, post, post_text, request};

const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

fn ask(server: &Server, more: &Value) -> Value {
    post(server, MESSAGES, &chat_with(more)).ok()
}

/// Returns the message of an error in this API's format.
#[track_caller]
fn error(answer: &Answer, status: u16, kind: &str) -> String {
    assert_eq!(answer.status.as_u16(), status, "{}", answer.body);
    let body = answer.json();
    assert_eq!((&body["type"], &body["error"]["type"]), (&json!("error"), &json!(kind)), "{body}");
    assert_eq!(body["request_id"], answer.headers["request-id"].to_str().unwrap());
    body["error"]["message"].as_str().unwrap().to_owned()
}

/// Returns the events of a stream after checking that each name equals the type.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let frames = answer.body.split_terminator("\n\n").map(|frame| {
        let (name, data) = frame.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["type"], name.strip_prefix("event: ").unwrap());
        event
    });
    frames.filter(|event| event["type"] != "ping").collect()
}

/// Assembles the message from events, as a client does.
fn rebuilt(events: &[Value]) -> Value {
    let mut message = events[0]["message"].clone();
    assert_eq!(events[0]["type"], "message_start");
    assert_eq!(events.last().unwrap()["type"], "message_stop");
    let (mut open, mut json_text) = (None, String::new());
    for event in &events[1..events.len() - 1] {
        let index = event["index"].as_u64().map(|index| usize::try_from(index).unwrap());
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!((open, index), (None, Some(content.len())));
                content.push(event["content_block"].clone());
                (open, json_text) = (index, String::new());
            }
            "content_block_delta" => {
                assert!(open.is_some() && open == index, "{event}");
                let (block, delta) = (&mut message["content"][index.unwrap()], &event["delta"]);
                let mut add = |name: &str| {
                    let text = delta[name].as_str().unwrap();
                    block[name] = (block[name].as_str().unwrap().to_owned() + text).into();
                };
                match delta["type"].as_str().unwrap() {
                    "text_delta" => add("text"),
                    "thinking_delta" => add("thinking"),
                    "input_json_delta" => json_text += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                assert!(open.take().is_some(), "{event}");
                let block = &mut message["content"][index.unwrap()];
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&json_text).unwrap();
                }
            }
            "message_delta" => {
                assert_eq!(open, None);
                join(&mut message, &event["delta"]);
                message["stop_reason"] = event["delta"]["stop_reason"].clone();
                message["stop_sequence"] = event["delta"]["stop_sequence"].clone();
                message["usage"] = event["usage"].clone();
            }
            other => panic!("{other}"),
        }
    }
    message
}

/// Requests a message with and without streaming and checks that both are equal.
fn ask_both(server: &Server, more: &Value) -> Value {
    let whole = ask(server, more);
    let mut more = more.clone();
    more["stream"] = true.into();
    let events = events(&post(server, MESSAGES, &chat_with(&more)));
    let start = &events[0]["message"];
    assert!(start["stop_reason"].is_null() && start["content"] == json!([]));
    let (total, rebuilt) = (prompt_tokens(&whole), rebuilt(&events));
    assert_eq!(
        (start["usage"]["input_tokens"].as_u64(), total),
        (Some(total), prompt_tokens(&rebuilt))
    );
    for field in ["content", "stop_reason", "stop_sequence", "role", "model", "type"] {
        let without_ids = |message: &Value| {
            let mut field = message[field].clone();
            for block in field.as_array_mut().into_iter().flatten() {
                block.as_object_mut().unwrap().remove("id");
            }
            field
        };
        assert_eq!(without_ids(&rebuilt), without_ids(&whole), "{field}");
    }
    assert_eq!(rebuilt["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
    whole
}

fn prompt_tokens(message: &Value) -> u64 {
    let usage = &message["usage"];
    usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
}

#[test]
fn a_message_has_all_that_the_api_has() {
    let message = ask_both(&server(), &json!({}));
    assert!(message["id"].as_str().unwrap().starts_with("msg_"));
    assert_eq!((&message["type"], &message["role"]), (&json!("message"), &json!("assistant")));
    assert_eq!(message["model"], models::NAME);
    assert_eq!(
        (&message["stop_reason"], &message["stop_sequence"]),
        (&json!("max_tokens"), &json!(null))
    );
    let content = message["content"].as_array().unwrap();
    assert_eq!((content.len(), &content[0]["type"]), (1, &json!("text")));
    assert!(!content[0]["text"].as_str().unwrap().is_empty());
    let usage = &message["usage"];
    assert_eq!(
        (&usage["output_tokens"], &usage["cache_creation_input_tokens"]),
        (&json!(8), &json!(0))
    );
}

#[test]
fn the_answer_is_that_of_a_chat() {
    let server = server();
    let chat = json!({ "messages": [
        { "role": "system", "content": "Be brief.\nBe kind." }, { "role": "user", "content": "Hi\nthere" },
        { "role": "assistant", "content": "Yes?" }, { "role": "user", "content": "A story." },
    ]});
    let chat = post(&server, crate::CHAT, &chat_with(&chat)).ok();
    let text = |text: &str| json!({ "type": "text", "text": text, "cache_control": { "type": "ephemeral" } });
    let message = ask(
        &server,
        &json!({
            "system": [text("Be brief."), text("Be kind.")],
            "messages": [
                { "role": "user", "content": [text("Hi"), text("there")] },
                { "role": "assistant", "content": [{ "type": "text", "text": "Yes?", "citations": null }] },
                { "role": "user", "content": "A story." },
            ],
        }),
    );
    assert_eq!(message["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(prompt_tokens(&message), chat["usage"]["prompt_tokens"].as_u64().unwrap());
}

#[test]
fn a_stop_sequence_is_told() {
    let server = server();
    let plain = ask(&server, &json!({ "max_tokens": 16 }));
    let text = plain["content"][0]["text"].as_str().unwrap();
    let word = text.split_whitespace().nth(2).unwrap();
    let stopped =
        ask_both(&server, &json!({ "max_tokens": 16, "stop_sequences": ["\u{1}", word] }));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(word))
    );
    assert_eq!(stopped["content"][0]["text"], text[..text.find(word).unwrap()]);
}

#[test]
fn a_prompt_can_be_computed_before_it_is_needed() {
    let server = server();
    let content = "One more ship left the harbour at dawn. ".repeat(20);
    let messages = json!([{ "role": "user", "content": content }]);
    let warm = ask_both(&server, &json!({ "messages": messages, "max_tokens": 0 }));
    assert_eq!((&warm["content"], &warm["usage"]["output_tokens"]), (&json!([]), &json!(0)));
    let next = ask(&server, &json!({ "messages": messages }));
    assert!(next["usage"]["cache_read_input_tokens"].as_u64().unwrap() >= 64, "{next}");
    assert_eq!(prompt_tokens(&next), prompt_tokens(&warm));
}

#[test]
fn tokens_are_counted_as_they_are_computed() {
    let server = tool_server();
    for more in [
        json!({}),
        json!({ "tools": tools() }),
        json!({ "system": "x", "thinking": { "type": "disabled" } }),
    ] {
        let message = ask(&server, &more);
        let mut request = chat_with(&more);
        join(&mut request, &json!({ "max_tokens": null, "temperature": null }));
        let count = post(&server, COUNT, &request).ok();
        assert_eq!(count, json!({ "input_tokens": prompt_tokens(&message) }), "{more}");
    }
    // Fields of the whole request are accepted.
    let answer = post(&server, COUNT, &chat_with(&json!({})));
    answer.ok();
    assert_eq!(answer.headers["x-nestling-ignored"], "max_tokens, temperature");
}

fn tools() -> Value {
    let (schema, now) = (weather_schema(), now_schema());
    json!([
        { "name": "weather", "description": "What it will be.", "input_schema": schema },
        { "type": "custom", "name": "now", "input_schema": now, "cache_control": { "type": "ephemeral" } },
    ])
}

#[test]
fn a_tool_that_is_chosen_is_called() {
    let server = tool_server();
    let choice = json!({ "type": "tool", "name": "weather" });
    let message =
        ask_both(&server, &json!({ "tools": tools(), "tool_choice": choice, "max_tokens": 300 }));
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let content = message["content"].as_array().unwrap();
    assert_eq!(
        (content.len(), &content[0]["type"], &content[0]["name"]),
        (1, &json!("tool_use"), &json!("weather"))
    );
    let input = &content[0]["input"];
    assert!(input["city"].is_string() && (1..10).contains(&input["days"].as_u64().unwrap()));
    let alone = json!({ "type": "any", "disable_parallel_tool_use": true });
    let options =
        json!({ "tools": tools(), "tool_choice": alone, "max_tokens": 600, "temperature": 1 });
    let message = ask(&server, &options);
    assert_eq!(message["content"].as_array().unwrap().len(), 1, "{message}");
    // The call is sent back unchanged, with its result.
    let id = &content[0]["id"];
    let result = json!([
        { "type": "tool_result", "tool_use_id": id, "content": [{ "type": "text", "text": "rain" }] },
        { "type": "text", "text": "And then?" },
    ]);
    let messages = json!([
        { "role": "user", "content": "The weather?" },
        { "role": "assistant", "content": content }, { "role": "user", "content": result },
    ]);
    let good = ask(&server, &json!({ "messages": messages, "tools": tools() }));
    let mut bad = messages;
    bad[2]["content"][0]["is_error"] = true.into();
    let bad = ask(&server, &json!({ "messages": bad, "tools": tools() }));
    assert!(prompt_tokens(&bad) > prompt_tokens(&good), "an error is said to be one");
}

#[test]
fn arguments_that_break_off_are_no_call_without_arguments() {
    let choice = json!({ "type": "tool", "name": "weather" });
    let options = json!({ "tools": tools(), "tool_choice": choice, "max_tokens": 48 });
    let message = ask(&tool_server(), &options);
    assert_eq!(message["stop_reason"], "max_tokens", "{message}");
    let input = &message["content"][0]["input"];
    assert!(input["INVALID_JSON"].as_str().is_some_and(|text| text.starts_with('{')), "{message}");
}

#[test]
fn answers_keep_to_the_schema_that_is_asked_for() {
    let schema = json!({
        "type": "object", "required": ["age"], "additionalProperties": false,
        "properties": { "age": { "type": "integer", "minimum": 1, "maximum": 99 } },
    });
    let format = json!({ "type": "json_schema", "schema": schema });
    let message =
        ask_both(&server(), &json!({ "output_config": { "format": format }, "max_tokens": 60 }));
    let person: Value =
        serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
    assert!((1..100).contains(&person["age"].as_u64().unwrap()));
    assert_eq!(message["stop_reason"], "end_turn");
}

#[test]
fn reasoning_is_a_block_of_its_own() {
    let server = tool_server();
    let plain = prompt_tokens(&ask(&server, &json!({})));
    let thinking = |kind: &str| json!({ "thinking": { "type": kind } });
    assert!(prompt_tokens(&ask(&server, &thinking("disabled"))) > plain);
    assert_eq!(prompt_tokens(&ask(&server, &thinking("adaptive"))), plain);
    let block = json!([
        { "type": "thinking", "thinking": "Hm.", "signature": "abc" },
        { "type": "redacted_thinking", "data": "xyz" }, { "type": "text", "text": "Hello." },
    ]);
    let messages = json!([
        { "role": "user", "content": "Hi" }, { "role": "assistant", "content": block },
        { "role": "user", "content": "Go on." },
    ]);
    ask(&server, &json!({ "messages": messages }));
}

/// Invalid messages and blocks, each with the field that the error names.
fn bad_blocks() -> Vec<(Value, &'static str)> {
    let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
    let block = |block: Value| user(json!([block]));
    vec![
        (json!({ "model": null }), "model"),
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": -3 }), "max_tokens"),
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": [{ "role": "tool", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
        (user(json!(1)), "messages[0].content"),
        (block(json!({ "type": "image", "source": {} })), "messages[0].content[0].type"),
        (block(json!({ "type": "document", "source": {} })), "messages[0].content[0].type"),
        (block(json!({ "type": "tool_use", "id": "x" })), "messages[0].content[0].type"),
        (block(json!({ "type": "text" })), "messages[0].content[0].text"),
        (
            block(json!({ "type": "text", "text": "x", "cache_control": "ephemeral" })),
            "messages[0].content[0].cache_control",
        ),
        (block(json!({ "type": "tool_result" })), "messages[0].content[0].tool_use_id"),
    ]
}

/// Invalid other fields, each with the field that the error names.
fn bad_options() -> Vec<(Value, &'static str)> {
    let tool = |tool: Value| json!({ "tools": [tool] });
    let schema = json!({ "type": "object" });
    vec![
        (json!({ "system": 1 }), "system"),
        (json!({ "system": [{ "type": "image" }] }), "system[0].type"),
        (json!({ "temperature": 1.5 }), "temperature"),
        (json!({ "top_p": 2 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "stop_sequences": "x" }), "stop_sequences"),
        (json!({ "stop_sequences": vec!["x"; 257] }), "stop_sequences"),
        (json!({ "metadata": { "user_id": 1 } }), "metadata.user_id"),
        (json!({ "service_tier": 1 }), "service_tier"),
        (json!({ "container": "x" }), "container"),
        (json!({ "stream": 1 }), "stream"),
        (json!({ "n": 2 }), "n"),
        (json!({ "seed": 0.5 }), "seed"),
        (json!({ "mcp_servers": [{ "url": "x" }] }), "mcp_servers"),
        (json!({ "thinking": {} }), "thinking.type"),
        (json!({ "thinking": { "type": "between_tools" } }), "thinking.type"),
        (
            json!({ "thinking": { "type": "enabled", "budget_tokens": -1 } }),
            "thinking.budget_tokens",
        ),
        (json!({ "output_config": { "effort": "huge" } }), "output_config.effort"),
        (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type"),
        (
            json!({ "output_config": { "format": { "type": "json_schema", "schema": { "type": 7 } } } }),
            "output_config.format.schema",
        ),
        (tool(json!({ "type": "web_search_20250305", "name": "web_search" })), "tools[0].type"),
        (tool(json!({ "name": "f" })), "tools[0].input_schema"),
        (tool(json!({ "name": "a b", "input_schema": schema })), "tools[0].name"),
        (
            json!({ "tools": [{ "name": "f", "input_schema": schema }, { "name": "f", "input_schema": schema }] }),
            "tools[1].name",
        ),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "tool_choice": { "type": "perhaps" } }), "tool_choice.type"),
        (json!({ "tool_choice": { "type": "tool", "name": "g" } }), "tool_choice.name"),
    ]
}

#[test]
fn messages_with_wrong_fields_are_refused_by_name() {
    let server = tool_server();
    for (fields, blamed) in bad_blocks().into_iter().chain(bad_options()) {
        let answer = post(&server, MESSAGES, &chat_with(&fields));
        let message = error(&answer, 400, "invalid_request_error");
        let shown = fields.to_string().chars().take(80).collect::<String>();
        let starts = [format!("{blamed}: "), format!("`{blamed}` ")];
        let is_named = starts.iter().any(|start| message.starts_with(start));
        assert!(is_named, "{shown}: {message}");
    }
    // A model that does not reason.
    let adaptive =
        json!({ "thinking": { "type": "adaptive" }, "output_config": { "effort": "high" } });
    let answer = post(&self::server(), MESSAGES, &chat_with(&adaptive));
    answer.ok();
    assert_eq!(answer.headers["x-nestling-ignored"], "thinking, output_config.effort");
    let disabled = json!({ "thinking": { "type": "disabled" } });
    let answer = post(&self::server(), MESSAGES, &chat_with(&disabled));
    answer.ok();
    assert!(!answer.headers.contains_key("x-nestling-ignored"));
}

#[test]
fn every_error_has_the_form_of_the_api() {
    let server = server();
    let invalid = "invalid_request_error";
    error(
        &post(&server, MESSAGES, &chat_with(&json!({ "model": "claude" }))),
        404,
        "not_found_error",
    );
    let long = json!([{ "role": "user", "content": "word ".repeat(2000) }]);
    let long = post(&server, MESSAGES, &chat_with(&json!({ "messages": long })));
    let message = error(&long, 400, invalid);
    assert!(message.starts_with("prompt is too long: "), "{message}");
    assert!(message.ends_with(" tokens > 1024 maximum"), "{message}");
    error(&post_text(&server, MESSAGES, "{"), 400, invalid);
    error(&post_text(&server, MESSAGES, vec![b' '; (8 << 20) + 1]), 413, "request_too_large");
    error(&crate::get(&server, MESSAGES), 405, invalid);
    error(&post(&server, "/v1/messages/batches", &json!({})), 404, "not_found_error");
    let loading = Server::new(ServerOptions::default());
    let answer = post(&loading, MESSAGES, &chat_with(&json!({})));
    error(&answer, 529, "overloaded_error");
    assert!(answer.headers.contains_key("retry-after"));
    let mut access = Access::default();
    access.add_keys("sk-one").unwrap();
    let server = server_with(access);
    let with = |name: &str, value: &str| {
        let asked = Request::post(MESSAGES).header("content-type", "application/json");
        let asked = asked.header("anthropic-version", "2023-06-01").header(name, value);
        let host = if name == "host" { asked } else { asked.header("host", "localhost") };
        request(&server, host.body(Body::from(chat_with(&json!({})).to_string())).unwrap())
    };
    error(&with("x-api-key", "sk-two"), 401, "authentication_error");
    error(&with("host", "evil.example"), 403, "permission_error");
    with("x-api-key", "sk-one").ok();
    with("authorization", "Bearer sk-one").ok();
    // Paths with the same prefix do not belong to this API.
    post(&self::server(), "/v1/messagesx", &json!({})).error(404);
}

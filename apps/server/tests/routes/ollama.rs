//! Ollama's API.

use serde_json::{Value, json};

use crate::models::{NAME, server, server_with, tool_server};
use crate::{Answer, get, join, post, post_text};

const CHAT: &str = "/api/chat";
const GENERATE: &str = "/api/generate";

fn chat(more: &Value) -> Value {
    let mut request = json!({
        "model": NAME,
        "messages": [{ "role": "user", "content": "Tell me a story." }],
        "options": { "temperature": 0, "num_predict": 8 },
        "stream": false,
    });
    join(&mut request, more);
    request
}

fn generate(more: &Value) -> Value {
    let mut request = chat(more);
    join(&mut request, &json!({ "messages": null }));
    if request.get("prompt").is_none() {
        request["prompt"] = "The ship left the".into();
    }
    request
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "application/x-ndjson");
    answer.body.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn refused(answer: &Answer, status: u16) -> String {
    assert_eq!(answer.status, status, "{}", answer.body);
    let body = answer.json();
    assert_eq!(body.as_object().unwrap().len(), 1, "{body}");
    body["error"].as_str().unwrap().to_owned()
}

#[track_caller]
fn check_end(end: &Value) {
    assert_eq!((&end["done"], &end["done_reason"]), (&json!(true), &json!("length")), "{end}");
    assert_eq!(end["eval_count"], 8);
    for name in ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"] {
        assert!(end[name].is_u64(), "{name}: {end}");
    }
    assert!(end["prompt_eval_count"].as_u64().unwrap() > 0);
    let (total, part) = (end["total_duration"].as_u64(), end["eval_duration"].as_u64());
    assert!(total >= part, "{end}");
}

#[test]
fn chats_are_answered_whole_and_in_lines() {
    let server = server();
    let whole = post(&server, CHAT, &chat(&json!({}))).ok();
    check_end(&whole);
    assert_eq!((&whole["model"], &whole["message"]["role"]), (&json!(NAME), &json!("assistant")));
    let text = whole["message"]["content"].as_str().unwrap();
    assert!(!text.is_empty());
    // Streaming is the default.
    let streamed = lines(&post(&server, CHAT, &chat(&json!({ "stream": null }))));
    let (end, parts) = streamed.split_last().unwrap();
    check_end(end);
    assert!(parts.len() > 2 && parts.iter().all(|part| part["done"] == false));
    let parts = streamed.iter().map(|part| part["message"]["content"].as_str().unwrap());
    assert_eq!(parts.collect::<String>(), text);
    assert!(end["created_at"].as_str().unwrap().ends_with('Z'));
    // The OpenAI API returns the same text.
    let other = post(&server, crate::CHAT, &crate::chat_with(&json!({}))).ok();
    assert_eq!(other["choices"][0]["message"]["content"], text);
}

#[test]
fn prompts_are_messages_unless_they_are_raw() {
    let server = server();
    let message = post(&server, GENERATE, &generate(&json!({ "prompt": "Tell me a story." }))).ok();
    let whole = post(&server, CHAT, &chat(&json!({}))).ok();
    assert_eq!(message["response"], whole["message"]["content"]);
    check_end(&message);
    let raw = json!({ "raw": true, "options": { "temperature": 0, "num_predict": 6 } });
    let raw = post(&server, GENERATE, &generate(&raw)).ok();
    let other = post(&server, crate::COMPLETIONS, &crate::completion_with(&json!({}))).ok();
    assert_eq!(raw["response"], other["choices"][0]["text"]);
    let with_system = json!({ "prompt": "Tell me a story.", "system": "Be brief." });
    let with_system = post(&server, GENERATE, &generate(&with_system)).ok();
    assert!(with_system["prompt_eval_count"].as_u64() > message["prompt_eval_count"].as_u64());
    // Clients send these empty values for unused fields.
    let empty = json!({
        "suffix": "", "template": "", "system": "", "context": [], "images": [], "format": "",
        "raw": false, "stream": true,
    });
    assert!(lines(&post(&server, GENERATE, &generate(&empty))).len() > 2);
}

#[test]
fn answers_keep_to_a_form() {
    let server = server();
    let schema = json!({
        "type": "object", "properties": { "age": { "type": "integer", "minimum": 1, "maximum": 99 } },
        "required": ["age"], "additionalProperties": false,
    });
    let options = json!({ "temperature": 0, "num_predict": 60 });
    let asked = json!({ "format": schema, "options": options });
    let reply = post(&server, CHAT, &chat(&asked)).ok();
    let text = reply["message"]["content"].as_str().unwrap();
    let age: Value = serde_json::from_str(text).unwrap();
    assert!((1..=99).contains(&age["age"].as_u64().unwrap()), "{text}");
    let error = refused(&post(&server, CHAT, &chat(&json!({ "format": { "type": 7 } }))), 400);
    assert!(error.contains("format"), "{error}");
    let end =
        post(&server, CHAT, &chat(&json!({ "options": { "temperature": 0, "stop": ["e"] } })));
    let end = end.ok();
    assert_eq!(end["done_reason"], "stop");
    assert!(!end["message"]["content"].as_str().unwrap().contains('e'));
}

fn tools() -> Value {
    json!([{ "type": "function", "function": {
        "name": "weather", "description": "d",
        "parameters": { "type": "object", "properties": { "city": { "type": "string" } } },
    }}])
}

#[test]
fn tools_and_their_results_are_part_of_the_prompt() {
    let server = tool_server();
    let count =
        |more: &Value| post(&server, CHAT, &chat(more)).ok()["prompt_eval_count"].as_u64().unwrap();
    let plain = count(&json!({}));
    assert!(count(&json!({ "tools": tools() })) > plain);
    let call = json!({ "function": { "name": "weather", "arguments": { "city": "Ulm" } } });
    let messages = json!([
        { "role": "user", "content": "How is it?" },
        { "role": "assistant", "content": "", "thinking": "Hm.", "tool_calls": [call] },
        { "role": "tool", "content": "fair", "tool_name": "weather" },
    ]);
    assert!(count(&json!({ "messages": messages, "tools": tools() })) > plain);
    // The template supports disabling reasoning.
    assert!(count(&json!({ "think": false })) > plain);
    assert_eq!(count(&json!({ "think": true })), plain);
}

#[test]
fn what_makes_no_sense_is_refused_by_name() {
    let server = server();
    let option = |name: &str, value: Value| json!({ "options": { name: value } });
    let message = |message: Value| json!({ "messages": [message] });
    let cases = [
        (option("temperature", json!("hot")), "options.temperature"),
        (option("top_p", json!(2)), "options.top_p"),
        (option("num_predict", json!(-3)), "options.num_predict"),
        (option("num_ctx", json!("x")), "options.num_ctx"),
        (option("seed", json!(0.5)), "options.seed"),
        (option("repeat_penalty", json!(0)), "options.repeat_penalty"),
        (option("stop", json!([1])), "options.stop"),
        (option("mirostat", json!(1)), "options.mirostat"),
        (option("num_gpu", json!("x")), "options.num_gpu"),
        (json!({ "options": 1 }), "options"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": "very" }), "think"),
        (json!({ "keep_alive": "soon" }), "keep_alive"),
        (json!({ "stream": 1 }), "stream"),
        (json!({ "tools": [{}] }), "tools[0].type"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "model": null }), "model"),
        (message(json!({ "role": "robot", "content": "x" })), "messages[0].role"),
        (
            message(json!({ "role": "user", "content": "x", "images": ["aa"] })),
            "messages[0].images",
        ),
        (
            message(
                json!({ "role": "assistant", "tool_calls": [{ "function": { "name": "f", "arguments": "{}" } }] }),
            ),
            "messages[0].tool_calls[0].arguments",
        ),
    ];
    for (fields, blamed) in cases {
        let error = refused(&post(&server, CHAT, &chat(&fields)), 400);
        let found = blamed.replace("[0].arguments", "[0].function.arguments");
        assert!(error.contains(&found), "{fields}: {error}");
    }
    for name in ["suffix", "template", "context", "images"] {
        let is_list = ["context", "images"].contains(&name);
        let value = if is_list { json!([1]) } else { json!("x") };
        let error = refused(&post(&server, GENERATE, &generate(&json!({ name: value }))), 400);
        assert!(error.contains(name), "{name}: {error}");
    }
    let error = refused(&post(&server, CHAT, &chat(&json!({ "model": "other" }))), 404);
    assert!(error.contains("other"), "{error}");
    refused(&post_text(&server, CHAT, "{"), 400);
}

#[test]
fn routes_say_what_they_are_in_this_api_s_form() {
    let server = server();
    for name in
        ["pull", "push", "create", "delete", "copy", "embed", "embeddings", "blobs/sha256:1"]
    {
        refused(&post(&server, &format!("/api/{name}"), &json!({})), 501);
    }
    refused(&post(&server, "/api/nothing", &json!({})), 404);
    for (answer, methods) in
        [(get(&server, CHAT), "POST"), (post(&server, "/api/tags", &json!({})), "GET,HEAD")]
    {
        refused(&answer, 405);
        assert_eq!(answer.headers["allow"], methods);
    }
    assert!(get(&server, "/api/version").ok()["version"].is_string());
    let mut access = nestling_server::Access::default();
    access.add_keys("sk-one").unwrap();
    refused(&get(&server_with(access), "/api/tags"), 401);
    refused(&get(&nestling_server::Server::new(Default::default()), "/api/tags"), 503);
}

#[test]
fn the_model_is_shown() {
    let server = server();
    let tags = get(&server, "/api/tags").ok();
    let model = &tags["models"][0];
    assert_eq!((&model["name"], &model["model"]), (&json!(NAME), &json!(NAME)));
    assert!(model["size"].as_u64().unwrap() > 1 << 20);
    assert_eq!(model["digest"].as_str().unwrap().len(), 64);
    let ps = get(&server, "/api/ps").ok();
    assert_eq!(ps["models"][0]["name"], NAME);
    assert_eq!(ps["models"][0]["context_length"], 1024);
    assert_eq!(ps["models"][0]["digest"], model["digest"]);
    let show = post(&server, "/api/show", &json!({ "model": NAME })).ok();
    assert!(show["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(show["capabilities"][0], "completion");
    let family = show["details"]["family"].as_str().unwrap();
    assert!(show["model_info"][format!("{family}.context_length")].as_u64().unwrap() >= 1024);
    refused(&post(&server, "/api/show", &json!({ "model": "other" })), 404);
    let named = json!({ "model": format!("{NAME}:latest"), "verbose": true });
    assert_eq!(post(&server, "/api/show", &named).ok()["template"], show["template"]);
    // A request without a prompt only loads the model.
    let loaded = post(&server, GENERATE, &json!({ "model": NAME, "keep_alive": -1 })).ok();
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
}

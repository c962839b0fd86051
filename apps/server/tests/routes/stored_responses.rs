//! Stored responses of OpenAI's Responses API: continued, listed, deleted, and separated by key.

use axum::body::Body;
use axum::http::Request;
use nestling_server::{Access, Server, ServerOptions};
use serde_json::{Value, json};

use crate::models::{NAME, bundled_model, reasoning_server, server, server_with, tool_server};
use crate::tools::weather_schema;
use crate::{Answer, join, post, request};

const RESPONSES: &str = "/v1/responses";

fn with(more: &Value) -> Value {
    let mut request = json!({
        "model": NAME, "input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0,
    });
    join(&mut request, more);
    request
}

fn ask(server: &Server, more: &Value) -> Value {
    post(server, RESPONSES, &with(more)).ok()
}

/// Sends a request without a body, with a key if there is one.
fn send(server: &Server, method: &str, path: &str, key: Option<&str>) -> Answer {
    let mut asked = Request::builder().method(method).uri(path).header("host", "localhost:8080");
    if let Some(key) = key {
        asked = asked.header("x-api-key", key);
    }
    request(server, asked.body(Body::empty()).unwrap())
}

fn at(response: &Value, more: &str) -> String {
    format!("{RESPONSES}/{}{more}", response["id"].as_str().unwrap())
}

fn text_of(response: &Value) -> &Value {
    &response["output"][0]["content"][0]["text"]
}

#[test]
fn a_continued_response_answers_the_whole_conversation() {
    let server = server();
    let first = ask(&server, &json!({ "instructions": "Be brief." }));
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let second =
        ask(&server, &json!({ "input": "And then?", "previous_response_id": first["id"] }));
    assert_eq!(second["previous_response_id"], first["id"]);
    let third = json!({ "input": [{ "role": "user", "content": "Why?" }], "previous_response_id": second["id"] });
    let third = ask(&server, &third);
    // The same, sent whole. Instructions are those of a request alone.
    let said = |text: &Value| json!({ "role": "assistant", "content": text });
    let user = |text: &str| json!({ "role": "user", "content": text });
    let whole = json!({ "store": false, "input": [
        user("Tell me a story."), said(text_of(&first)), user("And then?"), said(text_of(&second)), user("Why?"),
    ] });
    let whole = ask(&server, &whole);
    assert_eq!(text_of(&third), text_of(&whole));
    assert_eq!(third["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
}

#[test]
fn a_streamed_response_is_stored_as_well() {
    let server = server();
    let answer = post(&server, RESPONSES, &with(&json!({ "stream": true })));
    let last = answer.body.trim_end().rsplit("data: ").next().unwrap();
    let event: Value = serde_json::from_str(last).unwrap();
    let response = &event["response"];
    assert_eq!(send(&server, "GET", &at(response, ""), None).ok(), *response);
    ask(&server, &json!({ "previous_response_id": response["id"] }));
}

#[test]
fn calls_and_their_results_continue_a_response() {
    let server = tool_server();
    let tools = json!([
        { "type": "function", "name": "weather", "parameters": weather_schema(), "strict": true },
    ]);
    let choice = json!({ "type": "function", "name": "weather" });
    let asked = json!({ "tools": tools, "tool_choice": choice, "max_output_tokens": 300 });
    let first = ask(&server, &asked);
    let call = &first["output"][0];
    let result =
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "rain" });
    let short = json!({ "tools": tools, "input": [result], "previous_response_id": first["id"], "store": false });
    let long = json!({ "tools": tools, "store": false, "input": [
        { "role": "user", "content": "Tell me a story." }, call, result,
    ] });
    let reference = json!({ "tools": tools, "store": false, "input": [
        { "role": "user", "content": "Tell me a story." },
        { "type": "item_reference", "id": call["id"] }, result,
    ] });
    let (short, long) = (ask(&server, &short), ask(&server, &long));
    assert_eq!(text_of(&short), text_of(&long));
    assert_eq!(short["usage"]["input_tokens"], long["usage"]["input_tokens"]);
    assert_eq!(ask(&server, &reference)["usage"]["input_tokens"], long["usage"]["input_tokens"]);
}

#[test]
fn a_stored_response_is_shown_and_deleted() {
    let server = server();
    let first = ask(&server, &json!({}));
    let second = ask(&server, &json!({ "previous_response_id": first["id"] }));
    let shown = send(&server, "GET", &at(&first, "?include[]=message.output_text.logprobs"), None);
    assert_eq!(shown.ok(), first);
    send(&server, "GET", &at(&first, "?stream=true"), None).error(400);
    let deleted = send(&server, "DELETE", &at(&first, ""), None).ok();
    assert_eq!(deleted, json!({ "id": first["id"], "object": "response", "deleted": true }));
    for method in ["GET", "DELETE"] {
        let error = send(&server, method, &at(&first, ""), None).error(404);
        assert_eq!(error["code"], "response_not_found");
    }
    // What was deleted is not computed with any more.
    let again = post(&server, RESPONSES, &with(&json!({ "previous_response_id": second["id"] })));
    let error = again.error(400);
    assert_eq!(error["code"], "previous_response_not_found");
    assert!(error["message"].as_str().unwrap().contains(first["id"].as_str().unwrap()));
    send(&server, "GET", &at(&second, "/input_items"), None).error(404);
    assert_eq!(send(&server, "POST", &at(&second, ""), None).status, 405);
}

#[test]
fn input_items_are_listed_page_by_page() {
    let server = server();
    let first = ask(&server, &json!({}));
    let input = json!([
        { "role": "user", "content": "And then?" },
        { "type": "message", "id": "msg_own", "role": "user", "content": [{ "type": "input_text", "text": "Why?" }] },
    ]);
    let second = ask(&server, &json!({ "input": input, "previous_response_id": first["id"] }));
    let list = |query: &str| {
        send(&server, "GET", &at(&second, &format!("/input_items{query}")), None).ok()
    };
    let all = list("?order=asc");
    let texts: Vec<&Value> =
        all["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    let said = text_of(&first);
    assert_eq!(texts, [&json!("Tell me a story."), said, &json!("And then?"), &json!("Why?")]);
    assert_eq!((&all["object"], &all["has_more"]), (&json!("list"), &json!(false)));
    assert_eq!((&all["first_id"], &all["last_id"]), (&all["data"][0]["id"], &json!("msg_own")));
    let newest = list("?limit=1");
    assert_eq!((&newest["data"][0]["id"], &newest["has_more"]), (&json!("msg_own"), &json!(true)));
    let rest = list("?after=msg_own&limit=100");
    let mut reversed = all["data"].as_array().unwrap().clone();
    reversed.pop();
    reversed.reverse();
    assert_eq!((&rest["data"], &rest["has_more"]), (&Value::from(reversed), &json!(false)));
    for query in ["?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=nothing", "?after=%"] {
        send(&server, "GET", &at(&second, &format!("/input_items{query}")), None).error(400);
    }
}

#[test]
fn holders_of_other_keys_see_nothing() {
    let mut access = Access::default();
    access.add_keys("sk-one\nsk-two\n").unwrap();
    access.share_prefixes(true);
    let server = server_with(access);
    let ask = |key: &str, more: &Value| {
        let asked = Request::post(RESPONSES).header("host", "localhost").header("x-api-key", key);
        let asked = asked.header("content-type", "application/json");
        request(&server, asked.body(Body::from(with(more).to_string())).unwrap())
    };
    let first = ask("sk-one", &json!({})).ok();
    let continued = json!({ "previous_response_id": first["id"] });
    ask("sk-one", &continued).ok();
    assert_eq!(ask("sk-two", &continued).error(400)["param"], "previous_response_id");
    let item = &first["output"][0]["id"];
    let reference = json!({ "input": [{ "type": "item_reference", "id": item }] });
    assert_eq!(ask("sk-two", &reference).error(400)["param"], "input[0].id");
    for (method, more) in [("GET", ""), ("DELETE", ""), ("GET", "/input_items")] {
        send(&server, method, &at(&first, more), Some("sk-two")).error(404);
        send(&server, method, &at(&first, more), None).error(401);
    }
    send(&server, "GET", &at(&first, ""), Some("sk-one")).ok();
}

fn server_storing(bytes_max: usize) -> Server {
    let options =
        ServerOptions { stored_responses_bytes_max: bytes_max, ..ServerOptions::default() };
    let server = Server::new(options);
    server.set_model(bundled_model().clone(), NAME);
    server
}

#[test]
fn the_store_is_bounded() {
    let server = server_storing(16 << 10);
    let first = ask(&server, &json!({}));
    let long = "word ".repeat(100);
    for _ in 0..40 {
        ask(&server, &json!({ "input": long, "max_output_tokens": 1 }));
    }
    send(&server, "GET", &at(&first, ""), None).error(404);
    let metrics = send(&server, "GET", "/metrics", None).body;
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().parse::<usize>().unwrap()
    };
    assert!((1..40).contains(&value("nestling_stored_responses ")));
    assert!((1..=16 << 10).contains(&value("nestling_stored_response_bytes ")));
}

#[test]
fn a_server_may_store_nothing() {
    let server = server_storing(0);
    let answer = post(&server, RESPONSES, &with(&json!({ "store": true })));
    assert_eq!(answer.headers["x-nestling-ignored"], "store");
    let response = answer.ok();
    assert_eq!(response["store"], false);
    send(&server, "GET", &at(&response, ""), None).error(404);
    for (more, blamed) in [
        (json!({ "previous_response_id": response["id"] }), "previous_response_id"),
        (json!({ "input": [{ "type": "item_reference", "id": "msg_1" }] }), "input[0].id"),
    ] {
        let error = post(&server, RESPONSES, &with(&more)).error(400);
        assert_eq!(error["param"], blamed);
        assert!(error["message"].as_str().unwrap().contains("--stored-responses"));
    }
    assert!(
        !post(&server, RESPONSES, &with(&json!({}))).headers.contains_key("x-nestling-ignored")
    );
}

#[test]
fn opaque_reasoning_is_understood_again() {
    let server = reasoning_server();
    let included = json!({ "include": ["reasoning.encrypted_content"], "store": false });
    let answer = post(&server, RESPONSES, &with(&included));
    assert!(!answer.headers.contains_key("x-nestling-ignored"));
    let item = answer.ok()["output"][0].take();
    assert_eq!(item["type"], "reasoning", "{item}");
    let tokens = |more: Value| {
        let mut item = json!({ "type": "reasoning", "summary": [] });
        join(&mut item, &more);
        let input = json!([{ "role": "user", "content": "Hi" }, item, { "role": "user", "content": "Why?" }]);
        ask(&server, &json!({ "input": input, "store": false }))["usage"]["input_tokens"].clone()
    };
    let whole = tokens(json!({ "content": item["content"] }));
    assert_ne!(whole, tokens(json!({})), "the template shows reasoning");
    // Clients send back one of both, or both.
    let sealed = &item["encrypted_content"];
    assert_eq!(tokens(json!({ "encrypted_content": sealed })), whole);
    assert_eq!(tokens(json!({ "encrypted_content": sealed, "content": item["content"] })), whole);
    let foreign = json!({ "input": [
        { "type": "reasoning", "summary": [], "encrypted_content": "gAAAA" }, { "role": "user", "content": "Hi" },
    ]});
    let answer = post(&server, RESPONSES, &with(&foreign));
    assert_eq!(answer.headers["x-nestling-ignored"], "input.encrypted_content");
}

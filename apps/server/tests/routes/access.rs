//! Access control: keys, hosts and origins.

use axum::body::Body;
use axum::http::Request;
use nestling_server::Access;
use serde_json::json;

use crate::models::{NAME, server, server_with};
use crate::{Answer, CHAT, chat_with, request};

fn ask(server: &nestling_server::Server, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut asked = Request::get(path);
    for (name, value) in headers {
        asked = asked.header(*name, *value);
    }
    request(server, asked.body(Body::empty()).unwrap())
}

#[test]
fn a_key_is_needed_for_all_but_health() {
    let mut access = Access::default();
    access.add_keys("sk-one\nsk-two\n").unwrap();
    let server = server_with(access);
    let host = ("host", "localhost");
    for path in ["/v1/models", "/metrics", "/status", "/nothing", "/v1/chat/completions"] {
        let answer = ask(&server, path, &[host]);
        let error = answer.error(401);
        assert_eq!(error["type"], "authentication_error");
        assert_eq!(answer.headers["www-authenticate"], "Bearer");
        ask(&server, path, &[host, ("authorization", "Bearer sk-three")]).error(401);
    }
    ask(&server, "/health", &[host]).ok();
    ask(&server, "/v1/health", &[host]).ok();
    ask(&server, "/v1/models", &[host, ("authorization", "Bearer sk-one")]).ok();
    ask(&server, "/v1/models", &[host, ("x-api-key", "sk-two")]).ok();
}

#[test]
fn foreign_names_and_pages_are_turned_away() {
    let server = server();
    ask(&server, "/health", &[("host", "evil.example")]).error(403);
    ask(&server, "/v1/models", &[("host", "evil.example:8080")]).error(403);
    let page = ("origin", "https://evil.example");
    let answer = ask(&server, "/v1/models", &[("host", "localhost:8080"), page]);
    answer.error(403);
    assert!(!answer.headers.contains_key("access-control-allow-origin"));
    let own = ("origin", "http://localhost:8080");
    ask(&server, "/v1/models", &[("host", "localhost:8080"), own]).ok();
}

#[test]
fn a_listed_page_may_ask_and_read() {
    let mut access = Access::default();
    access.add_keys("sk-one").unwrap();
    access.allow_origin("https://ui.example").unwrap();
    let server = server_with(access);
    let asked = Request::options(CHAT)
        .header("host", "localhost")
        .header("origin", "https://ui.example")
        .header("access-control-request-method", "POST")
        .header("access-control-request-headers", "authorization,content-type");
    let answer = request(&server, asked.body(Body::empty()).unwrap());
    assert_eq!(answer.status, 204);
    assert_eq!(answer.headers["access-control-allow-origin"], "https://ui.example");
    assert_eq!(answer.headers["access-control-allow-headers"], "authorization,content-type");
    let asked = Request::post(CHAT)
        .header("host", "localhost")
        .header("origin", "https://ui.example")
        .header("authorization", "Bearer sk-one")
        .header("content-type", "application/json; charset=utf-8");
    let body = chat_with(&json!({ "max_tokens": 1 })).to_string();
    let answer = request(&server, asked.body(Body::from(body)).unwrap());
    answer.ok();
    assert_eq!(answer.headers["access-control-allow-origin"], "https://ui.example");
    assert!(!answer.headers.contains_key("access-control-allow-credentials"));
}

/// Returns the number of cached prompt tokens, as reported by each API.
fn cached(server: &nestling_server::Server, key: Option<&str>, path: &str, text: &str) -> u64 {
    let body = match path {
        "/v1/responses" => json!({
            "model": NAME, "store": false, "input": text, "max_output_tokens": 2,
        }),
        _ => json!({
            "model": NAME, "max_tokens": 2, "messages": [{ "role": "user", "content": text }],
        }),
    };
    let mut asked = Request::post(path).header("host", "localhost");
    if let Some(key) = key {
        asked = asked.header("authorization", format!("Bearer {key}"));
    }
    let asked = asked.header("content-type", "application/json").body(body.to_string().into());
    let usage = request(server, asked.unwrap()).ok()["usage"].take();
    let tokens = match path {
        CHAT => &usage["prompt_tokens_details"]["cached_tokens"],
        "/v1/responses" => &usage["input_tokens_details"]["cached_tokens"],
        _ => &usage["cache_read_input_tokens"],
    };
    tokens.as_u64().unwrap()
}

const PATHS: [&str; 3] = [CHAT, "/v1/responses", "/v1/messages"];

#[test]
fn what_one_key_computed_is_not_there_for_another() {
    let mut access = Access::default();
    access.add_keys("sk-a1\nsk-a2\nsk-b1\nsk-b2\nsk-c1\nsk-c2").unwrap();
    let server = server_with(access);
    let keys = [("sk-a1", "sk-a2"), ("sk-b1", "sk-b2"), ("sk-c1", "sk-c2")];
    for (path, (one, other)) in PATHS.into_iter().zip(keys) {
        let text = "A ship sailed to the harbour. ".repeat(8);
        let ask = |key| cached(&server, Some(key), path, &text);
        assert_eq!(ask(one), 0, "{path}");
        let own = ask(one);
        assert!(own > 40, "{path}: {own}");
        assert_eq!(ask(other), 0, "{path}");
        // The two keys share no prefixes with each other.
        assert_eq!((ask(other), ask(one)), (own, own), "{path}");
    }
}

#[test]
fn keys_share_what_they_compute_where_the_server_says_so() {
    let mut access = Access::default();
    access.add_keys("sk-salt-one\nsk-salt-two\n").unwrap();
    access.share_prefixes(true);
    let (sharing, open) = (server_with(access), server());
    let text = |what: &str| format!("{what}: {}", "A gull flew over the mountains. ".repeat(8));
    let shared = text("With keys that share");
    let few = cached(&sharing, Some("sk-salt-one"), CHAT, &shared);
    assert!(few < 40, "{few}");
    assert!(cached(&sharing, Some("sk-salt-two"), CHAT, &shared) > 40);
    let open_text = text("Without keys");
    let few = cached(&open, None, CHAT, &open_text);
    assert!(few < 40, "{few}");
    assert!(cached(&open, None, CHAT, &open_text) > 40);
}

//! Who may ask.

use axum::body::Body;
use axum::http::Request;
use nestling_server::Access;
use serde_json::json;

use crate::models::{server, server_with};
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

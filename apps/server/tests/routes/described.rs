//! Information routes.

use std::time::{Duration, Instant};

use nestling_server::{Server, ServerOptions};
use serde_json::json;

use crate::models::{self, server};
use crate::{CHAT, block_on, chat_with, get, post, post_later};

#[test]
fn a_server_says_whether_its_model_is_there() {
    let loading = Server::new(ServerOptions::default());
    for path in ["/health", "/v1/health"] {
        let answer = get(&loading, path);
        let error = answer.error(503);
        assert_eq!(error["message"], "Loading model");
        assert_eq!((&error["type"], &error["code"]), (&json!("unavailable_error"), &json!(503)));
        assert!(answer.headers.contains_key("retry-after"));
        assert_eq!(get(&server(), path).ok(), json!({ "status": "ok" }));
    }
    for path in ["/v1/models", "/metrics", "/status", "/plan", "/tokenizer_info"] {
        get(&loading, path).error(503);
        assert_eq!(get(&server(), path).status, 200);
    }
    post(&loading, CHAT, &chat_with(&json!({}))).error(503);
}

#[test]
fn the_status_of_a_dense_model_counts_no_experts() {
    let server = models::dense_server();
    post(&server, CHAT, &chat_with(&json!({}))).ok();
    let status = get(&server, "/status").ok();
    assert!(status["steps"].as_u64().unwrap() > 0, "{status}");
    assert!(status["expert_bytes"].is_null(), "{status}");
    let counts = status["experts"].as_object().unwrap().values();
    assert!(counts.into_iter().all(|count| *count == 0), "{status}");
    let plan = get(&server, "/plan").ok();
    assert_eq!(plan["expert_bytes_total"], 0, "{plan}");
}

#[test]
fn the_model_is_listed() {
    let server = server();
    let list = get(&server, "/v1/models").ok();
    assert_eq!(list["object"], "list");
    let model = &list["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!(models::NAME), &json!("model")));
    assert!(model["created"].is_u64() && model["owned_by"].is_string());
    assert_eq!(get(&server, "/v1/models/storyteller").ok(), *model);
    assert_eq!(get(&server, "/v1/models/story%74eller").ok(), *model);
    for path in ["/v1/models/other", "/v1/models/..", "/v1/models/%2e%2e/%zz", "/v1/models/a/b"] {
        get(&server, path).error(404);
    }
}

#[test]
fn texts_become_tokens_and_texts_again() {
    let server = server();
    let text = "The ship left the harbour, été 🚢.";
    let reply = post(&server, "/tokenize", &json!({ "prompt": text })).ok();
    assert_eq!(reply["count"], reply["tokens"].as_array().unwrap().len());
    assert_eq!(reply["max_model_len"], 1024);
    let back = post(&server, "/detokenize", &json!({ "tokens": reply["tokens"] })).ok();
    assert_eq!(back["prompt"], text);
    post(&server, "/tokenize", &json!({ "prompt": 1 })).error(400);
    post(&server, "/tokenize", &json!({ "text": "x" })).error(400);
    let error = post(&server, "/detokenize", &json!({ "tokens": [1, 4096] })).error(400);
    assert_eq!(error["param"], "tokens[1]");
    let info = get(&server, "/tokenizer_info").ok();
    assert_eq!(info["eos_token"], "<|im_end|>");
    assert!(info["chat_template"].as_str().unwrap().contains("<|im_start|>"));
}

#[test]
fn what_was_done_is_counted() {
    let server = server();
    let value = |name: &str| {
        let text = get(&server, "/metrics").body;
        let line = text.lines().find(|line| line.starts_with(&format!("nestling_{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(value("generation_tokens_total"), "0");
    let reply = post(&server, CHAT, &chat_with(&json!({ "n": 2 }))).ok();
    assert_eq!(value("generation_tokens_total"), "16");
    assert_eq!(value("prompt_tokens_total"), reply["usage"]["prompt_tokens"].to_string());
    assert_eq!(value("completions_total{reason=\"length\"}"), "2");
    assert_eq!(value("time_to_first_token_seconds_count"), "2");
    assert_eq!(value("inter_token_latency_seconds_count"), "14");
    assert_eq!(value("inter_token_latency_seconds_bucket{le=\"+Inf\"}"), "14");
    let status = get(&server, "/status").ok();
    assert!(status["pages"]["total"].as_u64().unwrap() > 0);
    assert_eq!(get(&server, "/plan").ok()["residence"], "resident");
}

#[test]
fn a_client_that_leaves_is_counted() {
    let server = server();
    let cancelled = || {
        let text = get(&server, "/metrics").body;
        text.contains("nestling_completions_total{reason=\"cancelled\"} 1")
    };
    assert!(!cancelled());
    let request =
        chat_with(&json!({ "stream": true, "max_tokens": 900, "logit_bias": { "2": -100 } }));
    block_on(async {
        let mut beginning = post_later(&server, CHAT, &request).await;
        beginning.next_piece().await.unwrap();
    });
    let end = Instant::now() + Duration::from_secs(120);
    while !cancelled() {
        assert!(Instant::now() < end, "{}", get(&server, "/metrics").body);
        std::thread::sleep(Duration::from_millis(10));
    }
}

//! The web page and its headers. Its rendering is tested in a browser (`tests/clients/page_client.py`).

use nestling_server::{Access, Server, ServerOptions};
use serde_json::json;

use crate::models::{server, server_with};
use crate::{CHAT, COMPLETIONS, chat_with, completion_with, get, post};

#[test]
fn the_page_needs_no_key_and_runs_its_own_script_alone() {
    let mut access = Access::default();
    access.add_keys("sk-1").unwrap();
    let page = get(&server_with(access), "/");
    assert_eq!(
        (page.status.as_u16(), &page.headers["content-type"] == "text/html; charset=utf-8"),
        (200, true)
    );
    let policy = page.headers["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && policy.contains("frame-ancestors 'none'"));
    assert!(policy.contains("script-src 'sha256-") && !policy.contains("unsafe"), "{policy}");
    assert!(
        policy.contains("require-trusted-types-for 'script'; trusted-types 'none'"),
        "{policy}"
    );
    assert_eq!(page.headers["x-dns-prefetch-control"], "off");
    // The page is served before a model is set.
    assert_eq!(get(&Server::new(ServerOptions::default()), "/").status, 200);
}

#[test]
fn the_memory_budget_is_set_within_what_it_was_at_first() {
    let server = server();
    let most = 1 << 30;
    let set =
        |bytes: serde_json::Value| post(&server, "/memory", &json!({ "budget_bytes": bytes }));
    let memory = set(most.into()).ok();
    assert_eq!(
        (&memory["budget_bytes"], &memory["budget_max_bytes"]),
        (&json!(most), &json!(most))
    );
    assert!(memory["used_bytes"].as_u64().is_some_and(|used| used > 0 && used < most));
    for wrong in [json!(most + 1), json!(1), json!(-1), json!(0.5), json!("1GB"), json!(null)] {
        let error = set(wrong.clone()).error(400);
        assert_eq!(error["param"], "budget_bytes", "{wrong}");
    }
    assert_eq!(get(&server, "/status").ok()["memory"]["budget_bytes"], most);
    assert_eq!(get(&server, "/memory").status, 405);
}

#[test]
fn the_status_counts_what_steps_did_with_experts() {
    let server = server();
    let before = get(&server, "/status").ok();
    post(&server, COMPLETIONS, &completion_with(&json!({}))).ok();
    let after = get(&server, "/status").ok();
    let number = |status: &serde_json::Value, name: &str| status["experts"][name].as_u64().unwrap();
    let rows = after["rows"].as_u64().unwrap() - before["rows"].as_u64().unwrap();
    let uses = number(&after, "uses") - number(&before, "uses");
    let bits = number(&after, "served_bits") - number(&before, "served_bits");
    let level = after["level_max_bits"].as_u64().unwrap();
    assert!(rows > 0 && uses > 0, "{rows} {uses}");
    assert_eq!(bits, level * uses);
}

#[test]
fn an_answer_goes_on_past_its_end_where_that_is_asked_for() {
    let server = server();
    let length = |more: serde_json::Value| {
        let answer = post(&server, CHAT, &chat_with(&more)).ok();
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    };
    // The end token gets all the probability, and the page must not display it as a token.
    let tokenized = post(&server, "/tokenize", &json!({ "prompt": "<|im_end|>" })).ok();
    let id = tokenized["tokens"].as_array().unwrap().last().unwrap().to_string();
    let bias = json!({ "max_tokens": 5, "logit_bias": { id: 100 } });
    assert_eq!(length(bias.clone()), 1);
    let mut on = bias;
    on["ignore_eos"] = true.into();
    assert_eq!(length(on), 5);
}

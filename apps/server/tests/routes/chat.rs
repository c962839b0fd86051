//! Successful chats.

use nestling_server::Server;
use serde_json::{Value, json};

use crate::models::{dense_server, server};
use crate::{CHAT, chat_with, post};

fn streamed(events: &[Value], index: u64) -> String {
    let deltas = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let own = deltas.filter(|choice| choice["index"] == index);
    own.filter_map(|choice| choice["delta"]["content"].as_str()).collect()
}

#[test]
fn an_answer_has_all_that_the_api_has() {
    let reply = post(&server(), CHAT, &chat_with(&json!({}))).ok();
    assert_eq!(reply["object"], "chat.completion");
    assert!(reply["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(reply["created"].as_u64().unwrap() > 1_700_000_000);
    assert_eq!(reply["model"], "storyteller");
    assert!(reply["system_fingerprint"].as_str().unwrap().starts_with("fp_"));
    let choice = &reply["choices"][0];
    assert_eq!((&choice["index"], &choice["finish_reason"]), (&json!(0), &json!("length")));
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert!(choice["logprobs"].is_null());
    let usage = &reply["usage"];
    assert_eq!(usage["completion_tokens"], 8);
    let (prompt, total) = (usage["prompt_tokens"].as_u64(), usage["total_tokens"].as_u64());
    assert_eq!(total.unwrap(), prompt.unwrap() + 8);
    assert_eq!(reply["timings"]["predicted_n"], 8);
}

#[test]
fn a_stream_says_what_the_whole_answer_says() {
    let server = server();
    let whole = post(&server, CHAT, &chat_with(&json!({ "max_tokens": 24 }))).ok();
    let options = json!({
        "max_completion_tokens": 24, "max_tokens": null, "stream": true,
        "stream_options": { "include_usage": true },
    });
    let events = post(&server, CHAT, &chat_with(&options)).events();
    assert_eq!(streamed(&events, 0), whole["choices"][0]["message"]["content"]);
    let roles: Vec<usize> = (0..events.len())
        .filter(|index| events[*index]["choices"][0]["delta"].get("role").is_some())
        .collect();
    assert_eq!(roles, [0], "the role stands in the first delta alone");
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]));
    assert!(events.iter().all(|event| event["object"] == "chat.completion.chunk"));
    let (last, before) = events.split_last().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 24);
    assert!(before.iter().all(|event| event.get("usage") == Some(&Value::Null)));
    assert_eq!(before.last().unwrap()["choices"][0]["finish_reason"], "length");
    let ends = before.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null());
    assert_eq!(ends.count(), 1);
}

#[test]
fn several_answers_share_their_prompt() {
    let server = server();
    let options = json!({ "n": 3, "temperature": 1, "seed": 5, "max_tokens": 12 });
    let reply = post(&server, CHAT, &chat_with(&options)).ok();
    let text = |index: usize| reply["choices"][index]["message"]["content"].as_str().unwrap();
    assert_eq!(reply["choices"].as_array().unwrap().len(), 3);
    assert!(text(0) != text(1) && text(1) != text(2), "{reply}");
    assert_eq!(reply["usage"]["completion_tokens"], 36);
    // The choice with this seed equals a single choice with the same seed.
    let alone = json!({ "temperature": 1, "seed": 6, "max_tokens": 12, "cache_prompt": false });
    let alone = post(&server, CHAT, &chat_with(&alone)).ok();
    assert_eq!(alone["choices"][0]["message"]["content"], text(1));
    assert_eq!(alone["usage"]["prompt_tokens"], reply["usage"]["prompt_tokens"]);
    let mut options = options;
    options["stream"] = true.into();
    let events = post(&server, CHAT, &chat_with(&options)).events();
    for index in 0..3 {
        assert_eq!(streamed(&events, index as u64), text(index));
    }
}

#[test]
fn a_conversation_that_goes_on_is_not_computed_again() {
    let server = server();
    let first = post(&server, CHAT, &chat_with(&json!({}))).ok();
    assert_eq!(first["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let messages = json!([
        { "role": "user", "content": "Tell me a story." },
        { "role": "assistant", "content": first["choices"][0]["message"]["content"] },
        { "role": "user", "content": "Go on." },
    ]);
    let ask = |more: Value| {
        let mut fields = json!({ "messages": messages });
        crate::join(&mut fields, &more);
        post(&server, CHAT, &chat_with(&fields)).ok()
    };
    let uncached = ask(json!({ "cache_prompt": false }));
    assert_eq!(uncached["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let cached = ask(json!({}));
    let held = cached["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(held >= prompt, "{held} of {prompt}");
    assert_eq!(cached["choices"][0]["message"], uncached["choices"][0]["message"]);
}

#[test]
fn a_prompt_is_computed_anew_where_that_is_asked_for() {
    for server in [server(), dense_server()] {
        expect_cached_tokens(&server);
    }
}

fn expect_cached_tokens(server: &Server) {
    let ask = |more: Value| {
        let content = "One more ship left the harbour. ".repeat(20);
        let mut fields = json!({ "messages": [{ "role": "user", "content": content }] });
        crate::join(&mut fields, &more);
        let reply = post(server, CHAT, &chat_with(&fields)).ok();
        reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    ask(json!({}));
    assert!(ask(json!({})) >= 64);
    assert_eq!(ask(json!({ "cache_prompt": false })), 0);
    assert_eq!(ask(json!({ "cache_prompt": false, "n": 2 })), 0);
}

#[test]
fn log_probabilities_stand_beside_the_tokens_of_the_text() {
    let server = server();
    let options = json!({ "logprobs": true, "top_logprobs": 2 });
    let reply = post(&server, CHAT, &chat_with(&options)).ok();
    let listed = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    let text: String = listed.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, reply["choices"][0]["message"]["content"]);
    for token in listed {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 2);
        // The most likely token was chosen.
        assert_eq!(top[0]["token"], token["token"]);
        assert_eq!(top[0]["logprob"], token["logprob"]);
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        let bytes: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        assert_eq!(bytes, token["token"].as_str().unwrap().as_bytes());
    }
    let mut options = options;
    options["stream"] = true.into();
    let events = post(&server, CHAT, &chat_with(&options)).events();
    let parts =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array());
    let streamed: Vec<Value> = parts.flatten().cloned().collect();
    assert_eq!(&streamed, listed);
}

#[test]
fn answers_keep_to_the_form_that_is_asked_for() {
    let schema = json!({
        "type": "object", "required": ["name", "age"], "additionalProperties": false,
        "properties": {
            "name": { "type": "string", "maxLength": 12 },
            "age": { "type": "integer", "minimum": 1, "maximum": 99 },
        },
    });
    let named = json!({ "name": "person", "strict": true, "schema": schema });
    let form = json!({ "type": "json_schema", "json_schema": named });
    let options = json!({ "response_format": form, "max_tokens": 100 });
    for server in [server(), dense_server()] {
        let reply = post(&server, CHAT, &chat_with(&options)).ok();
        let text = reply["choices"][0]["message"]["content"].as_str().unwrap();
        let person: Value = serde_json::from_str(text).unwrap();
        assert!(person["name"].is_string() && (1..100).contains(&person["age"].as_u64().unwrap()));
        assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    }
}

#[test]
fn stop_texts_and_biases_do_what_they_say() {
    let server = server();
    let plain = post(&server, CHAT, &chat_with(&json!({}))).ok();
    let text = plain["choices"][0]["message"]["content"].as_str().unwrap();
    let word = text.split_whitespace().nth(2).unwrap();
    let stopped = post(&server, CHAT, &chat_with(&json!({ "stop": [word] }))).ok();
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let cut = stopped["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(cut, &text[..text.find(word).unwrap()]);
    let logprobs = post(&server, CHAT, &chat_with(&json!({ "logprobs": true }))).ok();
    let first =
        logprobs["choices"][0]["logprobs"]["content"][0]["token"].as_str().unwrap().to_owned();
    let tokens =
        post(&server, "/tokenize", &json!({ "prompt": first, "add_special_tokens": false })).ok();
    let banned = json!({ "logit_bias": { tokens["tokens"][0].to_string(): -100 } });
    let other = post(&server, CHAT, &chat_with(&banned)).ok();
    assert!(!other["choices"][0]["message"]["content"].as_str().unwrap().starts_with(&first));
}

//! Successful completions.

use serde_json::{Value, json};

use crate::models::server;
use crate::{COMPLETIONS, completion_with, post};

#[test]
fn prompts_come_in_four_forms() {
    let server = server();
    let tokens = post(&server, "/tokenize", &json!({ "prompt": "The ship left the" })).ok();
    let tokens = &tokens["tokens"];
    let texts = |prompt: Value| {
        let reply = post(&server, COMPLETIONS, &completion_with(&json!({ "prompt": prompt }))).ok();
        assert_eq!(reply["object"], "text_completion");
        let choices = reply["choices"].as_array().unwrap().clone();
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let alone = texts(json!("The ship left the"));
    let other = texts(json!("Once upon a time"));
    assert_ne!(alone, other);
    let both = [alone.clone(), other].concat();
    assert_eq!(texts(json!(["The ship left the", "Once upon a time"])), both);
    assert_eq!(texts(tokens.clone()), alone);
    assert_eq!(texts(json!([tokens, tokens])), [alone.clone(), alone].concat());
}

#[test]
fn several_answers_to_several_prompts_are_numbered_by_prompt() {
    let server = server();
    let options = json!({
        "prompt": ["The ship left the", "Once upon a time"], "n": 2, "temperature": 1, "seed": 3,
        "echo": true,
    });
    let reply = post(&server, COMPLETIONS, &completion_with(&options)).ok();
    let choices = reply["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 4);
    for (index, choice) in choices.iter().enumerate() {
        assert_eq!(choice["index"], index);
        let prompt = ["The ship left the", "Once upon a time"][index / 2];
        assert!(choice["text"].as_str().unwrap().starts_with(prompt));
    }
    assert_eq!(reply["usage"]["completion_tokens"], 4 * 6);
    let mut options = options;
    options["stream"] = true.into();
    let events = post(&server, COMPLETIONS, &completion_with(&options)).events();
    for (index, choice) in choices.iter().enumerate() {
        let own = events.iter().filter(|event| event["choices"][0]["index"] == index);
        let text: String = own.map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(text, choice["text"]);
    }
}

#[test]
fn log_probabilities_are_lists_of_one_length() {
    let server = server();
    let options = json!({ "logprobs": 2, "max_tokens": 5 });
    let reply = post(&server, COMPLETIONS, &completion_with(&options)).ok();
    let lists = &reply["choices"][0]["logprobs"];
    let list = |name: &str| lists[name].as_array().unwrap().clone();
    let tokens = list("tokens");
    assert_eq!(tokens.len(), 5);
    let text: String = tokens.iter().map(|token| token.as_str().unwrap()).collect();
    assert_eq!(text, reply["choices"][0]["text"]);
    let mut offset = 0;
    for index in 0..5 {
        assert_eq!(list("text_offset")[index], offset);
        offset += tokens[index].as_str().unwrap().chars().count();
        let top = list("top_logprobs")[index].as_object().unwrap().clone();
        let chosen = list("token_logprobs")[index].clone();
        assert_eq!(top[tokens[index].as_str().unwrap()], chosen);
        let best = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert_eq!(chosen.as_f64().unwrap(), best, "greedy");
    }
    let mut options = options;
    options["stream"] = true.into();
    let events = post(&server, COMPLETIONS, &completion_with(&options)).events();
    let parts =
        events.iter().filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
    assert_eq!(parts.flatten().cloned().collect::<Vec<Value>>(), tokens);
}

#[test]
fn a_prompt_can_be_computed_without_an_answer() {
    let server = server();
    let options = json!({ "max_tokens": 0, "echo": true });
    let reply = post(&server, COMPLETIONS, &completion_with(&options)).ok();
    assert_eq!(reply["choices"][0]["text"], "The ship left the");
    assert_eq!(reply["usage"]["completion_tokens"], 0);
}

#[test]
fn an_echo_has_the_log_probabilities_of_its_tokens() {
    let server = server();
    let prompt = post(&server, "/tokenize", &json!({ "prompt": "The ship left the" })).ok();
    let mut tokens = prompt["tokens"].as_array().unwrap().clone();
    // The log-probabilities of a text are the same, whether the model generates it or reads it as a prompt.
    let written = json!({ "logprobs": 2, "prompt": tokens });
    let written = post(&server, COMPLETIONS, &completion_with(&written)).ok();
    let written = &written["choices"][0];
    let text = written["text"].as_str().unwrap();
    let more = json!({ "prompt": text, "add_special_tokens": false });
    let more = post(&server, "/tokenize", &more).ok();
    let start = tokens.len();
    tokens.extend(more["tokens"].as_array().unwrap().iter().cloned());
    assert_eq!(tokens.len(), start + 6, "the answer's text has the answer's tokens");
    for n in [1, 2] {
        let read = json!({
            "prompt": tokens, "echo": true, "logprobs": 2, "max_tokens": 1, "n": n,
            "cache_prompt": n == 1,
        });
        let reply = post(&server, COMPLETIONS, &completion_with(&read)).ok();
        let choice = &reply["choices"][n - 1];
        let lists = &choice["logprobs"];
        let list = |name: &str| lists[name].as_array().unwrap().clone();
        assert_eq!(list("tokens").len(), tokens.len() + 1);
        let joined: String = list("tokens").iter().map(|token| token.as_str().unwrap()).collect();
        assert_eq!(joined, choice["text"]);
        assert!(list("token_logprobs")[0].is_null() && list("top_logprobs")[0].is_null());
        for index in 0..6 {
            let own = |lists: &Value, at: usize| lists["token_logprobs"][at].as_f64().unwrap();
            let (writes, reads) = (own(&written["logprobs"], index), own(lists, start + index));
            assert_eq!(writes, reads, "token {index}");
        }
        let streamed = post(&server, COMPLETIONS, &{
            let mut read = completion_with(&read);
            read["stream"] = true.into();
            read
        });
        let events = streamed.events();
        let own = events.iter().filter(|event| event["choices"][0]["index"] == n - 1);
        let parts = own.filter_map(|event| event["choices"][0]["logprobs"]["tokens"].as_array());
        assert_eq!(parts.flatten().cloned().collect::<Vec<Value>>(), list("tokens"));
    }
}

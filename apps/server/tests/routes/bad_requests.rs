//! Invalid requests, and the fields that the errors name.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use crate::models::{server, strict_server, tool_server};
use crate::{CHAT, COMPLETIONS, chat_with, completion_with, get, post, post_text, request};

/// Invalid fields of a chat, each with the field that the error names.
fn bad_chats() -> Vec<(Value, &'static str)> {
    let message = |message: Value| json!({ "messages": [message] });
    let part = |part: Value| message(json!({ "role": "user", "content": [part] }));
    let many = |count: usize| vec![json!({ "role": "user", "content": "x" }); count];
    vec![
        (json!({ "model": null }), "model"),
        (json!({ "messages": null }), "messages"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "messages": "x" }), "messages"),
        (json!({ "messages": many(4097) }), "messages"),
        (message(json!("x")), "messages[0]"),
        (message(json!({ "role": "robot", "content": "x" })), "messages[0]"),
        (message(json!({ "role": "user", "content": 1 })), "messages[0].content"),
        (part(json!({ "type": "image_url", "image_url": {} })), "messages[0].content[0].type"),
        (part(json!({ "type": "text" })), "messages[0].content[0].text"),
        (json!({ "max_tokens": -3 }), "max_tokens"),
        (json!({ "max_tokens": 1.5 }), "max_tokens"),
        (json!({ "max_completion_tokens": 9 }), "max_tokens"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 9 }), "n"),
        (json!({ "n": 129 }), "n"),
        (json!({ "n": 1_000_000 }), "n"),
        (json!({ "logit_bias": [] }), "logit_bias"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias.x"),
        (json!({ "logit_bias": { "1": 101 } }), "logit_bias.1"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias.99999"),
        (json!({ "logprobs": 1 }), "logprobs"),
        (json!({ "top_logprobs": 1 }), "top_logprobs"),
        (json!({ "logprobs": true, "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": { "include_usage": 1 } }), "stream_options.include_usage"),
        (json!({ "tools": [{}] }), "tools[0].type"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": "perhaps" }), "tool_choice"),
        (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
        (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
        (schema(json!({ "type": 7 })), "response_format.json_schema.schema"),
        (schema(json!({ "not": {} })), "response_format.json_schema.schema"),
        (schema(json!("x")), "response_format.json_schema.schema"),
        (schema(json!({ "const": "x".repeat(70_000) })), "response_format.json_schema.schema"),
        (json!({ "reasoning_effort": "huge" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": { "messages": [1] } }), "chat_template_kwargs.messages"),
        (json!({ "user": "x".repeat(513) }), "user"),
        (json!({ "functions": [{ "name": "f" }] }), "functions"),
        (json!({ "function_call": { "name": "f" } }), "function_call"),
        (json!({ "modalities": ["text", "audio"] }), "modalities"),
        (json!({ "store": 1 }), "store"),
        (json!({ "metadata": "x" }), "metadata"),
        (json!({ "audio": { "voice": "x" } }), "audio"),
        (json!({ "web_search_options": { "x": 1 } }), "web_search_options"),
        (json!({ "thinking": { "type": "perhaps" } }), "thinking.type"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "cache_prompt": 1 }), "cache_prompt"),
    ]
}

/// Invalid samplers and stop sequences of a chat, each with the field that the error names.
fn bad_sampling() -> Vec<(Value, &'static str)> {
    vec![
        (json!({ "temperature": 2.1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_p": -0.1 }), "top_p"),
        (json!({ "top_p": 1.1 }), "top_p"),
        (json!({ "top_k": -2 }), "top_k"),
        (json!({ "min_p": 2 }), "min_p"),
        (json!({ "repetition_penalty": 0 }), "repetition_penalty"),
        (json!({ "frequency_penalty": 2.5 }), "frequency_penalty"),
        (json!({ "presence_penalty": -2.5 }), "presence_penalty"),
        (json!({ "stop": vec!["a"; 257] }), "stop"),
        (json!({ "stop": "x".repeat(1025) }), "stop"),
        (json!({ "stop": [1] }), "stop"),
        (json!({ "seed": 1.5 }), "seed"),
        (json!({ "mirostat": 1 }), "mirostat"),
        (json!({ "repeat_last_n": -2 }), "repeat_last_n"),
        (json!({ "typical_p": 1.5 }), "typical_p"),
        (json!({ "samplers": ["infill"] }), "samplers"),
        (json!({ "dry_sequence_breakers": [1] }), "dry_sequence_breakers"),
        (json!({ "tfs_z": 0.5 }), "tfs_z"),
        (json!({ "min_keep": 2 }), "min_keep"),
        (json!({ "skip_special_tokens": false }), "skip_special_tokens"),
        (json!({ "parse_tool_calls": false }), "parse_tool_calls"),
        (json!({ "continue_final_message": true }), "continue_final_message"),
    ]
}

fn schema(schema: Value) -> Value {
    let named = json!({ "name": "x", "strict": true, "schema": schema });
    json!({ "response_format": { "type": "json_schema", "json_schema": named } })
}

#[test]
fn chats_with_wrong_fields_are_refused_by_name() {
    let server = server();
    for (fields, blamed) in bad_chats().into_iter().chain(bad_sampling()) {
        let answer = post(&server, CHAT, &chat_with(&fields));
        let shown = fields.to_string().chars().take(80).collect::<String>();
        assert_eq!(answer.status, 400, "{shown}: {}", answer.body);
        let error = answer.error(400);
        assert_eq!(error["param"], blamed, "{shown}: {error}");
        assert_eq!(error["type"], "invalid_request_error", "{shown}");
    }
}

#[test]
fn a_strict_server_names_fields_without_effect() {
    let message = |message: Value| json!({ "messages": [message] });
    let text = json!([{ "type": "text", "text": "x", "y": 1 }]);
    let cases = [
        (message(json!({ "role": "user", "content": "x", "colour": 1 })), "messages[0].colour"),
        (message(json!({ "role": "user", "content": text })), "messages[0].content[0].y"),
        (json!({ "response_format": { "type": "text", "x": 1 } }), "response_format.x"),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": { "thinking": 1 } }), "chat_template_kwargs.thinking"),
        (json!({ "store": true }), "store"),
        (json!({ "metadata": { "a": "b" } }), "metadata"),
        (json!({ "surely_unknown": 0 }), "surely_unknown"),
    ];
    let (strict, server) = (strict_server(), server());
    for (fields, blamed) in cases {
        let error = post(&strict, CHAT, &chat_with(&fields)).error(400);
        assert_eq!(error["param"], blamed, "{fields}: {error}");
        assert_eq!(error["code"], "unknown_parameter");
        let answer = post(&server, CHAT, &chat_with(&fields));
        answer.ok();
        let ignored = answer.headers["x-nestling-ignored"].to_str().unwrap();
        assert_eq!(ignored, blamed.replace("[0]", ""), "{fields}");
    }
}

#[test]
fn tools_that_make_no_sense_are_refused_by_name() {
    let tool = |function: Value| json!([{ "type": "function", "function": function }]);
    let good = tool(json!({ "name": "f" }));
    let twice = json!([good[0], good[0]]);
    let strict = json!({ "name": "f", "strict": true, "parameters": { "type": 7 } });
    let cases = [
        (json!({ "tools": [{ "type": "search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": tool(json!({})) }), "tools[0].function.name"),
        (json!({ "tools": tool(json!({ "name": "a b" })) }), "tools[0].function.name"),
        (
            json!({ "tools": tool(json!({ "name": "f", "parameters": [] })) }),
            "tools[0].function.parameters",
        ),
        (json!({ "tools": twice }), "tools[1].function.name"),
        (json!({ "tools": vec![good[0].clone(); 1025] }), "tools"),
        (json!({ "tools": tool(strict) }), "tools"),
        (
            json!({ "tools": good, "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice.function.name",
        ),
        (json!({ "tools": good, "parallel_tool_calls": 0 }), "parallel_tool_calls"),
    ];
    let server = tool_server();
    for (fields, blamed) in cases {
        let error = post(&server, CHAT, &chat_with(&fields)).error(400);
        assert_eq!(error["param"], blamed, "{fields}: {error}");
    }
}

#[test]
fn completions_with_wrong_fields_are_refused_by_name() {
    let cases = [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": 1 }), "prompt"),
        (json!({ "prompt": ["x", 1] }), "prompt"),
        (json!({ "prompt": [1, -1] }), "prompt[1]"),
        (json!({ "prompt": [[1], [99_999]] }), "prompt[1][0]"),
        (json!({ "prompt": vec!["x"; 129] }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "logprobs": 21 }), "logprobs"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "echo": "yes" }), "echo"),
        (json!({ "suffix": "x" }), "suffix"),
        (json!({ "best_of": 2 }), "best_of"),
        (json!({ "best_of": 0 }), "best_of"),
    ];
    let server = server();
    for (fields, blamed) in cases {
        let error = post(&server, COMPLETIONS, &completion_with(&fields)).error(400);
        assert_eq!(error["param"], blamed, "{fields}: {error}");
    }
}

#[test]
fn a_prompt_that_is_too_long_is_told_with_both_numbers() {
    let server = server();
    let long = "word ".repeat(2000);
    let messages = json!([{ "role": "user", "content": long }]);
    for error in [
        post(&server, CHAT, &chat_with(&json!({ "messages": messages }))).error(400),
        post(&server, COMPLETIONS, &completion_with(&json!({ "prompt": long }))).error(400),
        post(&server, COMPLETIONS, &completion_with(&json!({ "prompt": vec![1; 1024] })))
            .error(400),
    ] {
        assert_eq!(error["code"], "context_length_exceeded");
        let message = error["message"].as_str().unwrap();
        let numbers = message.split(|c: char| !c.is_ascii_digit()).filter(|text| !text.is_empty());
        let numbers: Vec<usize> = numbers.map(|text| text.parse().unwrap()).collect();
        assert!(numbers[0] == 1024 && numbers[1] > 1024, "{message}");
    }
}

#[test]
fn bodies_that_are_no_object_are_refused() {
    let server = server();
    let deep = "[".repeat(65) + &"]".repeat(65);
    for body in ["", "{", "[]", "null", "{\"model\": 1, \"model\": 2}", &deep, "\u{feff}{}"] {
        post_text(&server, CHAT, body.to_owned()).error(400);
    }
    post_text(&server, CHAT, b"{\"model\": \"\xff\"}".to_vec()).error(400);
    let error = post_text(&server, CHAT, vec![b' '; (8 << 20) + 1]).error(413);
    assert_eq!(error["code"], "request_too_large");
    let plain =
        Request::post(CHAT).header("host", "localhost").header("content-type", "text/plain");
    request(&server, plain.body(Body::from(chat_with(&json!({})).to_string())).unwrap()).error(415);
}

#[test]
fn what_is_not_there_is_said_in_the_form_of_errors() {
    let server = server();
    get(&server, "/v1/nothing").error(404);
    get(&server, "/page").error(404);
    get(&server, "/v1/chat/completions").error(405);
    post(&server, "/v1/models", &json!({})).error(405);
    let error = post(&server, "/v1/embeddings", &json!({ "input": "x" })).error(501);
    assert!(error["message"].as_str().unwrap().contains("trained for them"));
    for (path, methods) in
        [("/v1/models", "GET,HEAD"), ("/v1/chat/completions", "POST"), ("/health", "GET,HEAD")]
    {
        let trace = Request::builder().method("TRACE").uri(path).header("host", "localhost");
        let answer = request(&server, trace.body(Body::empty()).unwrap());
        answer.error(405);
        assert_eq!(answer.headers["allow"], methods);
    }
    let error = post(&server, CHAT, &chat_with(&json!({ "model": "gpt-4o" }))).error(404);
    assert_eq!((&error["code"], &error["param"]), (&json!("model_not_found"), &json!("model")));
}

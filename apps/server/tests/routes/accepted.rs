//! Requests as clients send them: fields without effect, values that ask for nothing, and whole requests of
//! coding agents.

use std::collections::BTreeSet;

use axum::body::Body;
use axum::http::{HeaderValue, Request};
use serde_json::{Value, json};

use crate::models::{NAME, at, server, tool_server};
use crate::{Answer, CHAT, COMPLETIONS, chat_with, completion_with, join, post, request};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn ignored(answer: &Answer) -> BTreeSet<String> {
    let header = answer.headers.get("x-nestling-ignored");
    let names = header.map_or("", |names| names.to_str().unwrap());
    names.split(", ").filter(|name| !name.is_empty()).map(String::from).collect()
}

/// Returns the text of the first choice.
fn text_of(answer: &Answer) -> Value {
    answer.ok()["choices"][0]["message"]["content"].take()
}

/// Hints of a chat, each with the name that is reported.
fn hints() -> Vec<(Value, &'static str)> {
    vec![
        (json!({ "metadata": { "a": "b" } }), "metadata"),
        (json!({ "store": true }), "store"),
        (json!({ "service_tier": "flex" }), "service_tier"),
        (json!({ "prompt_cache_key": "x" }), "prompt_cache_key"),
        (json!({ "verbosity": "low" }), "verbosity"),
        (json!({ "prediction": { "type": "content", "content": "x" } }), "prediction"),
        (json!({ "reasoning_effort": "high" }), "reasoning_effort"),
        (json!({ "reasoning": { "summary": "auto" } }), "reasoning.summary"),
        (json!({ "thinking": { "type": "enabled", "budget_tokens": 2048 } }), "thinking"),
        (json!({ "chat_template_kwargs": { "colour": 1 } }), "chat_template_kwargs.colour"),
        (json!({ "id_slot": 1 }), "id_slot"),
        (json!({ "provider": { "order": [] } }), "provider"),
    ]
}

#[test]
fn hints_change_no_answer_and_are_reported() {
    let server = server();
    let plain = text_of(&post(&server, CHAT, &chat_with(&json!({}))));
    for (fields, name) in hints() {
        let answer = post(&server, CHAT, &chat_with(&fields));
        assert_eq!(text_of(&answer), plain, "{fields}");
        assert!(ignored(&answer).contains(name), "{fields}: {:?}", answer.headers);
    }
    let metrics = crate::get(&server, "/metrics").body;
    let count =
        metrics.lines().find_map(|line| line.strip_prefix("nestling_ignored_fields_total "));
    assert!(count.unwrap().parse::<usize>().unwrap() >= hints().len(), "{metrics}");
}

/// Values of a chat that ask for nothing, or for what happens anyway.
fn neutral() -> Vec<Value> {
    vec![
        json!({ "stop": "" }),
        json!({ "stop": [""] }),
        json!({ "top_logprobs": 0 }),
        json!({ "modalities": ["text"] }),
        json!({ "n": 1.0 }),
        json!({ "tools": [], "tool_choice": "auto", "parallel_tool_calls": true }),
        json!({ "functions": [], "function_call": "none" }),
        json!({ "stream_options": { "include_usage": true } }),
        json!({ "store": false, "service_tier": "auto", "metadata": {} }),
        json!({ "logit_bias": null, "seed": 1.0, "user": "" }),
        json!({ "mirostat": 0, "typical_p": 1, "dry_multiplier": 0, "repeat_last_n": 64 }),
        json!({ "min_tokens": 0, "use_beam_search": false, "length_penalty": 1.0 }),
        json!({ "repeat_penalty": 1.0, "top_k": -1 }),
        json!({ "reasoning_effort": "none", "thinking": { "type": "disabled" } }),
    ]
}

#[test]
fn values_that_ask_for_nothing_pass_in_silence() {
    let server = server();
    let plain = text_of(&post(&server, CHAT, &chat_with(&json!({}))));
    for fields in neutral() {
        let answer = post(&server, CHAT, &chat_with(&fields));
        assert_eq!(text_of(&answer), plain, "{fields}");
        assert_eq!(ignored(&answer), BTreeSet::new(), "{fields}");
    }
    let plain = post(&server, COMPLETIONS, &completion_with(&json!({}))).ok();
    let fields = json!({ "best_of": 1, "suffix": "", "logprobs": false, "echo": false });
    let same = post(&server, COMPLETIONS, &completion_with(&fields)).ok();
    assert_eq!(same["choices"], plain["choices"]);
}

#[test]
fn limits_have_the_names_and_values_of_other_servers() {
    let server = server();
    let count = |fields: Value| {
        let mut request = chat_with(&json!({ "max_tokens": null, "stop": "." }));
        join(&mut request, &fields);
        post(&server, CHAT, &request).ok()["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(count(json!({ "max_tokens": 0 })), 0);
    assert_eq!(count(json!({ "n_predict": 3 })), 3);
    assert_eq!(count(json!({ "max_completion_tokens": 3, "max_tokens": 3 })), 3);
    assert!(count(json!({ "max_tokens": -1 })) > 8);
    // Top-p 0 keeps the most likely token alone.
    let ask = |fields: Value| text_of(&post(&server, CHAT, &chat_with(&fields)));
    assert_eq!(ask(json!({ "temperature": 1, "top_p": 0 })), ask(json!({ "temperature": 0 })));
    let penalized = |name: &str| ask(json!({ (name): 1.3 }));
    assert_eq!(penalized("repeat_penalty"), penalized("repetition_penalty"));
}

#[test]
fn repeated_messages_are_not_refused_for_their_fields() {
    let server = tool_server();
    let image = json!([{ "type": "image_url", "image_url": { "url": "x" } }]);
    let call = json!({
        "id": "c", "type": "function", "index": 0, "function": { "name": "f", "arguments": "{}" },
    });
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "x", "cache_control": { "type": "ephemeral" } }] },
        {
            "role": "assistant", "content": null, "tool_calls": [call], "id": "m", "phase": "final",
            "reasoning_details": [], "provider_specific_fields": { "a": 1 }, "thinking_blocks": [1],
            "annotations": [{ "type": "url_citation" }], "audio": null,
        },
        { "role": "tool", "tool_call_id": "c", "content": image },
    ]);
    let answer = post(&server, CHAT, &chat_with(&json!({ "messages": messages })));
    answer.ok();
    assert!(ignored(&answer).contains("messages.phase"), "{:?}", answer.headers);
    let messages = json!([
        { "role": "user", "content": "x" },
        { "role": "assistant", "content": [
            { "type": "tool_use", "id": "c", "name": "f", "input": {}, "caller": { "type": "other" } },
            { "type": "server_tool_use", "id": "s", "name": "web_search", "input": {} },
            { "type": "text", "text": "x", "citations": [{ "a": 1 }] },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "c", "content": [{ "type": "image", "source": {} }] },
        ] },
        { "role": "system", "content": "Be brief." },
    ]);
    post(&server, MESSAGES, &chat_with(&json!({ "messages": messages }))).ok();
    let input = json!([
        { "role": "user", "content": "x" },
        { "type": "reasoning", "summary": [], "encrypted_content": "x" },
        { "type": "web_search_call", "id": "w", "status": "completed" },
        { "type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x" },
        { "type": "custom_tool_call_output", "call_id": "c", "output": [{ "type": "input_image" }] },
        { "type": "message", "role": "assistant", "content": "x", "phase": "final_answer" },
        { "role": "user", "content": "y" },
    ]);
    let request = json!({ "model": NAME, "input": input, "max_output_tokens": 2 });
    post(&server, RESPONSES, &request).ok();
}

#[test]
fn hosted_tools_beside_functions_are_dropped_and_reported() {
    let server = tool_server();
    let function = json!({ "type": "function", "name": "f", "parameters": { "type": "object" } });
    let search = json!({ "type": "web_search", "external_web_access": true });
    let request = |tools: Value| json!({ "model": NAME, "input": "x", "tools": tools, "max_output_tokens": 2 });
    let answer = post(&server, RESPONSES, &request(json!([function, search])));
    answer.ok();
    assert!(ignored(&answer).contains("tools.type"));
    let error = post(&server, RESPONSES, &request(json!([search]))).error(400);
    assert_eq!(error["param"], "tools[0].type");
    let chosen = json!({ "tools": [function, search], "tool_choice": { "type": "web_search" } });
    let mut request = request(json!([]));
    join(&mut request, &chosen);
    assert_eq!(post(&server, RESPONSES, &request).error(400)["param"], "tool_choice.type");
}

#[test]
fn calls_of_namespaces_and_custom_tools_have_their_own_form() {
    let server = tool_server();
    let function = |name: &str| {
        json!({
            "type": "function", "name": name,
            "parameters": { "type": "object", "properties": {}, "additionalProperties": false },
        })
    };
    let namespace = json!({ "type": "namespace", "name": "agents", "tools": [function("close")] });
    let custom = json!({
        "type": "custom", "name": "patch", "description": "d",
        "format": { "type": "grammar", "syntax": "lark", "definition": "start: /a+/" },
    });
    let ask = |tool: &Value| {
        let request = json!({
            "model": NAME, "input": "x", "tools": [tool], "tool_choice": "required",
            "parallel_tool_calls": false, "max_output_tokens": 200, "temperature": 0,
        });
        post(&server, RESPONSES, &request).ok()["output"].take()
    };
    let call = ask(&namespace)[0].take();
    let found = (&call["type"], &call["namespace"], &call["name"], &call["arguments"]);
    assert_eq!(found, (&json!("function_call"), &json!("agents"), &json!("close"), &json!("{}")));
    let call = ask(&custom)[0].take();
    assert_eq!((&call["type"], &call["name"]), (&json!("custom_tool_call"), &json!("patch")));
    assert!(call["input"].is_string() && call.get("arguments").is_none(), "{call}");
}

#[test]
fn some_tools_may_be_allowed() {
    let server = tool_server();
    let tool = |name: &str| {
        json!({ "type": "function", "function": {
            "name": name, "parameters": { "type": "object", "properties": {}, "additionalProperties": false },
        }})
    };
    let allowed = json!({ "type": "allowed_tools", "allowed_tools": {
        "mode": "required", "tools": [{ "type": "function", "function": { "name": "b.c:d" } }],
    }});
    let fields = json!({
        "tools": [tool("a"), tool("b.c:d")], "tool_choice": allowed, "max_tokens": 100,
    });
    let answer = post(&server, CHAT, &chat_with(&fields)).ok();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().unwrap();
    assert!(calls.iter().all(|call| call["function"]["name"] == "b.c:d"), "{calls:?}");
    assert!(!calls.is_empty());
}

#[test]
fn an_unfinished_answer_is_continued_in_every_api() {
    let server = server();
    let messages = json!([{ "role": "user", "content": "Tell me a story." }]);
    let whole = post(&server, CHAT, &chat_with(&json!({ "messages": messages, "max_tokens": 24 })));
    let whole = text_of(&whole);
    let whole = whole.as_str().unwrap();
    let at = whole.char_indices().filter(|(_, c)| *c == ' ').nth(3).unwrap().0;
    let (start, rest) = whole.split_at(at);
    let mut unfinished = messages;
    unfinished.as_array_mut().unwrap().push(json!({ "role": "assistant", "content": start }));
    let options = json!({ "messages": unfinished, "max_tokens": 8 });
    let same = |found: &Value| {
        let found = found.as_str().unwrap();
        assert!(rest.starts_with(found) || found.starts_with(rest), "{start:?} {found:?} {rest:?}");
        assert!(found.len() > 4);
    };
    same(&text_of(&post(&server, CHAT, &chat_with(&options))));
    let flags = json!({ "add_generation_prompt": false, "continue_final_message": true });
    let mut told = options.clone();
    join(&mut told, &flags);
    same(&text_of(&post(&server, CHAT, &chat_with(&told))));
    // A new answer instead, and none of its start.
    let mut prompts = vec![];
    for begins in [true, false] {
        let flags = json!({ "add_generation_prompt": begins, "continue_final_message": false });
        join(&mut told, &flags);
        let answer = post(&server, CHAT, &chat_with(&told)).ok();
        prompts.push(answer["usage"]["prompt_tokens"].as_u64().unwrap());
    }
    assert!(prompts[0] > prompts[1], "{prompts:?}");
    same(&post(&server, MESSAGES, &chat_with(&options)).ok()["content"][0]["text"]);
    let input = json!({ "input": unfinished, "messages": null, "max_tokens": null, "max_output_tokens": 8 });
    same(&post(&server, RESPONSES, &chat_with(&input)).ok()["output"][0]["content"][0]["text"]);
    let ollama = json!({
        "model": NAME, "messages": unfinished, "stream": false,
        "options": { "temperature": 0, "num_predict": 8 },
    });
    same(&post(&server, "/api/chat", &ollama).ok()["message"]["content"]);
}

#[test]
fn tools_work_without_a_place_for_them_in_the_template() {
    let server = server();
    assert_eq!(crate::get(&server, "/v1/models").ok()["data"][0]["meta"]["tool_style"], "generic");
    let parameters = json!({
        "type": "object", "required": ["days"], "additionalProperties": false,
        "properties": { "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
    });
    let tools = json!([{ "type": "function", "function": { "name": "weather", "parameters": parameters } }]);
    for choice in
        [json!("required"), json!({ "type": "function", "function": { "name": "weather" } })]
    {
        let fields = json!({ "tools": tools, "tool_choice": choice, "max_tokens": 60 });
        let answer = post(&server, CHAT, &chat_with(&fields)).ok();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        assert_eq!(call["name"], "weather", "{answer}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!((1..=9).contains(&arguments["days"].as_u64().unwrap()));
    }
    for choice in ["auto", "none"] {
        let fields = json!({ "tools": tools, "tool_choice": choice });
        let answer = post(&server, CHAT, &chat_with(&fields)).ok();
        assert!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    }
    let native = crate::models::server_without_generic_tools();
    let error = post(&native, CHAT, &chat_with(&json!({ "tools": tools }))).error(400);
    assert_eq!(error["param"], "tools");
}

#[test]
fn an_answer_in_a_form_may_call_tools_instead() {
    let schema = json!({
        "type": "object", "required": ["age"], "additionalProperties": false,
        "properties": { "age": { "type": "integer", "minimum": 1, "maximum": 9 } },
    });
    let form = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
    let tool = json!([{ "type": "function", "function": { "name": "f", "parameters": schema } }]);
    let (mut calls, mut forms) = (0, 0);
    for server in [server(), tool_server()] {
        for seed in 0..6 {
            let fields = json!({
                "tools": tool, "response_format": form, "max_tokens": 120, "temperature": 1, "seed": seed,
            });
            let message =
                post(&server, CHAT, &chat_with(&fields)).ok()["choices"][0]["message"].take();
            let text = match message["tool_calls"][0]["function"]["arguments"].as_str() {
                Some(arguments) => {
                    calls += 1;
                    arguments.to_owned()
                }
                None => {
                    forms += 1;
                    message["content"].as_str().unwrap().to_owned()
                }
            };
            let value: Value =
                serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {message}"));
            assert!((1..=9).contains(&value["age"].as_u64().unwrap()), "{message}");
        }
    }
    assert!(calls > 0 && forms > 0, "{calls} {forms}");
}

#[test]
fn samplers_of_other_servers_are_honoured() {
    let server = server();
    let ask = |more: Value| {
        let mut fields = json!({ "temperature": 1, "seed": 7, "max_tokens": 24 });
        join(&mut fields, &more);
        text_of(&post(&server, CHAT, &chat_with(&fields)))
    };
    let plain = ask(json!({}));
    for neutral in [
        json!({ "typical_p": 1, "top_n_sigma": -1, "xtc_probability": 0, "dry_multiplier": 0 }),
        json!({ "mirostat": 0, "mirostat_tau": 3, "dynatemp_range": 0, "repeat_last_n": 64 }),
    ] {
        assert_eq!(ask(neutral), plain);
    }
    let greedy = text_of(&post(&server, CHAT, &chat_with(&json!({ "max_tokens": 24 }))));
    assert_eq!(ask(json!({ "typical_p": 0, "top_k": 1 })), greedy);
    for active in [
        json!({ "mirostat": 2, "mirostat_tau": 0.1 }),
        json!({ "xtc_probability": 1, "xtc_threshold": 0.01 }),
        json!({ "samplers": ["top_k"], "top_k": 1, "repeat_penalty": 2 }),
        json!({ "dynatemp_range": 1, "temperature": 1.5 }),
    ] {
        assert_ne!(ask(active.clone()), plain, "{active}");
    }
    let ollama = |option: Value| {
        let mut options = json!({ "temperature": 1, "seed": 7, "num_predict": 24 });
        join(&mut options, &option);
        let messages = json!([{ "role": "user", "content": "Tell me a story." }]);
        let request =
            json!({ "model": NAME, "messages": messages, "stream": false, "options": options });
        post(&server, "/api/chat", &request).ok()["message"]["content"].take()
    };
    assert_eq!(
        ollama(json!({ "mirostat": 2, "mirostat_tau": 0.1 })),
        ask(json!({ "mirostat": 2, "mirostat_tau": 0.1 }))
    );
}

#[test]
fn samplers_and_seeds_are_honoured_in_every_api() {
    let server = server();
    let story = json!([{ "role": "user", "content": "Tell me a story." }]);
    let apis = [
        (
            "/v1/chat/completions",
            json!({ "messages": story, "max_tokens": 12 }),
            "/choices/0/message/content",
        ),
        (
            "/v1/responses",
            json!({ "input": story, "max_output_tokens": 12 }),
            "/output/0/content/0/text",
        ),
        ("/v1/messages", json!({ "messages": story, "max_tokens": 12 }), "/content/0/text"),
    ];
    let mut texts = Vec::new();
    for (path, request, place) in apis {
        let ask = |more: Value| {
            let mut body = json!({ "model": NAME, "temperature": 1 });
            join(&mut body, &request);
            join(&mut body, &more);
            let answer = post(&server, path, &body);
            assert!(ignored(&answer).is_empty(), "{path}");
            answer.ok().pointer(place).unwrap().clone()
        };
        let drawn = ask(json!({ "seed": 3 }));
        assert_eq!(drawn, ask(json!({ "seed": 3 })), "{path}");
        let greedy = ask(json!({ "temperature": 0 }));
        assert_ne!(drawn, greedy, "{path}: the seed has to be one that draws another text");
        for one in ["top_k", "min_p", "typical_p"] {
            let value = if one == "typical_p" { 0 } else { 1 };
            // Typical sampling keeps the most typical token, which need not be the likeliest.
            let kept = ask(json!({ "seed": 3, (one): value }));
            assert!(one == "typical_p" || kept == greedy, "{path} {one}");
            texts.push(kept);
        }
        texts.push(drawn);
    }
    let (first, others) = texts.split_at(4);
    assert!(others.chunks(4).all(|texts| texts == first), "all APIs draw the same");
}

#[test]
fn constraints_have_the_names_of_other_servers() {
    let server = server();
    let ask = |fields: Value| {
        let text = text_of(&post(&server, CHAT, &chat_with(&fields)));
        text.as_str().unwrap().to_owned()
    };
    let choice = ask(json!({ "guided_choice": ["Once", "Never"] }));
    assert!(["Once", "Never"].contains(&&*choice), "{choice}");
    assert_eq!(ask(json!({ "guided_regex": "xy{3}" })), "xyyy");
    assert_eq!(ask(json!({ "structured_outputs": { "grammar": "start: \"a\" \"b\"" } })), "ab");
    let gbnf = "# two letters\nroot ::= a-rule \"b\"\na-rule ::= [a]";
    assert_eq!(ask(json!({ "structured_outputs": { "grammar": gbnf } })), "ab");
    assert_eq!(ask(json!({ "guided_grammar": gbnf })), "ab");
    assert_eq!(ask(json!({ "grammar": gbnf })), "ab");
    let error = post(&server, CHAT, &chat_with(&json!({ "grammar": "root ::= b" }))).error(400);
    assert!(
        error["param"] == "grammar" && error["message"].to_string().contains("rule `b`"),
        "{error}"
    );
    post(&server, CHAT, &chat_with(&json!({ "grammar": "", "max_tokens": 1 }))).ok();
    assert_eq!(ask(json!({ "json_schema": { "const": 7 } })), "7");
    let fields = json!({ "guided_choice": ["a"], "guided_regex": "a" });
    assert_eq!(post(&server, CHAT, &chat_with(&fields)).error(400)["param"], "guided_choice");
    let completion = completion_with(&json!({ "guided_regex": "xy{3}" }));
    assert_eq!(post(&server, COMPLETIONS, &completion).ok()["choices"][0]["text"], "xyyy");
    // A second constraint is never left out in silence.
    let form = json!({ "type": "json_schema", "schema": { "type": "object" } });
    let fields = json!({ "guided_regex": "a", "output_config": { "format": form } });
    let error = post(&server, MESSAGES, &chat_with(&fields));
    assert!(error.status == 400 && error.body.contains("guided_regex"), "{}", error.body);
    let fields = json!({
        "model": NAME, "input": "x", "guided_regex": "a", "text": { "format": { "type": "json_object" } },
    });
    assert_eq!(post(&server, RESPONSES, &fields).error(400)["param"], "guided_regex");
    let message = post(&server, MESSAGES, &chat_with(&json!({ "guided_regex": "xy{3}" }))).ok();
    assert_eq!(message["content"][0]["text"], "xyyy");
}

#[test]
fn a_line_for_the_operator_does_not_defeat_prefixes() {
    let server = server();
    let ask = |line: &str| {
        let system = json!([{ "type": "text", "text": line }, { "type": "text", "text": "Be kind. ".repeat(40) }]);
        post(&server, MESSAGES, &chat_with(&json!({ "system": system }))).ok()["usage"].take()
    };
    let first = ask("x-anthropic-billing-header: cc_version=1.0.0.abc;");
    let second = ask("x-anthropic-billing-header: cc_version=1.0.0.def;");
    let read = second["cache_read_input_tokens"].as_u64().unwrap();
    assert!(read >= 64 && second["input_tokens"].as_u64().unwrap() < 64, "{first} {second}");
}

#[test]
fn paths_and_methods_are_read_as_they_are_meant() {
    let server = server();
    let ask = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let asked = Request::builder().method(method).uri(path).header("host", "ollama:11434");
        let asked = headers.iter().fold(asked, |asked, (name, value)| asked.header(*name, *value));
        request(&server, asked.body(Body::from(body.to_owned())).unwrap())
    };
    assert_eq!(ask("GET", "/v1/models/", &[], "").ok()["data"][0]["id"], NAME);
    assert_eq!(ask("HEAD", "/v1/models", &[], "").status, 200);
    let options = ask("OPTIONS", CHAT, &[], "");
    assert_eq!(
        (options.status.as_u16(), &options.headers["allow"]),
        (204, &HeaderValue::from_static("POST"))
    );
    for path in ["/v1/v1/chat/completions", "/chat/completions", "/api/v1/chat/completions"] {
        let error = ask("POST", path, &[], "{}").json();
        assert!(
            error.to_string().contains("did you mean \\\"/v1/chat/completions\\\"?"),
            "{path}: {error}"
        );
    }
    // As curl sends it without a content type, and as a web page would.
    let talk = json!({
        "model": format!("{NAME}:latest"), "stream": false, "keep_alive": "5m",
        "messages": [{ "role": "user", "content": "Hi" }], "options": { "num_predict": 2, "num_gpu": 1 },
    });
    let form = ("content-type", "application/x-www-form-urlencoded");
    let answer = ask("POST", "/api/chat", &[form], &talk.to_string());
    assert_eq!(answer.ok()["done_reason"], "length");
    assert_eq!(ignored(&answer), ["keep_alive", "options.num_gpu"].map(String::from).into());
    let page = [form, ("origin", "http://localhost:3000")];
    assert_eq!(ask("POST", "/api/chat", &page, &talk.to_string()).status, 415);
    assert_eq!(ask("POST", CHAT, &[form], "{}").status, 415);
}

#[test]
fn requests_of_coding_agents_are_accepted() {
    let server = tool_server();
    let folder = at("apps/server/tests/agents");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() > 20);
    for file in files {
        let fixture: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        let path = fixture["path"].as_str().unwrap();
        let mut body = fixture["body"].clone();
        if fixture["method"] != "POST" {
            continue;
        }
        body["model"] = NAME.into();
        let limit = if path == RESPONSES { "max_output_tokens" } else { "max_tokens" };
        if !path.contains("count_tokens") {
            body[limit] = 2.into();
        }
        let answer = post(&server, path, &body);
        let is_long = answer.status == 400
            && ["prompt is too long: ", "maximum context length is"]
                .iter()
                .any(|text| answer.body.contains(text));
        let name = file.file_name().unwrap().to_str().unwrap();
        // Only a hosted search is beyond this server.
        if name == "claude_code_web_search.json" {
            assert!(answer.body.contains("tools[0].type"), "{}", answer.body);
            continue;
        }
        assert!(answer.status == 200 || is_long, "{name}: {}", answer.body);
    }
}

//! OpenAI's Responses API.

use serde_json::{Value, json};

use crate::models::{self, server, tool_server};
use crate::tools::{now_schema, weather_schema};
use crate::{Answer, join, post};
use nestling_server::Server;

const RESPONSES: &str = "/v1/responses";

fn response_with(more: &Value) -> Value {
    let mut request = json!({
        "model": models::NAME, "input": "Tell me a story.", "max_output_tokens": 8, "temperature": 0,
    });
    join(&mut request, more);
    request
}

fn ask(server: &Server, more: &Value) -> Value {
    post(server, RESPONSES, &response_with(more)).ok()
}

/// Returns the events of a stream after checking names and sequence numbers.
#[track_caller]
fn events(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.headers["content-type"], "text/event-stream");
    let frames = answer.body.split_terminator("\n\n").filter(|frame| !frame.starts_with(':'));
    let events = frames.enumerate().map(|(number, frame)| {
        let (name, data) = frame.split_once('\n').unwrap();
        let event: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(event["type"], name.strip_prefix("event: ").unwrap());
        assert_eq!(event["sequence_number"], number);
        event
    });
    events.collect()
}

/// Assembles the output from events, and checks that each closing event repeats the text of its deltas.
fn rebuilt(events: &[Value]) -> Vec<Value> {
    let (mut output, mut text) = (Vec::<Value>::new(), String::new());
    for event in events {
        let last = output.len().saturating_sub(1);
        if let Some(index) = event["output_index"].as_u64() {
            let is_new = event["type"] == "response.output_item.added";
            assert_eq!(index, if is_new { output.len() } else { last } as u64, "{event}");
        }
        match event["type"].as_str().unwrap().strip_prefix("response.").unwrap() {
            "created" | "in_progress" | "completed" | "incomplete" => {}
            "output_item.added" => {
                assert_eq!(event["item"]["status"], "in_progress");
                output.push(event["item"].clone());
                text.clear();
            }
            "content_part.added" => assert_eq!(event["part"]["text"], ""),
            "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta" => {
                assert_eq!(event["item_id"], output[last]["id"]);
                text += event["delta"].as_str().unwrap();
            }
            "output_text.done" | "reasoning_text.done" => assert_eq!(event["text"], text),
            "function_call_arguments.done" => assert_eq!(event["arguments"], text),
            "content_part.done" => assert_eq!(event["part"]["text"], text),
            "output_item.done" => {
                assert_eq!(event["item"]["id"], output[last]["id"]);
                output[last] = event["item"].clone();
            }
            other => panic!("{other}"),
        }
    }
    output
}

/// Requests a response with and without streaming and checks that both are equal.
fn ask_both(server: &Server, more: &Value) -> Value {
    let whole = ask(server, more);
    let mut more = more.clone();
    more["stream"] = true.into();
    let events = events(&post(server, RESPONSES, &response_with(&more)));
    assert_eq!(
        (&events[0]["type"], &events[1]["type"]),
        (&json!("response.created"), &json!("response.in_progress"))
    );
    assert_eq!(
        (&events[0]["response"]["status"], &events[0]["response"]["output"]),
        (&json!("in_progress"), &json!([]))
    );
    let last = &events.last().unwrap();
    assert_eq!(last["type"], format!("response.{}", whole["status"].as_str().unwrap()));
    assert_eq!(last["response"]["output"], json!(rebuilt(&events)));
    let mut streamed = last["response"].clone();
    let mut plain = whole.clone();
    for reply in [&mut streamed, &mut plain] {
        // Ids and times differ between replies, and the second reply reports cached prompt tokens.
        join(reply, &json!({ "id": null, "created_at": null, "completed_at": null }));
        reply["usage"]["input_tokens_details"] = Value::Null;
        for item in reply["output"].as_array_mut().unwrap() {
            join(item, &json!({ "id": null, "call_id": null }));
        }
    }
    assert_eq!(streamed, plain);
    whole
}

#[test]
fn a_response_has_all_that_the_api_has() {
    let fields = json!({ "instructions": "Be brief.", "metadata": { "a": "b" }, "store": false, "user": "me", "top_p": 0.9 });
    let reply = ask_both(&server(), &fields);
    assert!(reply["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!((&reply["object"], &reply["model"]), (&json!("response"), &json!(models::NAME)));
    assert_eq!((&reply["status"], &reply["store"]), (&json!("incomplete"), &json!(false)));
    assert_eq!(reply["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    for (name, value) in fields.as_object().unwrap() {
        assert_eq!(&reply[name], value, "what was asked is repeated");
    }
    assert_eq!(
        (&reply["temperature"], &reply["tool_choice"], &reply["tools"]),
        (&json!(0.0), &json!("auto"), &json!([]))
    );
    let output = reply["output"].as_array().unwrap();
    assert_eq!(
        (output.len(), &output[0]["type"], &output[0]["role"]),
        (1, &json!("message"), &json!("assistant"))
    );
    assert_eq!(output[0]["status"], "incomplete");
    let part = &output[0]["content"][0];
    assert_eq!((&part["type"], &part["annotations"]), (&json!("output_text"), &json!([])));
    let usage = &reply["usage"];
    assert_eq!(usage["output_tokens"], 8);
    assert_eq!(
        usage["total_tokens"].as_u64().unwrap(),
        usage["input_tokens"].as_u64().unwrap() + 8
    );
}

#[test]
fn the_answer_is_that_of_a_chat() {
    let server = server();
    let chat = json!({ "messages": [
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "Hi" },
        { "role": "assistant", "content": "Yes?" }, { "role": "user", "content": "A story." },
    ]});
    let chat = post(&server, crate::CHAT, &crate::chat_with(&chat)).ok();
    let said = json!({ "type": "output_text", "text": "Yes?", "annotations": [], "logprobs": [] });
    let reply = ask(
        &server,
        &json!({ "instructions": "Be brief.", "input": [
            { "role": "user", "content": "Hi" },
            { "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [said] },
            { "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "A story." }] },
        ]}),
    );
    assert_eq!(reply["output"][0]["content"][0]["text"], chat["choices"][0]["message"]["content"]);
    assert_eq!(reply["usage"]["input_tokens"], chat["usage"]["prompt_tokens"]);
}

#[test]
fn log_probabilities_stand_beside_the_text() {
    let options = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2 });
    let reply = ask_both(&server(), &options);
    let part = &reply["output"][0]["content"][0];
    let tokens = part["logprobs"].as_array().unwrap();
    let text: String = tokens.iter().map(|token| token["token"].as_str().unwrap()).collect();
    assert_eq!(text, part["text"]);
    assert!(tokens.iter().all(|token| token["top_logprobs"].as_array().unwrap().len() == 2));
}

#[test]
fn answers_keep_to_the_form_that_is_asked_for() {
    let schema = json!({
        "type": "object", "required": ["age"], "additionalProperties": false,
        "properties": { "age": { "type": "integer", "minimum": 1, "maximum": 99 } },
    });
    let format =
        json!({ "type": "json_schema", "name": "person", "strict": true, "schema": schema });
    let options = json!({ "text": { "format": format }, "max_output_tokens": 60 });
    let reply = ask_both(&server(), &options);
    let text = reply["output"][0]["content"][0]["text"].as_str().unwrap();
    let person: Value = serde_json::from_str(text).unwrap();
    assert!((1..100).contains(&person["age"].as_u64().unwrap()));
    assert_eq!(
        (&reply["status"], &reply["output"][0]["status"]),
        (&json!("completed"), &json!("completed"))
    );
    assert!(reply["completed_at"].is_u64() && reply["incomplete_details"].is_null());
}

fn tools() -> Value {
    let (parameters, now) = (weather_schema(), now_schema());
    json!([
        { "type": "function", "name": "weather", "description": "x", "parameters": parameters, "strict": true },
        { "type": "function", "name": "now", "parameters": now, "strict": null },
    ])
}

#[test]
fn a_function_that_is_chosen_is_called() {
    let server = tool_server();
    let choice = json!({ "type": "function", "name": "weather" });
    let options = json!({ "tools": tools(), "tool_choice": choice, "max_output_tokens": 300 });
    let reply = ask_both(&server, &options);
    assert_eq!(
        (&reply["status"], &reply["tool_choice"]),
        (&json!("completed"), &choice),
        "{reply}"
    );
    let output = reply["output"].as_array().unwrap();
    let call = &output[0];
    assert_eq!(
        (output.len(), &call["type"], &call["name"]),
        (1, &json!("function_call"), &json!("weather"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(arguments["city"].is_string() && arguments["days"].as_u64().unwrap() < 10);
    let options = json!({
        "tools": tools(), "tool_choice": "required", "parallel_tool_calls": false,
        "max_output_tokens": 600, "temperature": 1,
    });
    assert_eq!(ask(&server, &options)["output"].as_array().unwrap().len(), 1);
    // The call is sent back unchanged, with its result.
    let mut input = vec![json!({ "role": "user", "content": "The weather?" })];
    input.push(json!({ "type": "reasoning", "id": "rs_1", "summary": [], "content": [{ "type": "reasoning_text", "text": "Hm." }] }));
    input.extend(output.iter().cloned());
    input.push(
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "rain" }),
    );
    let with = ask(&server, &json!({ "input": input, "tools": tools() }));
    let without = ask(&server, &json!({ "input": input, "tools": tools(), "tool_choice": "none" }));
    let tokens = |reply: &Value| reply["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&with) > tokens(&without));
    // A call with truncated arguments is incomplete.
    let options = json!({ "tools": tools(), "tool_choice": choice, "max_output_tokens": 48 });
    let reply = ask_both(&server, &options);
    assert_eq!(
        (&reply["status"], &reply["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
}

#[test]
fn a_template_is_told_how_much_to_reason() {
    let server = tool_server();
    let tokens = |fields: Value| ask(&server, &fields)["usage"]["input_tokens"].as_u64().unwrap();
    let plain = tokens(json!({}));
    assert!(tokens(json!({ "reasoning": { "effort": "none" } })) > plain);
    assert_eq!(tokens(json!({ "reasoning": { "effort": "high" } })), plain);
}

/// Invalid items, each with the field that the error names.
fn bad_items() -> Vec<(Value, &'static str)> {
    let item = |item: Value| json!({ "input": [item] });
    let said = |part: Value| item(json!({ "role": "user", "content": [part] }));
    vec![
        (json!({ "model": null }), "model"),
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": 1 }), "input"),
        (json!({ "input": ["x"] }), "input[0]"),
        (item(json!({ "role": "robot", "content": "x" })), "input[0].role"),
        (item(json!({ "role": "user" })), "input[0].content"),
        (item(json!({ "type": "item_reference", "id": "x" })), "input[0].id"),
        (item(json!({ "type": "item_reference" })), "input[0].id"),
        (
            item(json!({ "type": "function_call", "call_id": "x", "arguments": "{}" })),
            "input[0].name",
        ),
        (item(json!({ "type": "function_call_output", "output": "x" })), "input[0].call_id"),
        (said(json!({ "type": "input_image", "image_url": "x" })), "input[0].content[0].type"),
        (said(json!({ "type": "input_text" })), "input[0].content[0].text"),
    ]
}

/// Invalid other fields, each with the field that the error names.
fn bad_options() -> Vec<(Value, &'static str)> {
    let tool = |tool: Value| json!({ "tools": [tool] });
    vec![
        (json!({ "instructions": 1 }), "instructions"),
        (json!({ "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "conversation": "conv_1" }), "conversation"),
        (json!({ "prompt": { "id": "x" } }), "prompt"),
        (json!({ "store": "x" }), "store"),
        (json!({ "background": true }), "background"),
        (json!({ "include": "x" }), "include"),
        (json!({ "max_output_tokens": -3 }), "max_output_tokens"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_p": 2 }), "top_p"),
        (json!({ "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "metadata": { "a": 1 } }), "metadata"),
        (json!({ "reasoning": { "effort": "huge" } }), "reasoning.effort"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "text": { "format": { "type": "json_schema" } } }), "text.format.name"),
        (
            json!({ "text": { "format": { "type": "json_schema", "name": "x", "schema": { "type": 7 } } } }),
            "text.format.schema",
        ),
        (tool(json!({ "type": "web_search" })), "tools[0].type"),
        (tool(json!({ "type": "function" })), "tools[0].name"),
        (tool(json!({ "type": "namespace" })), "tools[0].name"),
        (
            tool(json!({ "type": "namespace", "name": "n", "tools": [{ "type": "function" }] })),
            "tools[0].tools[0].name",
        ),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": { "type": "function", "name": "g" } }), "tool_choice.name"),
        (json!({ "stream_options": 1 }), "stream_options"),
    ]
}

#[test]
fn responses_with_wrong_fields_are_refused_by_name() {
    let server = tool_server();
    for (fields, blamed) in bad_items().into_iter().chain(bad_options()) {
        let answer = post(&server, RESPONSES, &response_with(&fields));
        let shown = fields.to_string().chars().take(80).collect::<String>();
        assert_eq!(answer.status, 400, "{shown}: {}", answer.body);
        assert_eq!(answer.error(400)["param"], blamed, "{shown}");
    }
    let error = post(&server, RESPONSES, &response_with(&json!({ "model": "gpt" }))).error(404);
    assert_eq!(error["code"], "model_not_found");
    for path in ["/v1/responses/resp_1", "/v1/responses/resp_1/input_items"] {
        assert_eq!(crate::get(&server, path).error(404)["code"], "response_not_found");
    }
    for path in ["/v1/responses/resp_1/cancel", "/v1/responses/compact"] {
        post(&server, path, &json!({})).error(501);
    }
    crate::get(&server, RESPONSES).error(405);
}

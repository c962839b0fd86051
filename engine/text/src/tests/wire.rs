//! Messages in the JSON form that the OpenAI API documents.

use serde_json::json as j;

use super::*;

fn read(message: Value) -> Message {
    let text = message.to_string();
    let from_text: Message = serde_json::from_str(&text).unwrap();
    let from_value: Message = serde_json::from_value(message).unwrap();
    assert_eq!(from_text, from_value);
    from_text
}

fn refused(message: Value) -> String {
    let text = message.to_string();
    serde_json::from_str::<Message>(&text).unwrap_err().to_string()
}

/// The assistant's message and the tool result of the API's function-calling example.
#[test]
fn a_tool_call_is_read_and_written_as_the_api_has_it() {
    let wire = j!({
        "role": "assistant",
        "content": null,
        "tool_calls": [{
            "id": "call_abc123",
            "type": "function",
            "function": {
                "name": "get_current_weather",
                "arguments": "{\n\"location\": \"Boston, MA\"\n}"
            }
        }],
        "refusal": null,
        "annotations": []
    });
    let message = read(wire);
    let call = &message.tool_calls[0];
    assert_eq!((call.id.as_str(), call.name.as_str()), ("call_abc123", "get_current_weather"));
    assert_eq!(call.arguments, j!({"location": "Boston, MA"}), "templates see an object");
    let written = serde_json::to_value(&message).unwrap();
    assert_eq!(
        written,
        j!({
            "role": "assistant",
            "content": null,
            "tool_calls": [{
                "id": "call_abc123",
                "type": "function",
                "function": {
                    "name": "get_current_weather",
                    "arguments": "{\"location\":\"Boston, MA\"}"
                }
            }]
        })
    );
    assert_eq!(read(written), message);
    let result = read(j!({"role": "tool", "tool_call_id": "call_abc123", "content": "22 °C"}));
    assert_eq!(result, Message::tool("call_abc123", "22 °C"));
}

#[test]
fn arguments_are_a_json_text_an_object_or_nothing() {
    let call = |arguments: Value| -> ToolCall {
        let function = j!({"name": "f", "arguments": arguments});
        serde_json::from_value(j!({"id": "1", "function": function})).unwrap()
    };
    assert_eq!(call(j!({"a": [1]})).arguments, j!({"a": [1]}));
    for none in [j!(""), j!(" "), j!(null), j!("{}"), j!({})] {
        assert_eq!(call(none).arguments, j!({}));
    }
    // Invalid JSON written by a model is passed on unchanged.
    let broken = call(j!("{\"a\": "));
    assert_eq!(broken.arguments, j!("{\"a\": "));
    let written = serde_json::to_value(&broken).unwrap();
    assert_eq!(written["function"]["arguments"], "{\"a\": ");
}

#[test]
fn null_is_absent() {
    let wire = j!({
        "role": "assistant", "content": "Hello", "tool_calls": null, "function_call": null,
        "audio": null, "refusal": null, "name": null, "reasoning": null, "reasoning_content": null,
        "tool_call_id": null
    });
    assert_eq!(read(wire), Message::assistant("Hello"));
}

#[test]
fn content_is_text_or_parts_of_text() {
    let parts = |role: &str, parts: Value| read(j!({"role": role, "content": parts}));
    let message = parts("user", j!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]));
    assert_eq!(message.content.unwrap().text(), "a\nb");
    let message = parts("assistant", j!([{"type": "refusal", "refusal": "I can't."}]));
    assert_eq!(message.content.unwrap().text(), "I can't.");
    for (kind, value) in [
        ("image_url", j!({"url": "https://example.com/cat.png", "detail": "high"})),
        ("input_audio", j!({"data": "UklGRg==", "format": "wav"})),
        ("file", j!({"file_id": "file-6F2ksmvXxt4VdoqmHRw6kL"})),
    ] {
        let content = j!([{"type": "text", "text": "What is this?"}, {"type": kind, kind: value}]);
        let said = refused(j!({"role": "user", "content": content}));
        let expected = format!("content parts of type `{kind}` are not supported, only `text`");
        assert!(said.contains(&expected), "{said}");
    }
    let said = refused(j!({"role": "user", "content": 3}));
    assert!(said.contains("a text or a list of parts"), "{said}");
    let said = refused(j!({"role": "user", "content": [{"type": "text"}]}));
    assert!(said.contains("missing field `text`"), "{said}");
}

#[test]
fn reasoning_has_two_names_and_a_refusal_is_what_was_said() {
    let reasoning = |message: Value| read(message).reasoning;
    let newer = j!({"role": "assistant", "content": "4", "reasoning": "2 + 2"});
    assert_eq!(reasoning(newer).as_deref(), Some("2 + 2"));
    let both = j!({
        "role": "assistant", "content": "4", "reasoning": "2 + 2", "reasoning_content": "2 + 2"
    });
    assert_eq!(reasoning(both).as_deref(), Some("2 + 2"));
    let refusal = read(j!({"role": "assistant", "content": null, "refusal": "I can't."}));
    assert_eq!(refusal, Message::assistant("I can't."));
}

#[test]
fn what_cannot_be_meant_is_refused_by_name() {
    let said = refused(j!({"role": "function", "name": "f", "content": "3"}));
    assert!(said.contains("the role `function` is not supported"), "{said}");
    let said = refused(j!({"role": "narrator", "content": "3"}));
    assert!(said.contains("the role `narrator` is unknown"), "{said}");
    let call = j!({"name": "f", "arguments": "{}"});
    let said = refused(j!({"role": "assistant", "content": null, "function_call": call}));
    assert!(said.contains("`function_call` is not supported"), "{said}");
    let said = refused(j!({"role": "assistant", "content": null, "audio": {"id": "audio_1"}}));
    assert!(said.contains("`audio` is not supported"), "{said}");
    let custom = j!({"id": "1", "type": "custom", "custom": {"name": "f", "input": "x"}});
    let said = refused(j!({"role": "assistant", "content": null, "tool_calls": [custom]}));
    assert!(said.contains("tool calls of type `custom` are not supported"), "{said}");
}

/// Templates without the role `developer` would drop the text of developers.
#[test]
fn a_developer_is_the_system_where_a_template_knows_no_other() {
    let messages: Vec<Message> = serde_json::from_value(j!([
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    ]))
    .unwrap();
    let render = |template: &ChatTemplate| {
        let input = ChatInput { messages: &messages, ..Default::default() };
        template.render(&input).unwrap().text()
    };
    let text = render(&qwen3_template());
    assert!(text.starts_with("<|im_start|>system\nBe brief.<|im_end|>"), "{text}");
    let knows = "{% for m in messages %}{% if m.role == 'developer' %}D{% endif %}{% endfor %}";
    assert_eq!(render(&ChatTemplate::new(knows).unwrap()), "D");
}

//! Tools without a place in the template, and continued answers.

use serde_json::json;

use crate::{
    ChatInput, ChatTemplate, Message, OutputEvent, OutputFormat, OutputParser, TextError, ToolCall,
    ToolSchema, ToolStyle,
};

const PLAIN: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}\
{% if add_generation_prompt %}<assistant>{% endif %}";

/// Like [`PLAIN`], but refuses system messages.
const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
<{{ m.role }}>{{ m.content }}\n{% endfor %}";

fn tools() -> Vec<ToolSchema> {
    vec![ToolSchema::function("weather", "d", json!({ "type": "object" }))]
}

fn talk() -> Vec<Message> {
    let call = ToolCall {
        id: "call_0".into(),
        name: "weather".into(),
        arguments: json!({ "city": "Ulm" }),
    };
    vec![
        Message::user("How is it?"),
        Message { tool_calls: vec![call], content: None, ..Message::assistant("") },
        Message::tool("call_0", "fair"),
        Message::user("And now?"),
    ]
}

#[test]
fn tools_become_text_where_the_template_has_no_place_for_them() {
    let (messages, tools) = (talk(), tools());
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        tool_style: ToolStyle::Generic,
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let text = ChatTemplate::new(PLAIN).unwrap().render(&input).unwrap().text();
    assert!(text.starts_with("<system># Tools\n"), "{text}");
    assert!(text.contains(
        "{\"name\":\"weather\",\"description\":\"d\",\"parameters\":{\"type\":\"object\"}}\n"
    ));
    let rest = "<user>How is it?\n<assistant><tool_call>\n{\"name\":\"weather\",\"arguments\":{\"city\":\"Ulm\"}}\n\
        </tool_call>\n<user><tool_response>\nfair\n</tool_response>\n\nAnd now?\n<assistant>";
    assert!(text.ends_with(rest), "{text}");
    let text = ChatTemplate::new(STRICT).unwrap().render(&input).unwrap().text();
    assert!(text.starts_with("<user># Tools\n"), "{text}");
    let text = ChatTemplate::new(PLAIN).unwrap();
    let text = text.render(&ChatInput { tools: &[], ..input.clone() }).unwrap().text();
    assert_eq!(text, rest, "calls of earlier turns stay without tools");
    let native = ChatInput { tool_style: ToolStyle::Native, ..input };
    let text = ChatTemplate::new(PLAIN).unwrap().render(&native).unwrap().text();
    assert!(text.starts_with("<user>How is it?\n"), "{text}");
}

#[test]
fn a_template_with_a_place_for_tools_keeps_it() {
    let template =
        ChatTemplate::new("{{ tools | length }}{% for m in messages %}{{ m.content }}{% endfor %}");
    let (messages, tools) = (vec![Message::user("x")], tools());
    let input = ChatInput {
        messages: &messages,
        tools: &tools,
        tool_style: ToolStyle::Generic,
        ..ChatInput::default()
    };
    let template = template.unwrap();
    assert_eq!(template.render(&input).unwrap().text(), "1x");
    let native = ChatInput { tool_style: ToolStyle::Native, ..input };
    assert_eq!(template.render(&native).unwrap().text(), "1x");
}

#[test]
fn described_calls_are_parsed() {
    let (template, tools) = (ChatTemplate::new(PLAIN).unwrap(), tools());
    let format = template.output_format("<assistant>", &tools, ToolStyle::Generic);
    let mut parser = OutputParser::new(format, 0);
    let text = "Well. <tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Ulm\"}}\n</tool_call>";
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let call = events.iter().find_map(|event| match event {
        OutputEvent::ToolCall(call) => Some((call.name.as_str(), call.arguments.clone())),
        _ => None,
    });
    assert_eq!(call, Some(("weather", json!({ "city": "Ulm" }))));
    // Without tools the tags are text.
    let plain = template.output_format("<assistant>", &[], ToolStyle::Generic);
    assert_eq!(plain, OutputFormat::detect(PLAIN, "<assistant>", &[]));
}

#[test]
fn an_answer_is_continued_where_it_ends() {
    let template = ChatTemplate::new(
        "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</>{% endfor %}\
         {% if add_generation_prompt %}<assistant>{% endif %}",
    );
    let template = template.unwrap();
    let messages = vec![Message::user("Count."), Message::assistant("One, two, ")];
    let input = ChatInput {
        messages: &messages,
        add_generation_prompt: true,
        continue_final_message: true,
        ..ChatInput::default()
    };
    let text = template.render(&input).unwrap().text();
    assert_eq!(text, "<user>Count.</><assistant>One, two, ");
    let user = [Message::user("x")];
    for messages in [&user[..], &[], &talk()[..2]] {
        let error = template.render(&ChatInput { messages, ..input.clone() }).unwrap_err();
        assert!(matches!(error, TextError::InvalidOption { .. }), "{error}");
    }
    let deaf = ChatTemplate::new("{{ messages[0].content }}").unwrap();
    assert!(matches!(deaf.render(&input), Err(TextError::InvalidOption { .. })));
}

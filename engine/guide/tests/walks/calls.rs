//! Tool calls of all forms, parsed back by the output parser.

use nestling_guide::{GuideError, ToolChoice, ToolGuide};
use nestling_runtime::ConstraintError;
use nestling_text::{OutputEvent, OutputFormat, OutputParser, ToolCall, ToolSchema};
use serde_json::json;

use super::walker::*;

fn tools() -> Vec<ToolSchema> {
    let weather = json!({
        "type": "object", "required": ["city", "days"], "additionalProperties": false,
        "properties": {
            "city": { "type": "string", "maxLength": 12 },
            "days": { "type": "integer", "minimum": 1, "maximum": 14 },
        },
    });
    let sum = json!({
        "properties": { "terms": { "type": "array", "items": { "type": "number" }, "maxItems": 3 } },
        "additionalProperties": false,
    });
    vec![
        ToolSchema::function("weather", "the weather", weather),
        ToolSchema::function("sum", "a sum", sum),
        ToolSchema::function("now", "the time", json!(null)),
    ]
}

/// Parts of model templates that identify their form of calls.
const TEMPLATES: [(&str, &[&str]); 7] = [
    ("<think></think><tool_call>", &["<tool_call>", "</tool_call>"]),
    ("<tool_calls> <|extra_0|>", &["<tool_calls>"]),
    ("<|tool_list_start|>", &["<|tool_call_start|>", "<|tool_call_end|>"]),
    ("<｜tool▁call▁begin｜>", &["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"]),
    (
        "<|tool_call_begin|><|tool_call_argument_begin|>",
        &["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    ),
    (
        "<|tool_call:begin|><|think|>",
        &["<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"],
    ),
    (
        "<|start|><|channel|><|message|>",
        &["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>"],
    ),
];

fn calls(format: &OutputFormat, text: &str) -> (Vec<ToolCall>, String) {
    let mut parser = OutputParser::new(format.clone(), 0);
    let mut events = parser.push(text);
    events.extend(parser.finish());
    let (mut calls, mut rest) = (vec![], String::new());
    for event in events {
        match event {
            OutputEvent::ToolCall(call) => calls.push(call),
            OutputEvent::Text(text) => rest += &text,
            _ => {}
        }
    }
    (calls, rest)
}

fn check(call: &ToolCall) {
    let tools = tools();
    let tool = tools.iter().find(|tool| tool.name() == Some(&call.name)).unwrap();
    let schema = tool.0["function"]["parameters"].clone();
    assert!(call.arguments.is_object());
    if !schema.is_null() {
        assert!(jsonschema::draft202012::is_valid(&schema, &call.arguments), "{call:?}");
    }
}

#[test]
fn forced_calls_are_calls_in_every_form() {
    for (template, markers) in TEMPLATES {
        // Markers that are tokens, and markers that are spelled as text.
        for special in [markers, &[]] {
            let tokenizer = tokenizer(special, &[]);
            let format = OutputFormat::detect(template, "<|start|>assistant", &tools());
            let (mut whole, mut several) = (0, 0);
            for seed in 0..24 {
                let named = seed % 2 == 0;
                let choice = match named {
                    true => ToolChoice::Named("weather".into()),
                    false => ToolChoice::Required,
                };
                let guide = ToolGuide::new(&tools(), choice).unwrap();
                let walk = walk(&guide, &tokenizer, &format, seed, 600);
                let walk = walk.unwrap_or_else(|error| panic!("{template}: {error}"));
                let Walk::Whole(text) = walk else { continue };
                let (calls, rest) = calls(&format, &text);
                assert!(!calls.is_empty() && rest.is_empty(), "{template}: {text:?} left {rest:?}");
                calls.iter().for_each(check);
                assert!(!named || calls.len() == 1 && calls[0].name == "weather", "{text:?}");
                whole += 1;
                several += usize::from(calls.len() > 1);
            }
            assert!(whole > 8, "{template}: {whole}");
            println!("{template}: {whole} whole, {several} of several calls");
        }
    }
}

#[test]
fn forms_that_are_no_json_are_an_error() {
    let tokenizer = tokenizer(&[], &[]);
    let templates = [
        "<arg_key><tool_call>",
        "<function=<tool_call>",
        "<minimax:tool_call>",
        "<|channel><|tool_call>",
    ];
    for template in templates {
        let format = OutputFormat::detect(template, "", &tools());
        let guide = ToolGuide::new(&tools(), ToolChoice::Required).unwrap();
        let error = walk(&guide, &tokenizer, &format, 0, 10).unwrap_err();
        assert!(matches!(error, ConstraintError::Unavailable { .. }), "{error}");
    }
    let guide = ToolGuide::new(&tools(), ToolChoice::Auto).unwrap();
    assert!(walk(&guide, &tokenizer, &OutputFormat::plain(), 0, 10).is_err(), "no tools there");
}

#[test]
fn tools_that_cannot_be_kept_to_are_refused() {
    let refused =
        |tools: &[ToolSchema], choice| ToolGuide::new(tools, choice).map(drop).unwrap_err();
    assert!(matches!(refused(&[], ToolChoice::Auto), GuideError::Invalid { .. }));
    assert!(matches!(refused(&tools(), ToolChoice::None), GuideError::Invalid { .. }));
    let absent = ToolChoice::Named("absent".into());
    assert!(matches!(refused(&tools(), absent), GuideError::Invalid { .. }));
    let quoted = [ToolSchema::function("a \"b\"", "", json!({}))];
    assert!(matches!(refused(&quoted, ToolChoice::Auto), GuideError::Invalid { .. }));
    let strange = [ToolSchema::function("f", "", json!({ "$recursiveRef": "#" }))];
    assert!(refused(&strange, ToolChoice::Auto).to_string().contains("$recursiveRef"));
    assert_eq!(ToolChoice::None.tools(&tools()), &[]);
    assert_eq!(ToolChoice::Auto.tools(&tools()).len(), 3);
}

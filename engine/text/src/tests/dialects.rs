//! Output of all supported dialects, checked against the published templates.

use std::path::Path;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::json as j;

use super::output::{call, check_cuts, events, reasoning, text, tools};
use super::*;

/// Reads one of the published templates from the test data of the template crate.
fn published(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../template/tests/data/published");
    std::fs::read_to_string(folder.join(format!("{name}.jinja"))).unwrap()
}

fn format_of(name: &str, prompt: &str) -> OutputFormat {
    OutputFormat::detect(&published(name), prompt, &tools())
}

/// A call with an id as Kimi's template numbers it.
fn kimi_call(index: usize, name: &str, arguments: Value) -> OutputEvent {
    let id = format!("functions.{name}:{index}");
    OutputEvent::ToolCall(ToolCall { id, name: name.into(), arguments })
}

/// Two tools; one takes a text, a number and a list.
fn two_tools() -> [ToolSchema; 2] {
    let properties =
        j!({"s": {"type": "string"}, "n": {"type": "integer"}, "l": {"type": "array"}});
    [
        ToolSchema::function("f", "Does.", j!({"type": "object", "properties": properties})),
        ToolSchema::function("g", "Does.", j!({"type": "object", "properties": {}})),
    ]
}

fn arguments() -> Value {
    j!({"s": "5", "n": 5, "l": [1, "a </b>"]})
}

/// Parts of a reply that a template renders.
#[derive(Clone, Copy, Debug)]
enum RenderedParts {
    All,
    Words,
    Reasoning,
    Calls,
}

/// Template, its text that ends the response, and the parts it renders of a reply with reasoning, text and
/// two calls.
const TEMPLATES: &[(&str, &str, RenderedParts)] = &[
    ("GLM-4.6", "", RenderedParts::All),
    ("GLM-4.7-Flash", "", RenderedParts::All),
    ("MiniMax-M2", "[e~[\n", RenderedParts::All),
    ("inclusionai-ling-3.0-flash", "<|role_end|>", RenderedParts::All),
    ("Qwen-Qwen3-0.6B", "<|im_end|>\n", RenderedParts::All),
    ("Bielik-11B-v3.0-Instruct", "<|im_end|>\n", RenderedParts::All),
    ("StepFun3.5-Flash", "<|im_end|>\n", RenderedParts::All),
    ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "<|im_end|>\n", RenderedParts::All),
    ("Qwen3-Coder", "<|im_end|>\n", RenderedParts::Words),
    ("ibm-granite-granite-4.0", "<|end_of_text|>\n", RenderedParts::Words),
    ("moonshotai-Kimi-K2", "<|im_end|>", RenderedParts::Words),
    ("deepseek-ai-DeepSeek-V3.1", "<｜end▁of▁sentence｜>", RenderedParts::Words),
    ("vllm-DeepSeek-R1-tool_use", "<｜end▁of▁sentence｜>", RenderedParts::Words),
    ("vllm-Hunyuan-A13B-tool_use", "<|eos|>", RenderedParts::Words),
    ("LFM2-8B-A1B", "<|im_end|>\n", RenderedParts::Words),
    ("LFM2.5-Instruct", "<|im_end|>\n", RenderedParts::Words),
    ("LFM2.5-8B-A1B", "<|im_end|>\n", RenderedParts::All),
    ("upstage-Solar-Open-100B", "", RenderedParts::Reasoning),
    ("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_end|>\n", RenderedParts::Calls),
];

#[test]
fn what_a_template_writes_is_read_again() {
    for (name, end, kept) in TEMPLATES {
        let source = published(name);
        let template = ChatTemplate::new(&source).unwrap();
        let made = if name.contains("Kimi") { kimi_call } else { call };
        let calls = [made(0, "f", arguments()), made(1, "g", j!({}))];
        let of_event = |event: &OutputEvent| match event {
            OutputEvent::ToolCall(call) => call.clone(),
            other => panic!("{other:?}"),
        };
        let reply = Message {
            reasoning: Some("Hm.\n\nSo.".into()),
            tool_calls: calls.iter().map(of_event).collect(),
            ..Message::assistant("I look.")
        };
        let (messages, tools) = ([Message::user("?"), reply], two_tools());
        let render = |messages: &[Message], add_generation_prompt: bool| {
            let now = Some(TemplateTime::from_unix_seconds(0));
            let input = ChatInput {
                messages,
                tools: &tools,
                add_generation_prompt,
                now,
                ..Default::default()
            };
            template.render(&input).unwrap_or_else(|error| panic!("{name}: {error}")).text()
        };
        let prompt = render(&messages[..1], true);
        let output = render(&messages, false);
        let output = output.strip_prefix(&prompt).unwrap_or_else(|| panic!("{name}: {output}"));
        let output = output.strip_suffix(end).unwrap_or_else(|| panic!("{name}: {output}"));
        let mut wanted = vec![];
        wanted.extend(
            matches!(kept, RenderedParts::All | RenderedParts::Reasoning)
                .then(|| reasoning("Hm.\n\nSo.")),
        );
        wanted.extend(
            matches!(kept, RenderedParts::All | RenderedParts::Words).then(|| text("I look.")),
        );
        wanted.extend(calls);
        check_cuts(&OutputFormat::detect(&source, &prompt, &tools), output, &wanted);
    }
}

#[test]
fn kimi_numbers_its_calls_through_the_conversation() {
    let format = format_of("Kimi-K2-Thinking", "<|im_assistant|>assistant<|im_middle|>");
    let output = "<think>Hm.</think>I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0\
        <|tool_call_argument_begin|>{\"a\": \"<b>\"}<|tool_call_end|><|tool_call_begin|> g.h:1 \
        <|tool_call_argument_begin|> {} <|tool_call_end|><|tool_calls_section_end|>";
    let wanted = [
        reasoning("Hm."),
        text("I look."),
        kimi_call(0, "f", j!({"a": "<b>"})),
        kimi_call(1, "g.h", j!({})),
    ];
    check_cuts(&format, output, &wanted);
    let mut parser = OutputParser::new(format.clone(), 7);
    let more = parser
        .push("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>");
    let more = output::whole_calls(more);
    assert_eq!(more, [kimi_call(7, "f", j!({}))]);
    let OutputEvent::ToolCall(last) = more[0].clone() else { panic!("{more:?}") };
    let said = Message { tool_calls: vec![last], ..Message::assistant("") };
    assert_eq!(ToolCall::next_number(&[said]), 8);
    for bad in [
        "f<|tool_call_argument_begin|>{}",
        "f:0{}",
        "f:0<|tool_call_argument_begin|>[]",
        "f:<|tool_call_argument_begin|>{}",
    ] {
        let bad = format!("<|tool_call_begin|>{bad}<|tool_call_end|>");
        check_cuts(&format, &bad, &[text(&bad)]);
    }
    let unfinished = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>";
    check_cuts(&format, unfinished, &[text(unfinished)]);
    let broken = format!("{unfinished} {{ \"a\" : ");
    check_cuts(&format, &broken, &[kimi_call(0, "f", j!("{\"a\":"))]);
}

/// Kimi-K2-Thinking may continue with calls without closing its reasoning.
#[test]
fn kimi_calls_within_reasoning_are_calls() {
    let format = format_of("Kimi-K2-Thinking", "<|im_assistant|>assistant<|im_middle|><think>");
    let one = "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let section = format!("<|tool_calls_section_begin|>{one}<|tool_calls_section_end|>");
    let wanted = [reasoning("Hm."), kimi_call(0, "f", j!({}))];
    for output in [
        format!("Hm.{section}"),
        format!("Hm.\n{one}"),
        format!("Hm.{section}</think>"),
        format!("Hm.</think>{section}"),
    ] {
        check_cuts(&format, &output, &wanted);
    }
    let wanted = [reasoning("Hm."), kimi_call(0, "f", j!({})), text("Then.")];
    check_cuts(&format, &format!("Hm.{one}</think>Then."), &wanted);
    // Text that is not a valid call remains reasoning.
    let bad = "<|tool_call_begin|>f<|tool_call_end|>";
    let wanted = [reasoning(&format!("Hm.{bad} So.")), text("I look.")];
    check_cuts(&format, &format!("Hm.{bad} So.</think>I look."), &wanted);
    let unfinished = "Hm.<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>";
    check_cuts(&format, unfinished, &[reasoning(unfinished)]);
    let broken = format!("{unfinished}{{");
    check_cuts(&format, &broken, &[reasoning("Hm."), kimi_call(0, "f", j!("{"))]);
    // Tags in reasoning about calls do not open a call.
    let format = format_of("GLM-4.6", "<|assistant|>\n<think>");
    let output = "I write <tool_call>f\n</tool_call>.</think>Yes.";
    let wanted = [reasoning("I write <tool_call>f\n</tool_call>."), text("Yes.")];
    check_cuts(&format, output, &wanted);
}

#[test]
fn minimax_writes_all_calls_between_two_tags() {
    let format = format_of("MiniMax-M2", "]~b]ai\n<think>\n");
    let output = "Hm.\n</think>\n\nI look.\n<minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"a\">two\n\
        lines < 3 </parameter>\n<parameter name=\"b\">{\"c\": [1]}</parameter></invoke><invoke name='g'>\
        </invoke>\n</minimax:tool_call>";
    let found = j!({"a": "two\nlines < 3 ", "b": {"c": [1]}});
    let calls = [call(0, "f", found), call(1, "g", j!({}))];
    let wanted: Vec<_> = [reasoning("Hm."), text("I look.")].into_iter().chain(calls).collect();
    check_cuts(&format, output, &wanted);
    for bad in
        ["", "<invoke name=\"\"></invoke>", "<invoke name=\"f\"", "f<invoke name=\"f\"></invoke>"]
    {
        let bad = format!("<minimax:tool_call>{bad}</minimax:tool_call>");
        let said = format!("</think>{bad}");
        check_cuts(&format, &said, &[text(&bad)]);
    }
    for (broken, told) in [
        ("", "{"),
        ("1</invoke>", "{1</invoke>"),
        ("<parameter name=\"a\">1</invoke>", "{<parameter name=\"a\">1</invoke>"),
        ("<parameter name=\"a\">1</parameter>2", "{\"a\":12"),
    ] {
        let said =
            format!("</think><minimax:tool_call><invoke name=\"f\">{broken}</minimax:tool_call>");
        check_cuts(&format, &said, &[call(0, "f", j!(told))]);
    }
    let said = "</think><minimax:tool_call><invoke name=\"f\"></invoke> and on</minimax:tool_call>";
    check_cuts(&format, said, &[call(0, "f", j!({})), text("and on")]);
}

#[test]
fn hunyuan_puts_the_answer_between_tags() {
    let format = format_of("vllm-Hunyuan-A13B-tool_use", "<|extra_0|>");
    let said = "<think>\nHm.\n</think>\n<answer>\nThe tag <answer> opens.\n</answer>";
    check_cuts(&format, said, &[reasoning("Hm."), text("The tag <answer> opens.")]);
    let called = "<think>\n\n</think>\n<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\"}]\
        </tool_calls>";
    check_cuts(&format, called, &[call(0, "f", j!({"a": 1})), call(1, "g", j!({}))]);
    // Tags within text, and a truncated response.
    check_cuts(&format, "Say <answer>1</answer>.", &[text("Say <answer>1</answer>.")]);
    check_cuts(&format, "<answer>\nFour", &[text("Four")]);
    for bad in ["[]", "{\"name\": \"f\"}", "[{\"name\": \"f\"}, 1]", "[{\"arguments\": {}}]", ""] {
        let bad = format!("<tool_calls>{bad}</tool_calls>");
        check_cuts(&format, &bad, &[text(&bad)]);
    }
}

#[test]
fn lfm2_calls_functions_as_python_does() {
    for name in ["LFM2-8B-A1B", "LFM2.5-Instruct", "LFM2.5-8B-A1B"] {
        let format = format_of(name, "<|im_start|>assistant\n");
        let said = "I look.<|tool_call_start|>[f(a='x', b=[1, None]), g()]<|tool_call_end|>So.";
        let wanted = [
            text("I look."),
            call(0, "f", j!({ "a": "x", "b": [1, null] })),
            call(1, "g", j!({})),
            text("So."),
        ];
        check_cuts(&format, said, &wanted);
        // With "force json schema." in the system message.
        let json =
            "<|tool_call_start|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]<|tool_call_end|>";
        check_cuts(&format, json, &[call(0, "f", j!({ "a": 1 }))]);
        for bad in ["[]", "[f(1)]", "[f(a=1)", "f", ""] {
            let bad = format!("<|tool_call_start|>{bad}<|tool_call_end|>");
            check_cuts(&format, &bad, &[text(&bad)]);
        }
        // Without tools, the tags are text.
        let plain = OutputFormat::detect(&published(name), "", &[]);
        check_cuts(&plain, json, &[text(json)]);
    }
}

/// Follows vLLM's parsers for the model: `</think>`, then calls or `<response>`.
#[test]
fn ernie_puts_the_answer_between_tags() {
    let template = "<|im_start|><think></think><response></response><tool_call></tool_call>";
    let format = OutputFormat::detect(template, "<|im_start|>assistant\n<think>\n", &tools());
    let said = "Hm.\n</think>\n\n\n<response>\nFour.\n</response>\n";
    check_cuts(&format, said, &[reasoning("Hm."), text("Four.")]);
    let called =
        "Hm.\n</think>\n\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n";
    check_cuts(&format, called, &[reasoning("Hm."), call(0, "f", j!({}))]);
}

#[test]
fn solar_says_what_each_message_is() {
    let format = format_of("upstage-Solar-Open-100B", "<|begin|>assistant");
    let said = "<|think|>Hm.<|end|><|begin|>assistant<|content|>Four <|tool_calls.<|end|>";
    check_cuts(&format, said, &[reasoning("Hm."), text("Four <|tool_calls.")]);
    let mut parser = OutputParser::new(format.clone(), 0);
    parser.push(said);
    assert!(parser.has_ended());
    let called = "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>\
        f<|tool_call:args|>{\"a\": 1}<|tool_call:end|><|tool_call:begin|>x<|tool_call:name|>g\
        <|tool_call:args|>{}<|tool_call:end|><|calls|>";
    let wanted = [reasoning("Hm."), call(0, "f", j!({"a": 1})), call(1, "g", j!({}))];
    check_cuts(&format, called, &wanted);
    for bad in ["f", "x<|tool_call:name|>f", "x<|tool_call:name|>f<|tool_call:args|>1"] {
        let bad = format!("<|tool_call:begin|>{bad}<|tool_call:end|>");
        check_cuts(&format, &bad, &[text(&bad)]);
    }
}

/// Tags within calls are tokens of some vocabularies and must reach the parser.
#[test]
fn tags_within_calls_are_markers() {
    let has = |name: &str, tag: &str| format_of(name, "").marker_texts().contains(&tag);
    assert!(has("GLM-4.6", "<arg_key>") && has("GLM-4.6", "</arg_value>"));
    assert!(has("moonshotai-Kimi-K2", "<|tool_call_argument_begin|>"));
    assert!(has("moonshotai-Kimi-K2", "<|tool_calls_section_end|>"));
    assert!(has("deepseek-ai-DeepSeek-V3.1", "<｜tool▁sep｜>"));
    assert!(has("upstage-Solar-Open-100B", "<|tool_call:args|>"));
    assert!(!has("GLM-4.6", "<|tool_call_begin|>"));
    let without = OutputFormat::detect(&published("moonshotai-Kimi-K2"), "", &[]);
    assert_eq!(without.marker_texts(), Vec::<&str>::new());
}

/// Properties of a tool, with all kinds of types.
fn properties() -> Value {
    j!({
        "text": {"type": "string"},
        "maybe": {"type": ["string", "null"]},
        "choice": {"enum": ["1", "2", null]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "both": {"type": ["string", "integer"]},
        "number": {"type": "number"},
        "mixed": {"enum": ["1", 2]},
        "unknown": {"$ref": "#/$defs/a"},
        // Two forms of `Union[str, Model]` by pydantic: by reference and inline.
        "model": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Model"}], "title": "Model"},
        "any": {"oneOf": [{"type": "string"}, {}]},
        "inline": {"anyOf": [{"type": "string"}, {"properties": {"a": {"type": "integer"}}}]},
        "whole": {"anyOf": [{"type": "string"}, {"allOf": [{"$ref": "#/$defs/Model"}]}]},
        // Alternatives can only narrow the type beside them.
        "narrow": {"type": "string", "anyOf": [{"minLength": 3}, {"pattern": "^[0-9]$"}]},
    })
}

/// The schemas of tools decide which arguments are text, as in vLLM's and SGLang's parsers of GLM and
/// MiniMax.
#[test]
fn untyped_arguments_are_what_the_schema_says() {
    let parameters = j!({"type": "object", "properties": properties()});
    let tools =
        [ToolSchema::function("f", "Does.", parameters), ToolSchema::function("g", "", j!(1))];
    let tests = [
        ("text", "5", j!("5")),
        ("text", "null", j!("null")),
        ("text", "{\"a\": 1}", j!("{\"a\": 1}")),
        ("text", "\"quoted\"", j!("\"quoted\"")),
        ("text", "True", j!("True")),
        ("maybe", "5", j!("5")),
        ("maybe", "null", j!(null)),
        ("choice", "1", j!("1")),
        ("choice", "null", j!(null)),
        ("either", "[1]", j!("[1]")),
        ("both", "5", j!(5)),
        ("both", "five", j!("five")),
        ("number", "2.50", j!(2.5)),
        ("number", "many", j!("many")),
        ("mixed", "2", j!(2)),
        ("unknown", "{\"a\": 1}", j!({"a": 1})),
        ("model", "{\"a\": 1}", j!({"a": 1})),
        ("model", "a name", j!("a name")),
        ("any", "[1]", j!([1])),
        ("inline", "{\"a\": 1}", j!({"a": 1})),
        ("whole", "{\"a\": 1}", j!({"a": 1})),
        ("narrow", "5", j!("5")),
        ("absent", "False", j!(false)),
        ("absent", "None", j!(null)),
        ("absent", "a, b", j!("a, b")),
    ];
    let glm = |tool: &str, key: &str, value: &str| {
        format!(
            "</think><tool_call>{tool}\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
        )
    };
    let coder = |tool: &str, key: &str, value: &str| {
        format!(
            "</think><tool_call>\n<function={tool}>\n<parameter={key}>\n{value}\n</parameter>\n</function>\n</tool_call>"
        )
    };
    let minimax = |tool: &str, key: &str, value: &str| {
        format!(
            "</think><minimax:tool_call><invoke name=\"{tool}\"><parameter name=\"{key}\">{value}</parameter></invoke></minimax:tool_call>"
        )
    };
    type CallWriter<'a> = &'a dyn Fn(&str, &str, &str) -> String;
    let forms: [(&str, CallWriter<'_>); 3] =
        [("GLM-4.6", &glm), ("Qwen3.5-4B", &coder), ("MiniMax-M2", &minimax)];
    for (name, written) in forms {
        let format = OutputFormat::detect(&published(name), "<think>\n", &tools);
        for (key, value, wanted) in &tests {
            let said = written("f", key, value);
            assert_eq!(events(&format, &[&said]), [call(0, "f", j!({*key: wanted}))], "{said}");
        }
        let said = written("g", "text", "5");
        assert_eq!(events(&format, &[&said]), [call(0, "g", j!({"text": 5}))], "{said}");
    }
}

/// Schemas of tools are untrusted input too.
#[test]
fn a_schema_of_deep_alternatives_says_nothing() {
    let mut schema = j!({"type": "string"});
    for _ in 0..100 {
        schema = j!({"anyOf": [schema]});
    }
    let parameters = j!({"properties": {"a": schema}});
    let tools = [ToolSchema::function("f", "", parameters)];
    let format = OutputFormat::detect(&published("GLM-4.6"), "", &tools);
    let said = "<tool_call>f<arg_key>a</arg_key><arg_value>5</arg_value></tool_call>";
    assert_eq!(events(&format, &[said]), [call(0, "f", j!({"a": 5}))]);
}

#[test]
fn a_call_of_many_arguments_is_read_in_time_that_grows_with_it() {
    let format = format_of("GLM-4.6", "");
    let argument = |n: usize| format!("<arg_key>a{n}</arg_key><arg_value>1</arg_value>");
    let arguments: String = (0..10_000).map(argument).collect();
    let said = format!("<tool_call>f{arguments}{}</tool_call>", " ".repeat(400_000));
    let start = Instant::now();
    let wanted: Value = (0..10_000).map(|n| (format!("a{n}"), j!(1))).collect();
    assert_eq!(events(&format, &[&said]), [call(0, "f", wanted)]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

/// Fragments of random output. The events must not depend on how it is split.
const WORDS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_calls>",
    "</tool_calls>",
    "<answer>",
    "</answer>",
    "<arg_key>a</arg_key>",
    "<arg_value>1</arg_value>",
    "<function=f>",
    "</function>",
    "<parameter=a>\n1\n</parameter>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"f\">",
    "<parameter name=\"a\">1</parameter>",
    "</invoke>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "functions.f:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "function<｜tool▁sep｜>f\n```json\n{}\n```",
    "f<｜tool▁sep｜>{}",
    "<｜tool▁call▁end｜>",
    "<|tool_call:begin|>",
    "x<|tool_call:name|>f<|tool_call:args|>{}",
    "<|tool_call:end|>",
    "<|tool_calls|>",
    "<|think|>",
    "<|content|>",
    "<|begin|>assistant",
    "<|end|>",
    "<|calls|>",
    "{\"name\": \"f\"}",
    "[{\"name\": \"f\"}]",
    "{\"name\": \"f\", \"arguments\": ",
    "[",
    ", ",
    "}",
    "{\"a\": \"\\u00e9\\/\", \"b\": [1.50, -0, true]}",
    "call:f",
    "<|tool_call>",
    "<tool_call|>",
    "{}",
    "f",
    "\n",
    "\n\n",
    " é ",
    "<",
    "<|tool",
    "</",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn the_cuts_of_an_answer_change_nothing(
        template in prop::sample::select(TEMPLATES),
        words in prop::collection::vec(prop::sample::select(WORDS), 0..14),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        opened in any::<bool>(),
    ) {
        let said = words.concat();
        let format = format_of(template.0, if opened { "<think>" } else { "" });
        let mut at: Vec<usize> =
            cuts.iter().map(|cut| said.floor_char_boundary(cut.index(said.len() + 1))).collect();
        at.extend([0, said.len()]);
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|pair| &said[pair[0]..pair[1]]).collect();
        prop_assert_eq!(events(&format, &pieces), events(&format, &[&said]), "{:?}", pieces);
    }
}

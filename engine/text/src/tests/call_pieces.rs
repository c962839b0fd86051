//! Streaming of tool calls in all dialects.

use serde_json::json as j;

use super::output::{call, check_cuts, events, tools, whole_calls};
use super::*;

/// Text that identifies a dialect, and a call of `f` with the arguments
/// `{"a":1.5,"b":"é/\"<","c":[{"d":null}]}` in it.
const CALLS: &[(&str, &str)] = &[
    (
        "<tool_call>",
        "<tool_call>\n{\"id\": 3, \"name\": \"f\", \"arguments\": { \"a\" : 1.50, \"b\": \
        \"\\u00e9\\/\\\"<\", \"c\": [{\"d\": null}]}}\n</tool_call>",
    ),
    (
        "<tool_calls><|extra_0|>",
        "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": 15e-1, \"b\": \"é/\\\"\
        \\u003c\", \"c\": [{\"d\": null } ] } }]</tool_calls>",
    ),
    (
        "<tool_call><arg_key>",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1.5</arg_value>\n<arg_key>b</arg_key>\
        <arg_value>é/\"<</arg_value><arg_key>c</arg_key><arg_value>[{\"d\": null}]</arg_value>\n</tool_call>",
    ),
    (
        "<tool_call><function=",
        "<tool_call>\n<function=f>\n<parameter=a>\n1.5\n</parameter>\n<parameter=b>é/\"<\
        </parameter><parameter=c>\n[{\"d\": null}]\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        "<minimax:tool_call>",
        "<minimax:tool_call><invoke name=\"f\"><parameter name=\"a\">1.5</parameter>\n\
        <parameter name=\"b\">é/\"<</parameter><parameter name=\"c\">[{\"d\": null}]</parameter></invoke>\n\
        </minimax:tool_call>",
    ),
    (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\":1.5,\"b\":\"é/\\\"<\",\"c\":[{\"d\":null}]}\
        <｜tool▁call▁end｜>",
    ),
    (
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\":1.5,\"b\":\"é/\\\"<\",\n\
        \"c\":[ {\"d\":null}]}\n```<｜tool▁call▁end｜>",
    ),
    (
        "<|tool_call:begin|><|think|>",
        "<|tool_call:begin|>x<|tool_call:name|>f<|tool_call:args|>{\"a\":1.5, \
        \"b\":\"é/\\\"<\",\"c\":[{\"d\":null}]}<|tool_call:end|>",
    ),
    (
        "<|channel><|tool_call>",
        "<|tool_call>call:f{a:1.5,b:<|\"|>é/\"<<|\"|>,c:[{d:null}]}<tool_call|>",
    ),
    (
        "<|start|><|channel|><|message|>",
        "<|channel|>commentary to=functions.f json<|message|>{\"a\":1.5, \
        \"b\":\"é\\/\\\"<\",\"c\":[{\"d\":null}]}<|call|>",
    ),
];

fn formats() -> impl Iterator<Item = (OutputFormat, &'static str)> {
    CALLS
        .iter()
        .map(|(marks, said)| (OutputFormat::detect(marks, "<|start|>assistant", &tools()), *said))
}

fn arguments() -> Value {
    j!({"a": 1.5, "b": "é/\"<", "c": [{"d": null}]})
}

#[test]
fn the_pieces_of_a_call_are_the_call_however_it_is_cut() {
    for (format, said) in formats() {
        check_cuts(&format, said, &[call(0, "f", arguments())]);
    }
}

/// Checks the events that were emitted before the last tag of the call.
#[test]
fn a_call_is_told_while_it_comes() {
    for (format, said) in formats() {
        let close = said.rfind('<').unwrap();
        let mut parser = OutputParser::new(format.clone(), 0);
        let told: Vec<OutputEvent> =
            said[..close].chars().flat_map(|c| parser.push(&c.to_string())).collect();
        let start = OutputEvent::ToolCallStart { index: 0, id: "call_0".into(), name: "f".into() };
        assert_eq!(told.first(), Some(&start), "{said}");
        let deltas = told.iter().filter_map(|event| match event {
            OutputEvent::ToolCallArguments { delta, .. } => Some(delta.as_str()),
            _ => None,
        });
        let deltas: Vec<&str> = deltas.collect();
        let wanted = arguments().to_string();
        let is_late =
            matches!(&format, OutputFormat::Tagged(format) if format.call_form == CallForm::Gemma);
        if is_late {
            assert_eq!(deltas, Vec::<&str>::new(), "{said}");
            continue;
        }
        assert!(deltas.len() > 2, "{said}: {deltas:?}");
        let so_far = deltas.concat();
        assert!(
            wanted.starts_with(&so_far) && so_far.len() + 1 >= wanted.len(),
            "{said}: {so_far}"
        );
    }
}

/// Truncates the output at all positions: a started call is emitted as a call, earlier text as text.
#[test]
fn the_call_of_an_answer_that_is_cut_is_one_from_its_start_on() {
    for (format, said) in formats() {
        let (mut began, wanted) = (false, arguments().to_string());
        for (end, _) in said.char_indices().skip(1) {
            let mut parser = OutputParser::new(format.clone(), 0);
            let pushed = parser.push(&said[..end]);
            let starts =
                pushed.iter().any(|event| matches!(event, OutputEvent::ToolCallStart { .. }));
            assert!(starts || !began, "{said} ends at {end}");
            began |= starts;
            let all = whole_calls(pushed.into_iter().chain(parser.finish()).collect());
            let calls = all.iter().filter_map(|event| match event {
                OutputEvent::ToolCall(call) => Some(call),
                _ => None,
            });
            let calls: Vec<_> = calls.collect();
            // A message to a tool counts as a call without arguments until they start.
            let none = calls.iter().filter(|call| call.arguments == j!({})).count();
            assert_eq!(calls.len() - none, usize::from(began), "{said} ends at {end}: {all:?}");
            for call in calls {
                let text = call.arguments_text();
                assert!(
                    text == wanted || text == "{}" || call.arguments.is_string(),
                    "{said}, {end}: {text}"
                );
            }
        }
        assert!(began);
    }
}

#[test]
fn arguments_that_break_off_or_are_none_are_told_as_they_are() {
    let format = OutputFormat::detect("<tool_call>", "", &tools());
    let head = "<tool_call>{\"name\": \"f\", \"arguments\": ";
    for (written, told) in [
        ("{\"a\": 12", "{\"a\":12"),
        ("{\"a\": \"b\\u00", "{\"a\":\"b\\u00"),
        ("{\"a\": tru ]</tool_call>", "{\"a\":tru ]"),
        ("{\"a\": 1e999}}</tool_call>", "{\"a\":1e999}}"),
        ("{\"a\": \"\\ud800\"}}</tool_call>", "{\"a\":\"\\ud800\"}}"),
        ("{\"a\": \"\n\"}}</tool_call>", "{\"a\":\"\n\"}}"),
        ("{\"a\": 1, \"a\": [2", "{\"a\":1, \"a\": [2"),
        ("{\"a\": 1 , \"b\\n", "{\"a\":1, \"b\\n"),
        ("{ , }</tool_call>", "{, }"),
    ] {
        check_cuts(&format, &[head, written].concat(), &[call(0, "f", j!(told))]);
    }
    // The first of two members of the same name was already emitted when the second arrived.
    let twice = "{\"a\": {\"b\": 1, \"\\u0062\": [{\"c\": 2}], \"d\": 3}, \"a\": 4}}</tool_call>";
    let wanted = call(0, "f", j!({"a": {"b": 1, "d": 3}}));
    check_cuts(&format, &[head, twice].concat(), &[wanted]);
    // The arguments are complete, but the object around them is not.
    for behind in ["", "}", "}}", ", \"id\": 1}"] {
        let said = format!("{head}{{}}{behind}</tool_call>");
        let wanted = call(0, "f", j!({}));
        assert_eq!(events(&format, &[&said])[0], wanted, "{said}");
    }
    for (value, told) in [("\"{\\\"a\\\":1}\"", j!("{\"a\":1}")), ("[1, 2]", j!([1, 2]))] {
        let said = format!("{head}{value}}}</tool_call>");
        check_cuts(&format, &said, &[call(0, "f", told)]);
    }
    let late = "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"f\"}</tool_call>";
    check_cuts(&format, late, &[call(0, "f", j!({"a": 1}))]);
}

#[test]
fn a_list_of_calls_is_told_one_by_one() {
    let format = OutputFormat::detect("<tool_calls><|extra_0|>", "", &tools());
    let first = "{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": [2]}";
    let wanted = [call(0, "f", j!({"a": 1})), call(1, "g", j!({}))];
    for second in [
        "{\"name\": \"g\", \"arguments\": {}}",
        "{\"name\": \"g\"}",
        "{\"arguments\": {}, \"name\": \"g\"}",
    ] {
        let said = format!("<tool_calls> [{first} , {second}] </tool_calls>");
        check_cuts(&format, &said, &wanted);
    }
    let first = "{\"name\": \"f\", \"arguments\": {\"a\": 1}}";
    let said = format!("<tool_calls>[{first}, 1]</tool_calls>");
    check_cuts(&format, &said, &[call(0, "f", j!({"a": 1})), output::text(", 1")]);
}

/// A started call ends at the limit; the rest is text.
#[test]
fn a_call_that_is_too_long_ends_at_the_limit() {
    let format = OutputFormat::detect("<tool_call>", "", &tools());
    let long = format!("{{\"a\":\"{}\"}}", "é ".repeat(400_000));
    let said = format!("<tool_call>{{\"name\":\"f\",\"arguments\":{long}}}</tool_call> So.");
    let whole = events(&format, &[&said]);
    let [OutputEvent::ToolCall(told), OutputEvent::Text(rest)] = &whole[..] else {
        panic!("{} events", whole.len());
    };
    let arguments = told.arguments_text();
    assert!(said.ends_with(rest.as_str()) && long.starts_with(&arguments));
    assert!((1 << 20) - arguments.len() < 50, "{}", arguments.len());
    for bytes in [7, 1000, 1 << 20] {
        let mut pieces = Vec::new();
        let mut left = said.as_str();
        while !left.is_empty() {
            let (piece, after) = left.split_at(left.floor_char_boundary(bytes));
            pieces.push(piece);
            left = after;
        }
        assert_eq!(events(&format, &pieces), whole, "{bytes}");
    }
}

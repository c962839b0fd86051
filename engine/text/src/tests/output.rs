use proptest::prelude::*;
use serde_json::json as j;

use super::*;

/// A tool with an empty parameter schema.
pub(super) fn tools() -> Vec<ToolSchema> {
    vec![ToolSchema::function("f", "Does.", j!({}))]
}

fn format(with_tools: bool) -> OutputFormat {
    let template = String::from_utf8(data("qwen3_chat_template.jinja")).unwrap();
    let tools = if with_tools { tools() } else { vec![] };
    OutputFormat::detect(&template, "<|im_start|>assistant\n", &tools)
}

/// Events with adjacent chunks of one kind joined. The start and argument events of calls are checked and
/// dropped.
pub(super) fn events(format: &OutputFormat, pieces: &[&str]) -> Vec<OutputEvent> {
    let mut parser = OutputParser::new(format.clone(), 0);
    let mut all: Vec<OutputEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
    all.extend(parser.finish());
    let mut out: Vec<OutputEvent> = Vec::new();
    for event in whole_calls(all) {
        match (out.last_mut(), event) {
            (Some(OutputEvent::Text(last)), OutputEvent::Text(more)) => last.push_str(&more),
            (Some(OutputEvent::Reasoning(last)), OutputEvent::Reasoning(more)) => {
                last.push_str(&more);
            }
            (_, event) => out.push(event),
        }
    }
    out
}

/// Drops the start and argument events of calls, after checking that they agree with the complete call.
pub(super) fn whole_calls(events: Vec<OutputEvent>) -> Vec<OutputEvent> {
    let (mut index, mut begun, mut out) = (0, None, Vec::new());
    for event in events {
        match (event, &mut begun) {
            (OutputEvent::ToolCallStart { index: found, id, name }, None) => {
                assert_eq!(found, index);
                begun = Some((id, name, String::new()));
            }
            (OutputEvent::ToolCallArguments { index: found, delta }, Some((_, _, arguments))) => {
                assert_eq!(found, index);
                assert!(!delta.is_empty());
                arguments.push_str(&delta);
            }
            (OutputEvent::ToolCall(call), Some(_)) => {
                let whole = (call.id.clone(), call.name.clone(), call.arguments_text());
                assert_eq!(begun.take(), Some(whole));
                index += 1;
                out.push(OutputEvent::ToolCall(call));
            }
            (event @ (OutputEvent::Text(_) | OutputEvent::Reasoning(_)), None) => out.push(event),
            (event, begun) => panic!("{event:?} after {begun:?}"),
        }
    }
    assert_eq!(begun, None);
    out
}

pub(super) fn text(words: &str) -> OutputEvent {
    OutputEvent::Text(words.into())
}

pub(super) fn reasoning(words: &str) -> OutputEvent {
    OutputEvent::Reasoning(words.into())
}

pub(super) fn call(index: usize, name: &str, arguments: Value) -> OutputEvent {
    OutputEvent::ToolCall(ToolCall { id: format!("call_{index}"), name: name.into(), arguments })
}

/// Checks that the events are the same for the whole output, for each split into two chunks, and for single
/// characters.
pub(super) fn check_cuts(format: &OutputFormat, output: &str, wanted: &[OutputEvent]) {
    assert_eq!(events(format, &[output]), wanted, "{output}");
    let single: Vec<String> = output.chars().map(String::from).collect();
    let single: Vec<&str> = single.iter().map(String::as_str).collect();
    assert_eq!(events(format, &single), wanted, "{output}, by characters");
    for (cut, _) in output.char_indices() {
        let pieces = [&output[..cut], &output[cut..]];
        assert_eq!(events(format, &pieces), wanted, "{output}, cut at {cut}");
    }
}

const FULL: &str = "<think>\nLet me\n\nsee: 1 < 2.\n</think>\n\nI look.\n\
    <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"</think>\", \"b\": [1]}}\n</tool_call>\n\
    <tool_call>\n{\"name\": \"now\"}\n</tool_call>";

fn full_events() -> Vec<OutputEvent> {
    vec![
        reasoning("Let me\n\nsee: 1 < 2."),
        text("I look."),
        call(0, "add", serde_json::json!({"a": "</think>", "b": [1]})),
        call(1, "now", serde_json::json!({})),
    ]
}

#[test]
fn an_answer_falls_into_its_parts_wherever_it_is_cut() {
    check_cuts(&format(true), FULL, &full_events());
}

#[test]
fn plain_text_passes_unchanged() {
    let tricky = "\n\n a < b, <thin ice>, <tool_cal> \n\n";
    assert_eq!(events(&format(true), &[tricky]), [text(tricky)]);
    assert_eq!(events(&OutputFormat::plain(), &[FULL]), [text(FULL)]);
    assert_eq!(events(&format(true), &["<thi"]), [text("<thi")]);
    assert_eq!(events(&format(true), &[]), []);
    // A model that writes about the tags after the response started.
    let about = "Use <think> to think</think>.";
    assert_eq!(events(&format(true), &[about]), [text(about)]);
    // Without tools, the tag is ordinary text.
    let shown = "<tool_call>\n{\"name\": \"a\"}\n</tool_call>";
    assert_eq!(events(&format(false), &[shown]), [text(shown)]);
}

#[test]
fn text_is_not_held_back_without_need() {
    let mut parser = OutputParser::new(format(true), 0);
    assert_eq!(parser.push("Hello"), [text("Hello")]);
    assert_eq!(parser.push(" <"), [text(" ")]);
    assert_eq!(parser.push("b>"), [text("<b>")]);
    assert_eq!(parser.push("\n"), []);
    assert_eq!(parser.push("x"), [text("\nx")]);
}

#[test]
fn a_prompt_that_opens_the_reasoning_starts_in_it() {
    let template = "...<think>...</think>...";
    let format = OutputFormat::detect(template, "<|im_start|>assistant\n<think>\n", &[]);
    assert_eq!(events(&format, &["\nhm</thi", "nk>\n\nyes"]), [reasoning("hm"), text("yes")]);
    assert_eq!(events(&format, &["cut off in thou"]), [reasoning("cut off in thou")]);
}

#[test]
fn arguments_in_tags_are_json_or_text() {
    let template = "<think></think><tool_call>{name}<arg_key>{key}</arg_key>...";
    let format = OutputFormat::detect(template, "<|assistant|></think>", &tools());
    let output = "Wait.<tool_call>weather<arg_key>city</arg_key><arg_value>Köln <3</arg_value>\n\
        <arg_key>days</arg_key>\n<arg_value>[1, 2]</arg_value></tool_call><tool_call>now</tool_call>";
    let wanted = [
        text("Wait."),
        call(0, "weather", serde_json::json!({"city": "Köln <3", "days": [1, 2]})),
        call(1, "now", serde_json::json!({})),
    ];
    assert_eq!(events(&format, &[output]), wanted);
    for bad in ["<tool_call>two words</tool_call>", "<tool_call></tool_call>", "<tool_call>a"] {
        assert_eq!(events(&format, &[bad]), [text(bad)], "{bad}");
    }
    let (one, two) = ("<arg_key>b</arg_key>", "<arg_value>1</arg_value>");
    for (broken, told) in [
        (one.to_owned(), format!("{{{one}")),
        (format!("{one}{two} c"), "{\"b\":1c".into()),
        (format!("{one}{two}{two}"), format!("{{\"b\":1{two}")),
    ] {
        let said = format!("<tool_call>a{broken}</tool_call>");
        check_cuts(&format, &said, &[call(0, "a", told.into())]);
    }
    // The first of two arguments of the same name was already emitted when the second arrived.
    let said = format!("<tool_call>a{one}{two}{one}<arg_value>2</arg_value></tool_call>");
    check_cuts(&format, &said, &[call(0, "a", serde_json::json!({"b": 1}))]);
}

#[test]
fn calls_may_be_written_with_tags_of_functions() {
    let template = String::from_utf8(data("qwen3_5_chat_template.jinja")).unwrap();
    let format = OutputFormat::detect(&template, "<|im_start|>assistant\n<think>\n", &tools());
    let said = "hm\n</think>\n\nWait.\n\n<tool_call>\n<function=find>\n<parameter=text>\ntwo\nlines \
        < 3\n</parameter>\n<parameter=most>\n5\n</parameter>\n<parameter=how>\n{\"deep\": true}\n\
        </parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>";
    let found = serde_json::json!({"text": "two\nlines < 3", "most": 5, "how": {"deep": true}});
    let calls = [call(0, "find", found), call(1, "now", serde_json::json!({}))];
    let expected: Vec<_> = [reasoning("hm"), text("Wait.")].into_iter().chain(calls).collect();
    assert_eq!(events(&format, &[said]), expected);
    for bad in ["<function=>\n</function>", "<function=", "f", ""] {
        let bad = format!("<tool_call>\n{bad}\n</tool_call>");
        let said = format!("</think>{bad}");
        check_cuts(&format, &said, &[text(&bad)]);
    }
    let open = "<parameter=a>\n1\n";
    let said = format!("</think><tool_call><function=add>\n{open}</function></tool_call> So.");
    let told = format!("{{{open}</function>");
    check_cuts(&format, &said, &[call(0, "add", told.into()), text(" So.")]);
}

#[test]
fn what_never_began_as_a_call_stays_text() {
    let format = format(true);
    for bad in [
        "<tool_call>\n{\"name\": \"add\", \"argu",
        "<tool_call>\nnot json\n</tool_call>",
        "<tool_call>{\"arguments\": {}}</tool_call>",
        "<tool_call>[1]</tool_call> and on",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]",
        "<tool_call>{\"arguments\": {}, \"name\": \"f\"} x</tool_call>",
    ] {
        check_cuts(&format, bad, &[text(bad)]);
    }
    let long = format!("<tool_call>{}", "x".repeat(3 << 20));
    assert_eq!(events(&format, &[&long]), [text(&long)]);
}

#[test]
fn gemma_marks_thoughts_and_calls_in_its_own_way() {
    let template = String::from_utf8(data("gemma4_chat_template.jinja")).unwrap();
    let format = OutputFormat::detect(&template, "<|turn>model\n", &tools());
    let output = "<|channel>thought\nTwo, then\n\nthree.\n<channel|>I look.<|tool_call>call:find{deep:{\
        yes:true,no:null},most:-2.5,none:{},\"quoted\":\"a\\\"b\",texts:[<|\"|>a \"b\", {c}: d<|\"|>,<|\"|><|\"|>]}\
        <tool_call|><|tool_call>call:now{}<tool_call|><|tool_response>";
    let found = j!({
        "deep": {"yes": true, "no": null},
        "most": -2.5,
        "none": {},
        "quoted": "a\"b",
        "texts": ["a \"b\", {c}: d", ""],
    });
    let wanted = [
        reasoning("Two, then\n\nthree."),
        text("I look."),
        call(0, "find", found),
        call(1, "now", j!({})),
    ];
    check_cuts(&format, output, &wanted);
    let mut parser = OutputParser::new(format.clone(), 0);
    parser.push(output);
    assert!(parser.has_ended());
    assert_eq!(parser.push("response:find{}"), []);

    // The small models write empty reasoning.
    assert_eq!(events(&format, &["<|channel>thought\n<channel|>Yes"]), [text("Yes")]);
    let deep = format!("{{a:{}1{}}}", "[".repeat(100), "]".repeat(100));
    for bad in ["f{a:1}", "call:", "call:f", "call:{}"] {
        let bad = format!("<|tool_call>{bad}<tool_call|>");
        check_cuts(&format, &bad, &[text(&bad)]);
    }
    for broken in ["{a:1", "{a 1}", "{a:1}b", "{a:<|\"|>b}", &deep] {
        let said = format!("<|tool_call>call:f{broken}<tool_call|>");
        check_cuts(&format, &said, &[call(0, "f", broken.into())]);
    }
}

#[test]
fn what_gemmas_template_writes_is_read_again() {
    let template = String::from_utf8(data("gemma4_chat_template.jinja")).unwrap();
    let arguments = j!({"a": [1, 2.5, "x, y"], "b": {"c": "{}", "d": false}, "e": "\"<|x"});
    let reply = Message {
        reasoning: Some("Hm.".into()),
        tool_calls: vec![ToolCall { id: "call_3".into(), name: "f".into(), arguments }],
        ..Message::assistant("")
    };
    let messages = [Message::user("?"), reply.clone()];
    let input = ChatInput { messages: &messages, ..Default::default() };
    let rendered = ChatTemplate::new(&template).unwrap().render(&input).unwrap().text();
    let output = rendered.split_once("<|turn>model\n").unwrap().1;
    let format = OutputFormat::detect(&template, "<|turn>model\n", &tools());
    let mut parser = OutputParser::new(format, 3);
    let parsed = whole_calls(parser.push(output));
    let wanted = [reasoning("Hm."), OutputEvent::ToolCall(reply.tool_calls[0].clone())];
    assert_eq!(parsed, wanted, "{rendered}");
    assert_eq!(ToolCall::next_number(&messages), 4);
}

#[test]
fn deepseek_writes_calls_in_two_ways() {
    let template = "<think></think>{<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>...";
    let format = OutputFormat::detect(template, "<｜Assistant｜>", &tools());
    let wanted = [text("Wait."), call(0, "add", j!({"a": "```"})), call(1, "now", j!({}))];
    let old = "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n\
        {\"a\": \"```\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n\
        ```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check_cuts(&format, old, &wanted);
    let new = "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\": \"```\"}\
        <｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
    check_cuts(&format, new, &wanted);
    // The marker of the older form within the arguments of the newer one.
    let block = "<｜tool▁call▁begin｜>write<｜tool▁sep｜>{\"text\": \"```json\\n{}\\n```\"}<｜tool▁call▁end｜>";
    check_cuts(&format, block, &[call(0, "write", j!({"text": "```json\n{}\n```"}))]);
    for bad in ["add", "add<｜tool▁sep｜>[1]", "<｜tool▁sep｜>{}", "f<｜tool▁sep｜>add\n{}"]
    {
        let bad = format!("<｜tool▁call▁begin｜>{bad}<｜tool▁call▁end｜>");
        check_cuts(&format, &bad, &[text(&bad)]);
    }
}

/// Regression test from fuzzing: a text that consists of markers took quadratic time.
#[test]
fn a_long_text_of_markers_is_split_in_time_that_grows_with_it() {
    let output = "<tool_call></tool_call></think>".repeat(40_000);
    let start = std::time::Instant::now();
    let whole = events(&format(true), &[&output]);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(whole, [text(&output)]);
}

/// A call beyond the limit is text, however the output is split. The text after it is parsed again.
#[test]
fn a_call_that_is_too_long_is_text_wherever_it_is_cut() {
    let long = format!("<tool_call>{}</tool_call>", "é ".repeat(400_000));
    let output = format!("{long}<tool_call>{{\"name\": \"now\"}}</tool_call>");
    let wanted = [text(&long), call(0, "now", j!({}))];
    assert_eq!(events(&format(true), &[&output]), wanted);
    for bytes in [7, 1000, 1 << 20] {
        let mut pieces = Vec::new();
        let mut rest = output.as_str();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(rest.floor_char_boundary(bytes));
            pieces.push(piece);
            rest = after;
        }
        assert_eq!(events(&format(true), &pieces), wanted, "pieces of {bytes} bytes");
    }
}

fn stopped(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops.iter().map(|s| (*s).into()).collect()).unwrap();
    let mut out = String::new();
    for piece in pieces {
        let step = matcher.push(piece);
        out += &step.text;
        if step.stopped.is_some() {
            return (out, step.stopped);
        }
    }
    (out + &matcher.finish(), None)
}

#[test]
fn stop_strings_are_found_across_pieces() {
    let stops = ["\nUser:", "END", "é!"];
    assert_eq!(stopped(&stops, &["hi\n", "Us", "er", ": more"]), ("hi".into(), Some(0)));
    assert_eq!(stopped(&stops, &["xEN", "EN", "D"]), ("xEN".into(), Some(1)));
    assert_eq!(stopped(&stops, &["aé", "é", "!"]), ("aé".into(), Some(2)));
    assert_eq!(stopped(&stops, &["hi\nUse", "less EN"]), ("hi\nUseless EN".into(), None));
    assert_eq!(stopped(&[], &["a", "b"]), ("ab".into(), None));
    // The earliest match in the text wins; at the same position, the first in the list.
    assert_eq!(stopped(&["bc", "abc"], &["xabc"]), ("x".into(), Some(1)));
    assert_eq!(stopped(&["ab", "abc"], &["xabc"]), ("x".into(), Some(0)));
    assert!(StopMatcher::new(vec![String::new()]).is_err());
    assert!(StopMatcher::new(vec!["x".into(); 65]).is_err());
}

proptest! {
    #[test]
    fn the_cuts_of_a_text_change_nothing(
        text in "[a<>/\\n]{0,12}(<think>)?[ a\\n]{0,3}(</think>)?\\n?(<tool_call>)?(\\{\"name\":\"f\"\\})?(</tool_call>)?[a<\\n]{0,4}",
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
        stop in "[a<>\\n]{1,3}",
    ) {
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).collect();
        at.extend([0, text.len()]);
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
        prop_assert_eq!(events(&format(true), &pieces), events(&format(true), &[&text]));

        // Reference: cut the whole text at the first stop.
        let (out, found) = stopped(&[&stop], &pieces);
        match text.find(&stop) {
            Some(place) => prop_assert_eq!((out.as_str(), found), (&text[..place], Some(0))),
            None => prop_assert_eq!((out, found), (text, None)),
        }
    }
}

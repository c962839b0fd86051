//! Output in gpt-oss's channels.

use serde_json::json as j;

use super::output::{call, check_cuts, events, reasoning, text};
use super::*;

fn format(prompt: &str) -> OutputFormat {
    let template = String::from_utf8(data("gpt_oss_chat_template.jinja")).unwrap();
    OutputFormat::detect(&template, prompt, &[])
}

fn said(output: &str) -> Vec<OutputEvent> {
    events(&format("...<|end|><|start|>assistant"), &[output])
}

#[test]
fn analysis_is_reasoning_and_final_the_answer() {
    let output = "<|channel|>analysis<|message|>Two\n\nparts < 3 <|.<|end|><|start|>assistant\
        <|channel|>final<|message|>Four.\n<|return|>";
    let wanted = [reasoning("Two\n\nparts < 3 <|."), text("Four.\n")];
    check_cuts(&format("<|start|>assistant"), output, &wanted);
    // The token that ends the turn never becomes text.
    check_cuts(&format("<|start|>assistant"), output.trim_end_matches("<|return|>"), &wanted);
    assert_eq!(said("<|channel|>final<|message|>Hi<|end|><|start|>user<|message|>?"), [text("Hi")]);
}

#[test]
fn a_message_to_a_tool_is_a_call() {
    let wanted = [
        reasoning("Look."),
        text("I look it up."),
        call(0, "get_weather", j!({"city": "Köln <|x", "days": [1]})),
    ];
    let before = "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary\
        <|message|>I look it up.<|end|><|start|>assistant";
    let arguments = "<|message|>{\"city\": \"Köln <|x\", \"days\": [1]}";
    // The recipient follows the channel, as the model writes it, or precedes it, as in its template.
    for header in [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json",
        "<|channel|>analysis to=functions.get_weather code",
    ] {
        for end in ["", "<|call|>", "<|end|>", "<|call|><|start|>functions.get_weather to=a"] {
            let output = [before, header, arguments, end].concat();
            check_cuts(&format("<|start|>assistant"), &output, &wanted);
        }
    }
    let own = " to=python<|channel|>analysis code<|message|>print(1)<|call|>";
    assert_eq!(said(own), [call(0, "python", j!("print(1)"))]);
    let bare = "<|channel|>commentary to=functions.now<|message|><|call|>";
    assert_eq!(said(bare), [call(0, "now", j!({}))]);
}

#[test]
fn what_is_no_call_stays_text() {
    for bad in ["[1]", "now"] {
        let output = format!("<|channel|>commentary to=functions.f json<|message|>{bad}");
        check_cuts(&format("<|start|>assistant"), &output, &[text(bad)]);
        check_cuts(&format("<|start|>assistant"), &(output + "<|call|>"), &[text(bad)]);
    }
    let long = "x".repeat(3 << 20);
    let output = format!("<|channel|>commentary to=functions.f<|message|>{long}");
    assert_eq!(said(&output), [text(&long)]);
    // A started call remains a call, with the arguments received so far.
    let head = "<|channel|>commentary to=functions.f json<|message|>{\"city\": ";
    let wanted = [call(0, "f", j!("{\"city\":\"Kö"))];
    check_cuts(&format("<|start|>assistant"), &format!("{head}\"Kö"), &wanted);
    let wanted = [call(0, "f", j!({"city": "K"})), text("So.")];
    check_cuts(&format("<|start|>assistant"), &format!("{head}\"K\"}} So.<|call|>"), &wanted);
    let head = " to=python<|channel|>analysis code<|message|>";
    for program in ["{x for x in y}", " print(1)\n", "[1] "] {
        let output = format!("{head}{program}<|call|>");
        check_cuts(&format("<|start|>assistant"), &output, &[call(0, "python", j!(program))]);
    }
    let output = format!("{head}{{\"a\": 1}}<|call|>");
    check_cuts(&format("<|start|>assistant"), &output, &[call(0, "python", j!({"a": 1}))]);
}

#[test]
fn an_answer_may_come_without_its_header() {
    check_cuts(&format("<|start|>assistant"), "Good day.", &[text("Good day.")]);
    check_cuts(&format("<|start|>assistant"), "Good day.<|return|>", &[text("Good day.")]);
    let long = "day ".repeat(3000);
    assert_eq!(said(&long), [text(&long)]);
    let pieces: Vec<&str> = long.split_inclusive(' ').collect();
    assert_eq!(events(&format("<|start|>assistant"), &pieces), [text(&long)]);
    // A cut header produces no response.
    assert_eq!(said("<|channel|>fin"), []);
    assert_eq!(said("<|channel|>analysis<|message|>x<|end|><|start|>assis"), [reasoning("x")]);
    // A message without an end marker.
    let output = "<|channel|>analysis<|message|>x<|channel|>final<|message|>y";
    check_cuts(&format("<|start|>assistant"), output, &[reasoning("x"), text("y")]);
}

#[test]
fn messages_of_one_kind_are_paragraphs() {
    let output = "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis\
        <|message|>b<|end|><|start|>assistant<|channel|>commentary<|message|>c<|end|><|start|>\
        assistant<|channel|>final<|message|>d";
    let wanted = [reasoning("a\n\nb"), text("c\n\nd")];
    check_cuts(&format("<|start|>assistant"), output, &wanted);
}

#[test]
fn a_prompt_may_begin_the_message() {
    let begun = format("<|start|>assistant<|channel|>final<|message|>Once");
    check_cuts(&begun, " upon a time<|return|>", &[text(" upon a time")]);
    let begun = format("<|start|>assistant<|channel|>analysis<|message|>");
    check_cuts(&begun, "hm<|end|>", &[reasoning("hm")]);
    let complete = format("<|start|>user<|message|>Hi<|end|>");
    let output = "<|start|>assistant<|channel|>final<|message|>Hello<|return|>";
    check_cuts(&complete, output, &[text("Hello")]);
}

#[test]
fn the_turn_ends_where_its_markers_say() {
    let ended = |output: &str| {
        let mut parser = OutputParser::new(format("<|start|>assistant"), 0);
        parser.push(output);
        parser.has_ended()
    };
    let answer = "<|channel|>final<|message|>Hi";
    assert!(!ended(answer));
    assert!(ended(&[answer, "<|return|>"].concat()));
    assert!(ended(&[answer, "<|end|>"].concat()));
    assert!(ended("<|channel|>commentary to=functions.f<|message|>{}<|call|>"));
    assert!(!ended("<|channel|>analysis<|message|>x<|end|>"));
    assert!(ended("<|channel|>analysis<|message|>x<|end|><|start|>user<|message|>"));
}

/// Parsed output goes back through the template, which prints it as the model wrote it.
#[test]
fn what_was_said_goes_back_into_the_history() {
    let source = String::from_utf8(data("gpt_oss_chat_template.jinja")).unwrap();
    let template = ChatTemplate::new(&source).unwrap();
    let reply = Message {
        reasoning: Some("Look.".into()),
        tool_calls: vec![ToolCall {
            id: "call_0".into(),
            name: "f".into(),
            arguments: j!({"a": 1}),
        }],
        ..Message::assistant("I look it up.")
    };
    let messages = [Message::user("?"), reply.clone(), Message::tool("call_0", "4")];
    let input = ChatInput {
        messages: &messages,
        add_generation_prompt: true,
        now: Some(TemplateTime::from_unix_seconds(0)),
        ..Default::default()
    };
    let rendered = template.render(&input).unwrap().text();
    let wanted = "<|start|>user<|message|>?<|end|><|start|>assistant<|channel|>analysis<|message|>\
        Look.\n\nI look it up.<|end|><|start|>assistant to=functions.f<|channel|>commentary json\
        <|message|>{\"a\": 1}<|call|><|start|>functions.f to=assistant<|channel|>commentary\
        <|message|>\"4\"<|end|><|start|>assistant";
    assert!(rendered.ends_with(wanted), "{rendered}");
    let output = rendered.rsplit_once("<|start|>functions").unwrap().0;
    let output = output.rsplit_once("?<|end|><|start|>assistant").unwrap().1;
    let parsed = said(output);
    assert_eq!(parsed, [reasoning("Look.\n\nI look it up."), call(0, "f", j!({"a": 1}))]);
    assert_eq!(ToolCall::next_number(&messages), 1);
    assert_eq!(ToolCall::next_number(&[Message::user("call_7")]), 0);
}

/// Markers are special tokens, which decode streams drop unless a format keeps them.
#[test]
fn markers_reach_the_parser_as_tokens() {
    let mut file = json("demo_tokenizer.json");
    let markers = format("").marker_texts().iter().map(|text| text.to_string()).collect::<Vec<_>>();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (id, text) in (6000..).zip(markers.iter().chain([&"<|other|>".to_owned()])) {
        added.push(j!({"id": id, "content": text, "special": true, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false}));
    }
    let tokenizer = Tokenizer::from_bytes("t", file.to_string().as_bytes()).unwrap();
    let output = "<|channel|>analysis<|message|>Thé<|end|><|start|>assistant<|channel|>final<|message|>\
        Four<|other|>.<|return|>";
    let ids = tokenizer.encode(output, EncodeOptions::default()).unwrap();
    let format = format("<|start|>assistant");
    let mut stream = tokenizer.decode_stream(false).keeping(&format.marker_texts());
    let pieces: Vec<String> = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
    assert_eq!(pieces.concat(), output.replace("<|other|>", ""));
    assert_eq!(events(&format, &pieces), [reasoning("Thé"), text("Four.")]);
    let mut stream = tokenizer.decode_stream(false);
    let plain: String = ids.iter().map(|id| stream.push(*id).unwrap()).collect();
    assert_eq!(plain, "analysisThéassistantfinalFour.");
}

/// Guards against searching a held call from its start for each chunk.
#[test]
fn a_long_call_is_read_in_time_that_grows_with_it() {
    let arguments = format!("{{\"a\":\"{}\"}}", "é <|".repeat(200_000));
    let output = format!(
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{arguments}<|call|>"
    );
    let mut pieces = Vec::new();
    let mut rest = output.as_str();
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(7));
        pieces.push(piece);
        rest = after;
    }
    let start = std::time::Instant::now();
    let parsed = events(&format("<|start|>assistant"), &pieces);
    assert!(start.elapsed() < std::time::Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(parsed, [call(0, "f", serde_json::from_str(&arguments).unwrap())]);
}

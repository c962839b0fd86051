//! Answers under each kind of guide.

use nestling_guide::{Guide, TypedGuide, schema_for};
use nestling_text::OutputFormat;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::walker::*;

fn walks(guide: &Guide, count: u64) -> Vec<Walk> {
    let tokenizer = tokenizer(&["<|end|>"], &["<tool_call>"]);
    let walks = (0..count).map(|seed| walk(guide, &tokenizer, &OutputFormat::plain(), seed, 400));
    walks.map(Result::unwrap).collect()
}

fn texts(guide: &Guide, count: u64) -> Vec<String> {
    let whole = walks(guide, count).into_iter().map(|walk| match walk {
        Walk::Whole(text) => text,
        Walk::Cut(text) => panic!("cut: {text}"),
    });
    whole.collect()
}

#[test]
fn choices_are_one_of_several() {
    let choices = ["yes", "no", "not \"now\"\n\\", "日本", "nothing"].map(String::from);
    let found = texts(&Guide::choices(&choices).unwrap(), 100);
    assert!(found.iter().all(|text| choices.contains(text)), "{found:?}");
    assert!(choices.iter().all(|choice| found.contains(choice)), "{found:?}");
    assert!(Guide::choices(&[]).is_err());
    assert!(Guide::choices(&vec!["a".into(); 2000]).is_err());
}

#[test]
fn regular_expressions_match_as_a_whole() {
    for text in texts(&Guide::regex("[a-c]{2,4}-[0-9]{3}(x|yz)?").unwrap(), 60) {
        let (word, rest) = text.split_once('-').unwrap();
        assert!((2..=4).contains(&word.len()) && word.bytes().all(|b| (b'a'..=b'c').contains(&b)));
        assert!(rest[..3].bytes().all(|b| b.is_ascii_digit()), "{text}");
        assert!(["", "x", "yz"].contains(&&rest[3..]), "{text}");
    }
}

#[test]
fn grammars_may_recur_and_hold_schemas() {
    let guide = Guide::lark(
        "start: list\nlist: \"(\" (item (\" \" item)*)? \")\"\nitem: list | %json {\"enum\": [1, \"a\"]}",
    );
    for walk in walks(&guide.unwrap(), 40) {
        if let Walk::Whole(text) = walk {
            assert_eq!(text.matches('(').count(), text.matches(')').count(), "{text}");
            let rest = text.replace(['(', ')', ' '], "").replace("\"a\"", "").replace('1', "");
            assert_eq!(rest, "", "{text}");
        }
    }
}

#[test]
fn any_object_is_an_object() {
    let objects = walks(&Guide::json_object().unwrap(), 40).into_iter().filter_map(json_of);
    let objects: Vec<_> = objects.collect();
    assert!(objects.len() > 10 && objects.iter().all(serde_json::Value::is_object), "{objects:?}");
}

/// Text cannot contain markers in any spelling, so that the output parser never sees a marker from text.
#[test]
fn no_marker_comes_in_a_text() {
    let guide = Guide::json_schema(&json!({ "type": "string", "minLength": 30 })).unwrap();
    let tokenizer = tokenizer(&["<|end|>"], &["<tool_call>"]);
    let ids = ["<|end|>", "<tool_call>"].map(|text| tokenizer.token_to_id(text).unwrap());
    for walk in walks(&guide, 20) {
        let (Walk::Whole(text) | Walk::Cut(text)) = walk;
        assert!(ids.iter().all(|id| !text.contains(&tokenizer.decode(&[*id], true).unwrap())));
    }
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Bird {
    name: String,
    eggs: u8,
    kind: Kind,
    nests: Vec<u8>,
    mate: Option<Box<Bird>>,
}

#[derive(Debug, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Owl,
    Wren,
}

#[test]
fn answers_are_values_of_types() {
    let typed = TypedGuide::<Bird>::new().unwrap();
    let guide = Guide::json_schema(&schema_for::<Bird>()).unwrap();
    let mut whole = 0;
    for walk in walks(&guide, 60) {
        if let Walk::Whole(text) = walk {
            let bird = typed.parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
            drop((bird.name, bird.eggs, bird.kind, bird.nests, bird.mate));
            whole += 1;
        }
    }
    assert!(whole > 20, "{whole}");
    assert!(typed.parse("{\"name\": \"a\"").is_err());
}

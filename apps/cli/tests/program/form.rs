//! Tests of output constraints: JSON schemas, regular expressions and grammars.

use super::{ProcessOutput, bundled, program, run, scratch};
use serde_json::Value;

const SCHEMA: &str = r#"{
    "type": "object",
    "properties": {
        "ship": {"type": "string", "maxLength": 20},
        "crew": {"type": "integer", "minimum": 1, "maximum": 500},
        "weather": {"enum": ["fair", "foul"]}
    },
    "required": ["ship", "crew", "weather"],
    "additionalProperties": false
}"#;

fn tell(more: &[&str]) -> ProcessOutput {
    run(&[&["run", "-m", bundled(), "-p", "The ship left the harbour.", "-q"], more].concat())
}

fn file(name: &str, text: &str) -> String {
    let path = scratch().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Asserts that a text is an object of [`SCHEMA`].
#[track_caller]
fn assert_is_ship(text: &str) {
    let ship: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert_eq!(ship.as_object().unwrap().len(), 3, "{text}");
    assert!(ship["ship"].as_str().unwrap().chars().count() <= 20, "{text}");
    assert!((1..=500).contains(&ship["crew"].as_u64().unwrap()), "{text}");
    assert!(matches!(ship["weather"].as_str(), Some("fair" | "foul")), "{text}");
}

#[test]
fn answers_keep_to_a_json_schema() {
    let path = file("ship.json", SCHEMA);
    let greedy = tell(&["--json-schema", &path, "--temp", "0", "-n", "256"]);
    assert_eq!(greedy.err, "");
    assert_is_ship(&greedy.out);
    let inline = tell(&["--json-schema", SCHEMA, "--temp", "0", "-n", "256"]);
    assert_eq!(inline.ok(), greedy.out);
    for seed in ["1", "2", "3", "4", "5"] {
        let drawn = tell(&["-j", &path, "--temp", "1", "-s", seed, "-n", "256"]);
        assert_eq!(drawn.err, "");
        assert_is_ship(&drawn.ok());
    }
    let chat = ["chat", "-m", bundled(), "-p", "Name a ship.", "-q", "--temp", "1", "-s", "6"];
    assert_is_ship(&run(&[&chat[..], &["--json-schema", &path, "-n", "256"]].concat()).ok());
    // Given by a variable, which an argument overrides.
    let from_variable = |more: &[&str]| -> ProcessOutput {
        let line = ["run", "-m", bundled(), "-p", "The ship", "-q", "--temp", "0", "-n", "256"];
        let mut program = program();
        program.env("NESTLING_JSON_SCHEMA", &path).args(line).args(more);
        program.output().unwrap().into()
    };
    assert_is_ship(&from_variable(&[]).ok());
    assert_eq!(from_variable(&["--regex", "[0-9]{3}"]).ok().trim_end().len(), 3);
}

#[test]
fn answers_keep_to_regular_expressions_and_grammars() {
    for seed in ["1", "2", "3"] {
        let drawn = ["--temp", "1", "-s", seed, "-n", "64"];
        let date = tell(&[&["--regex", "-[0-9]{4}/[a-f]{2}"], &drawn[..]].concat()).ok();
        let (year, letters) = date.trim_end().split_once('/').unwrap();
        let is_year = |digit: char| digit.is_ascii_digit();
        assert!(year.starts_with('-') && year[1..].chars().all(is_year), "{date}");
        assert!(letters.len() == 2 && letters.chars().all(|c| ('a'..='f').contains(&c)), "{date}");
        let grammar = file("order.lark", "start: (\"port\" | \"starboard\") \" \" /[1-9]0/\n");
        let order = tell(&[&["--grammar", &grammar], &drawn[..]].concat()).ok();
        let gbnf = file("order.gbnf", "root ::= side-of \"!\"\nside-of ::= \"port\" | \"lee\"\n");
        let side = tell(&[&["--grammar", &gbnf], &drawn[..]].concat()).ok();
        assert!(matches!(side.trim_end(), "port!" | "lee!"), "{side}");
        let (side, angle) = order.trim_end().split_once(' ').unwrap();
        assert!(matches!(side, "port" | "starboard"), "{order}");
        assert!(angle.len() == 2 && angle.ends_with('0'), "{order}");
    }
}

#[test]
fn an_answer_that_was_cut_says_so() {
    let words = "warning: the answer was cut by its length and may not be valid JSON";
    let ran = tell(&["-j", SCHEMA, "--temp", "0", "-n", "2"]);
    assert_eq!(ran.err.trim_end(), words);
    ran.ok();
    // A value without required members closes in time.
    for form in ["--json", "--json-object"] {
        let ran = tell(&[form, "--temp", "0", "-n", "64"]);
        assert_eq!(ran.err, "", "{form}");
        assert!(serde_json::from_str::<Value>(&ran.ok()).is_ok(), "{form}");
    }
    let ran = tell(&["--regex", "[a-z]{40}", "--temp", "0", "-n", "2"]);
    assert!(ran.err.contains("was cut by its length and may lack its end"), "{}", ran.err);
    let ran = tell(&["-j", SCHEMA, "--temp", "0", "-n", "256", "--stop", "crew"]);
    assert!(ran.err.contains("was cut by a stop string and may not be valid JSON"), "{}", ran.err);
    // A full context does not restart the constraint.
    let ran = tell(&["--regex", "[a-z ]{4000}", "--temp", "0", "-c", "64"]);
    assert!(ran.err.contains("was cut by its length"), "{}", ran.err);
}

#[test]
fn statistics_say_why_an_answer_ended() {
    let path = scratch().join("form-stats.json").display().to_string();
    for (tokens, reason) in [("256", "stop"), ("2", "length")] {
        let flags = ["--temp", "0", "-n", tokens, "--stats-json", &path];
        tell(&[&["-j", SCHEMA], &flags[..]].concat()).ok();
        let stats: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(stats["finish_reason"], reason);
    }
}

/// Errors are reported before the model is opened.
#[test]
fn what_cannot_be_compiled_is_refused_with_its_reason() {
    let text = |text: &str| file("refused", text);
    let no_json = text("type: object");
    for (option, value, error, advice) in [
        ("--json-schema", r#"{"type": "ship"}"#, "ship", "nothing of a schema"),
        ("--json-schema", r#"{"type": "#, "expected JSON", "correct the schema"),
        ("--json-schema", r##"{"$recursiveRef": "#"}"##, "$recursiveRef", "nothing of a schema"),
        ("--json-schema", r#"{"allOf": [false]}"#, "no value is valid", "nothing of a schema"),
        ("--json-schema", &no_json, &no_json, "correct the schema"),
        (
            "--regex",
            "(",
            "the regular expression cannot be compiled: unclosed group",
            "crate `regex`",
        ),
        ("--regex", "(?=a)", "the regular expression cannot be compiled", "look-around"),
        ("--regex", "--json", "", ""),
    ] {
        let ran = run(&["run", "-m", "/no/such.nest", "-p", "x", option, value]);
        if error.is_empty() {
            // A pattern may look like an option.
            ran.fails(1, "no such file", "");
            continue;
        }
        ran.fails(2, error, advice);
        assert!(ran.err.contains(option), "{}", ran.err);
    }
    let grammar = file("refused.lark", "begin: \"a\"");
    let ran = run(&["chat", "-p", "x", "--grammar", &grammar]);
    ran.fails(2, "the grammar cannot be compiled", "the rule `start`");
    let ran = run(&["run", "-p", "x", "--json-schema", "/no/schema.json"]);
    ran.fails(1, "/no/schema.json", "spelling");
}

#[test]
fn one_form_at_a_time() {
    for two in [
        &["--json", "--regex", "a"][..],
        &["--json-schema", "{}", "--grammar", "a.lark"],
        &["--regex", "a", "--json-schema", "a.json"],
    ] {
        for command in ["run", "chat"] {
            let ran = run(&[&[command, "-p", "x"], two].concat());
            assert_eq!(ran.code, Some(2), "{}", ran.err);
            assert!(ran.err.contains("cannot be used with"), "{}", ran.err);
        }
    }
    let mut program = program();
    program.env("NESTLING_REGEX", "a").env("NESTLING_JSON_OBJECT", "1").args(["run", "-p", "x"]);
    let ran: ProcessOutput = program.output().unwrap().into();
    ran.fails(2, "--json-object cannot be used with --regex", "environment variable");
}

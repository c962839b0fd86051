//! Checked grammars of all kinds of guides.

use llguidance::api::TopLevelGrammar;
use serde_json::{Map, Value, json};

use crate::error::GuideError;
use crate::json_ending::JsonBounds;
use crate::limits::{
    CHOICE_BYTES_MAX, CHOICES_MAX, DEPTH_MAX, GRAMMAR_BYTES_MAX, LARK_BRACKETS_MAX,
    LARK_DEFINITIONS_MAX, REGEX_BYTES_MAX, REPEAT_MAX,
};
use crate::schema_check::check_schema;
use crate::schema_conjunctions::check_conjunctions;
use crate::schema_narrow::{NarrowedSchema, narrowed};
use crate::schema_unenforced::without_unenforced;

/// Source of a grammar, quoted in error messages.
const SCHEMA: &str = "the schema";
/// Source of a grammar from a schema that is only partly enforced.
const NARROWED: &str = "what can be kept to of the schema";

/// Message of the grammar engine for a schema without valid values.
const UNSATISFIABLE: &str = "Unsatisfiable schema";

/// Substrings of the identifiers of older drafts.
const OLD_DRAFTS: [&str; 4] = ["draft-04", "draft-06", "draft-07", "2019-09"];

/// White space between JSON tokens: a space, or a line break and indentation. It is bounded, because a model
/// might otherwise emit white space indefinitely.
const WHITE_SPACE: &str = r"\x20|\n[\x20\x09]{0,32}";

#[derive(Debug, Clone)]
pub(crate) struct CheckedGrammar {
    pub grammar: TopLevelGrammar,
    /// Source of the grammar, quoted in error messages.
    pub what: &'static str,
    /// Bounds of numbers, if the text is JSON.
    pub json: Option<JsonBounds>,
}

impl CheckedGrammar {
    pub fn json_schema(schema: &Value) -> Result<Self, GuideError> {
        let json = Some(JsonBounds::of([schema]));
        let NarrowedSchema { schema, is_narrowed } = with_options(schema)?;
        let what = if is_narrowed { NARROWED } else { SCHEMA };
        Ok(Self { grammar: TopLevelGrammar::from_json_schema(schema), what, json })
    }

    pub fn regex(regex: &str) -> Result<Self, GuideError> {
        GuideError::check("bytes of a regular expression", regex.len(), REGEX_BYTES_MAX)?;
        check_text(regex)?;
        let grammar = TopLevelGrammar::from_regex(regex);
        Ok(Self { grammar, what: "the regular expression", json: None })
    }

    pub fn lark(grammar: &str) -> Result<Self, GuideError> {
        GuideError::check("bytes of a grammar", grammar.len(), GRAMMAR_BYTES_MAX)?;
        check_text(grammar)?;
        check_definitions(grammar)?;
        let grammar = TopLevelGrammar::from_lark(grammar.to_owned());
        Ok(Self { grammar, what: "the grammar", json: None })
    }

    pub fn choices(choices: &[String]) -> Result<Self, GuideError> {
        GuideError::check("choices", choices.len(), CHOICES_MAX)?;
        let bytes = choices.iter().map(String::len).sum();
        GuideError::check("bytes of choices", bytes, CHOICE_BYTES_MAX)?;
        if choices.is_empty() || choices.iter().all(String::is_empty) {
            let (what, expected) = ("choices".into(), "at least one that is not empty");
            return Err(GuideError::Invalid { what, expected, found: "none".into() });
        }
        let texts: Vec<String> = choices.iter().map(|choice| literal(choice)).collect();
        let grammar = TopLevelGrammar::from_lark(format!("start: {}", texts.join(" | ")));
        Ok(Self { grammar, what: "the choices", json: None })
    }

    /// Creates a grammar that was assembled from checked parts.
    pub fn assembled(grammar: String, what: &'static str) -> Self {
        Self { grammar: TopLevelGrammar::from_lark(grammar), what, json: None }
    }
}

/// Returns a checked schema with the options of the grammar engine.
pub(crate) fn with_options(schema: &Value) -> Result<NarrowedSchema, GuideError> {
    let schema = &without_unenforced(schema);
    check_schema(schema)?;
    let is_of_now = |map: &Map<String, Value>| {
        // Other drafts have other keywords. The grammar engine rejects the ones that it does not support.
        let draft = map.get("$schema").and_then(Value::as_str);
        !draft.is_some_and(|draft| OLD_DRAFTS.iter().any(|old| draft.contains(old)))
    };
    let narrowed = match schema {
        Value::Object(map) if is_of_now(map) => narrowed(schema)?,
        schema => NarrowedSchema { schema: schema.clone(), is_narrowed: false },
    };
    let mut map = match narrowed.schema {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(no_value(narrowed.is_narrowed, "it is false")),
        other => {
            let found = other.to_string();
            let expected = "an object or true";
            return Err(GuideError::Invalid { what: "the schema".into(), expected, found });
        }
    };
    map.insert("x-guidance".into(), json!({ "whitespace_pattern": WHITE_SPACE }));
    let schema = Value::Object(map);
    check_conjunctions(&schema)?;
    Ok(NarrowedSchema { schema, is_narrowed: narrowed.is_narrowed })
}

/// Converts the grammar engine's error for a schema without valid values to [`GuideError::Unsatisfiable`].
pub(crate) fn explained(error: GuideError) -> GuideError {
    match error {
        GuideError::NotCompiled { what: SCHEMA, reason } if reason.contains(UNSATISFIABLE) => {
            GuideError::Unsatisfiable { reason }
        }
        error => error,
    }
}

/// Returns the error for a schema without valid values, possibly after narrowing.
fn no_value(is_narrowed: bool, reason: &str) -> GuideError {
    match is_narrowed {
        true => GuideError::Unsupported {
            place: "#".into(),
            reason: format!("what can be kept to of the schema leaves no value: {reason}"),
        },
        false => GuideError::Unsatisfiable { reason: reason.to_owned() },
    }
}

/// Quotes a text as a literal of the grammar engine, which uses JSON's syntax without an unescaped U+007F.
pub(crate) fn literal(text: &str) -> String {
    Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Checks how often the grammar engine can recurse while it compiles a grammar in Lark's syntax: into definitions,
/// which begin a line, and into brackets. Characters of texts count as well.
fn check_definitions(grammar: &str) -> Result<(), GuideError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.!?".contains(c);
    let defines = |line: &&str| {
        let rest = line.trim_start().trim_start_matches(is_name).trim_start();
        rest.starts_with([':', '[', '{', '('])
    };
    let definitions = grammar.lines().filter(defines).count();
    GuideError::check("rules and terminals", definitions, LARK_DEFINITIONS_MAX)?;
    let brackets = grammar.bytes().filter(|byte| matches!(byte, b'(' | b'[' | b'{')).count();
    GuideError::check("brackets", brackets, LARK_BRACKETS_MAX)
}

/// Checks nesting and repetition counts, because brackets are parsed recursively and repetitions may be
/// unrolled. Brackets inside strings count too; no useful grammar has so many of them.
fn check_text(text: &str) -> Result<(), GuideError> {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut number: Option<u64> = None;
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
        number = match (byte, number) {
            (b'{' | b',' | b'.', _) => Some(0),
            (b'0'..=b'9', Some(so_far)) => {
                let next = so_far.saturating_mul(10).saturating_add(u64::from(byte - b'0'));
                if next > REPEAT_MAX && depth > 0 {
                    let (what, limit) = ("repetitions", REPEAT_MAX);
                    return Err(GuideError::Limit { what, limit, found: next });
                }
                Some(next)
            }
            (b' ', number) => number,
            _ => None,
        };
    }
    GuideError::check("depth of brackets", deepest, DEPTH_MAX)
}

//! The form that answers keep to: by a JSON schema, a regular expression or a grammar.

use crate::args::FormArgs;
use crate::console::Console;
use crate::conversation::read_text;
use crate::failure::{Failure, Result};
use nestling::engine::{FinishReason, GenerateOptions};
use nestling::guide::{Guide, GuideError};
use std::path::Path;
use std::sync::Arc;

/// What the command line asks answers to look like.
#[derive(Clone, Debug, Default)]
pub struct Form(Option<Arc<Asked>>);

#[derive(Debug)]
struct Asked {
    guide: Arc<Guide>,
    is_json: bool,
    /// The option, and what it says.
    words: String,
}

// What each form must be; said where one is refused.
const SCHEMA_ADVICE: &str =
    "correct the schema, or leave out what was named: nothing of a schema is ever ignored";
const REGEX_ADVICE: &str =
    "write it in the syntax of Rust's crate `regex`, without look-around and anchors";
const GRAMMAR_ADVICE: &str =
    "write it in Lark's syntax; the rule `start` is the answer, as in `start: \"yes\" | \"no\"`";

impl Form {
    /// Compiles what was asked for, before there is a model.
    ///
    /// # Errors
    /// What cannot be read or compiled, and two forms at once.
    pub fn new(args: &FormArgs) -> Result<Self> {
        let given = [
            args.json_schema.as_ref().map(|_| "--json-schema"),
            args.json_object.then_some("--json-object"),
            args.regex.as_ref().map(|_| "--regex"),
            args.grammar.as_ref().map(|_| "--grammar"),
        ];
        let mut given = given.into_iter().flatten();
        // Two variables, that is: the command line itself is refused before.
        if let (Some(first), Some(second)) = (given.next(), given.next()) {
            return Err(Failure::usage(format!("{first} cannot be used with {second}"))
                .advise("unset the environment variable of one of them"));
        }
        if let Some(schema) = &args.json_schema {
            return Self::of_schema(schema);
        }
        if args.json_object {
            return Self::of(Guide::json_object(), true, "--json-object".into(), SCHEMA_ADVICE);
        }
        if let Some(regex) = &args.regex {
            return Self::of(Guide::regex(regex), false, format!("--regex {regex}"), REGEX_ADVICE);
        }
        match &args.grammar {
            Some(path) => {
                let words = format!("--grammar {}", path.display());
                Self::of(Guide::lark(&read_text(path)?), false, words, GRAMMAR_ADVICE)
            }
            None => Ok(Self::default()),
        }
    }

    /// A schema, or the path of one.
    fn of_schema(schema: &str) -> Result<Self> {
        let (text, words) = match schema.trim_start().starts_with('{') {
            true => (schema.to_owned(), "--json-schema".into()),
            false => (read_text(Path::new(schema))?, format!("--json-schema {schema}")),
        };
        Self::of(Guide::json_schema_text(&text), true, words, SCHEMA_ADVICE)
    }

    fn of(
        guide: std::result::Result<Guide, GuideError>,
        is_json: bool,
        words: String,
        advice: &str,
    ) -> Result<Self> {
        match guide {
            Ok(guide) => Ok(Self(Some(Arc::new(Asked { guide: Arc::new(guide), is_json, words })))),
            Err(error) => Err(Failure::usage(format!("{words}: {error}")).advise(advice)),
        }
    }

    /// Whether answers have a form at all.
    pub fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// The option that asked for it.
    pub fn words(&self) -> Option<&str> {
        self.0.as_deref().map(|asked| &*asked.words)
    }

    /// Has a generation keep to it.
    pub fn hold(&self, options: &mut GenerateOptions) {
        if let Some(asked) = &self.0 {
            options.constraint = Some(asked.guide.clone());
        }
    }

    /// Says where an answer ended before it was whole.
    pub fn warn_if_cut(&self, text: &str, reason: &FinishReason, console: &Console) {
        // Default: what has no form cannot lack a part of it.
        let Some(asked) = &self.0 else { return };
        let by = match reason {
            FinishReason::Length | FinishReason::ContextFull => "its length",
            // A stop string: what ends by itself is whole.
            FinishReason::Stop if asked.is_json && !is_json(text) => "a stop string",
            _ => return,
        };
        console.warn(match asked.is_json {
            true => format!("the answer was cut by {by} and may be no valid JSON"),
            false => format!("the answer was cut by {by} and may lack its end"),
        });
    }
}

impl PartialEq for Form {
    /// Whether both came from the same command line.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

fn is_json(text: &str) -> bool {
    serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

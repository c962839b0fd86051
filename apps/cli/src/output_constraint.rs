//! Output constraints: a JSON schema, a regular expression or a grammar.

use crate::args::FormArgs;
use crate::console::Console;
use crate::conversation::read_text;
use crate::failure::{Failure, Result};
use nestling::engine::{FinishReason, GenerateOptions};
use nestling::guide::{Guide, GuideError};
use std::path::Path;
use std::sync::Arc;

/// Constraint given on the command line, if any.
#[derive(Clone, Debug, Default)]
pub struct OutputConstraint(Option<Arc<CompiledConstraint>>);

#[derive(Debug)]
struct CompiledConstraint {
    guide: Arc<Guide>,
    is_json: bool,
    /// Option that requested the constraint, for messages.
    words: String,
}

// Advice for invalid constraints.
const SCHEMA_ADVICE: &str =
    "correct the schema, or leave out what was named: nothing of a schema is ever ignored";
const REGEX_ADVICE: &str =
    "write it in the syntax of Rust's crate `regex`, without look-around and anchors";
const GRAMMAR_ADVICE: &str = "write it in Lark's syntax, with the rule `start` as in `start: \"yes\" | \"no\"`, or in GBNF, with the rule \
    `root` as in `root ::= \"yes\" | \"no\"`";

impl OutputConstraint {
    /// Compiles the requested constraint before a model is opened.
    ///
    /// # Errors
    /// Returns an error if the constraint cannot be read or compiled, or if two constraints are given.
    pub fn new(args: &FormArgs) -> Result<Self> {
        let given = [
            args.json_schema.as_ref().map(|_| "--json-schema"),
            args.json_object.then_some("--json-object"),
            args.regex.as_ref().map(|_| "--regex"),
            args.grammar.as_ref().map(|_| "--grammar"),
        ];
        let mut given = given.into_iter().flatten();
        // Caused by environment variables only; clap rejects two flags on the command line.
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
                Self::of(Guide::grammar(&read_text(path)?), false, words, GRAMMAR_ADVICE)
            }
            None => Ok(Self::default()),
        }
    }

    /// Compiles a schema, given as JSON or as the path of a file.
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
            Ok(guide) => Ok(Self(Some(Arc::new(CompiledConstraint {
                guide: Arc::new(guide),
                is_json,
                words,
            })))),
            Err(error) => Err(Failure::usage(format!("{words}: {error}")).advise(advice)),
        }
    }

    /// Returns true if the output is constrained.
    pub fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the option that requested the constraint.
    pub fn description(&self) -> Option<&str> {
        self.0.as_deref().map(|asked| &*asked.words)
    }

    /// Applies the constraint to a generation.
    pub fn hold(&self, options: &mut GenerateOptions) {
        if let Some(asked) = &self.0 {
            options.constraint = Some(asked.guide.clone());
        }
    }

    /// Warns if a constrained response ended before it was complete.
    pub fn warn_if_cut(&self, text: &str, reason: &FinishReason, console: &Console) {
        // Default: an unconstrained response cannot be incomplete.
        let Some(asked) = &self.0 else { return };
        let by = match reason {
            FinishReason::Length | FinishReason::ContextFull => "its length",
            // A stop string cut it off; a response that ends by the constraint itself is complete.
            FinishReason::Stop if asked.is_json && !is_json(text) => "a stop string",
            _ => return,
        };
        console.warn(match asked.is_json {
            true => format!("the answer was cut by {by} and may not be valid JSON"),
            false => format!("the answer was cut by {by} and may lack its end"),
        });
    }
}

impl PartialEq for OutputConstraint {
    /// Returns true if both come from the same command line.
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

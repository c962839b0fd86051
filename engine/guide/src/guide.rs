//! What an answer must look like.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nestling_runtime::{
    Constraint, ConstraintContext, ConstraintError, ConstraintSource, Starts, Writes,
};
use serde_json::{Value, json};

use crate::error::GuideError;
use crate::grammar::{CheckedGrammar, explained};
use crate::limits::COMPILED_MAX;
use crate::matcher::{Compiled, GrammarConstraint, Manner};
use crate::vocabulary::Vocabulary;

/// What an answer must look like. It holds after the model's reasoning, where there is any.
///
/// Clones share what was compiled.
#[derive(Debug, Clone)]
pub struct Guide {
    grammar: CheckedGrammar,
    compiled: Arc<CompiledGrammars>,
}

impl Guide {
    /// JSON that is valid by a schema, draft 2020-12 unless `$schema` says otherwise. Formats that a schema names are
    /// kept to.
    ///
    /// # Errors
    /// Schemas over the limits of [`crate::limits`], and those with keywords that an answer cannot be kept to, each by
    /// its name: nothing of a schema is ever left out.
    pub fn json_schema(schema: &Value) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::json_schema(schema)?)
    }

    /// [`Self::json_schema`] of a schema's text.
    ///
    /// # Errors
    /// As [`Self::json_schema`]; what is no JSON.
    pub fn json_schema_text(schema: &str) -> Result<Self, GuideError> {
        Self::json_schema(&parse_schema(schema)?)
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// None that a caller could cause.
    pub fn json_object() -> Result<Self, GuideError> {
        Self::json_schema(&json!({ "type": "object" }))
    }

    /// Text that a regular expression matches as a whole, in the syntax of the crate `regex`, without look-around and
    /// anchors.
    ///
    /// # Errors
    /// One over the limits, or that cannot be compiled.
    pub fn regex(regex: &str) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::regex(regex)?)
    }

    /// Text of a context-free grammar in Lark's syntax, as `llguidance` has it: the rule `start` is the answer, and
    /// `%json` puts a JSON schema in its place.
    ///
    /// # Errors
    /// One over the limits, or that cannot be compiled.
    pub fn lark(grammar: &str) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::lark(grammar)?)
    }

    /// One of several texts.
    ///
    /// # Errors
    /// None at all, or more than [`crate::limits`] allow.
    pub fn choices(choices: &[String]) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::choices(choices)?)
    }

    fn of(grammar: CheckedGrammar) -> Result<Self, GuideError> {
        // What cannot be compiled is told before there is a model.
        Compiled::new(&grammar, &Vocabulary::of_bytes()?).map_err(explained)?;
        Ok(Self { grammar, compiled: Arc::default() })
    }
}

/// # Errors
/// [`GuideError::Invalid`], [`GuideError::Limit`].
pub(crate) fn parse_schema(schema: &str) -> Result<Value, GuideError> {
    GuideError::check("bytes of a schema", schema.len(), crate::limits::SCHEMA_BYTES_MAX)?;
    serde_json::from_str(schema).map_err(|error| GuideError::Invalid {
        what: "the schema".into(),
        expected: "JSON",
        found: error.to_string(),
    })
}

impl ConstraintSource for Guide {
    fn constraint(
        &self,
        context: &ConstraintContext<'_>,
    ) -> Result<Box<dyn Constraint>, ConstraintError> {
        let manner = Manner { starts: Starts::AfterReasoning, writes: Writes::Text };
        let vocabulary = Vocabulary::of_model(context).map_err(unavailable)?;
        let compiled = self.compiled.get(&vocabulary, &self.grammar).map_err(unavailable)?;
        Ok(Box::new(GrammarConstraint::new(&compiled, manner)))
    }
}

pub(crate) fn unavailable(error: GuideError) -> ConstraintError {
    ConstraintError::unavailable(error.to_string())
}

/// One grammar, compiled for the vocabularies that it was last used with.
#[derive(Default)]
pub(crate) struct CompiledGrammars {
    known: Mutex<Vec<Known>>,
}

struct Known {
    vocabulary: Weak<Vocabulary>,
    compiled: Compiled,
}

impl std::fmt::Debug for CompiledGrammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledGrammars({})", self.lock().len())
    }
}

impl CompiledGrammars {
    /// # Errors
    /// A grammar that cannot be compiled.
    pub fn get(
        &self,
        vocabulary: &Arc<Vocabulary>,
        grammar: &CheckedGrammar,
    ) -> Result<Compiled, GuideError> {
        let found = self.lock().iter().find(|known| known.is_of(vocabulary)).map(Known::compiled);
        if let Some(compiled) = found {
            return Ok(compiled);
        }
        // Outside the lock: it takes its time, and who comes meanwhile does it too.
        let compiled = Compiled::new(grammar, vocabulary)?;
        let mut known = self.lock();
        known.retain(|known| known.vocabulary.strong_count() > 0);
        if known.len() >= COMPILED_MAX {
            known.remove(0);
        }
        known.push(Known { vocabulary: Arc::downgrade(vocabulary), compiled: compiled.clone() });
        Ok(compiled)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        // A list of whole entries is whole after a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    fn is_of(&self, vocabulary: &Arc<Vocabulary>) -> bool {
        std::ptr::eq(self.vocabulary.as_ptr(), Arc::as_ptr(vocabulary))
    }

    fn compiled(&self) -> Compiled {
        self.compiled.clone()
    }
}

//! Guides: constraints on the form of an answer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use nestling_runtime::{
    Constraint, ConstraintContext, ConstraintError, ConstraintSource, Starts, Writes,
};
use serde_json::{Value, json};

use crate::error::GuideError;
use crate::gbnf::is_gbnf;
use crate::gbnf_lark::gbnf_grammars;
use crate::grammar::{CheckedGrammar, explained};
use crate::limits::COMPILED_MAX;
use crate::matcher::{CompiledGrammar, GrammarConstraint, GrammarMode};
use crate::vocabulary::Vocabulary;

/// A constraint on the form of an answer. It applies after the model's reasoning, if there is any.
///
/// Clones share compiled grammars.
#[derive(Debug, Clone)]
pub struct Guide {
    grammar: CheckedGrammar,
    compiled: Arc<CompiledGrammars>,
}

impl Guide {
    /// Requires JSON that is valid for a schema, draft 2020-12 unless `$schema` names another. Formats in the
    /// schema are enforced.
    ///
    /// ```
    /// use nestling_guide::{Guide, GuideError};
    /// use serde_json::json;
    ///
    /// let city = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    /// let guide = Guide::json_schema(&city)?;
    /// let nothing = Guide::json_schema(&json!(false));
    /// assert!(matches!(nothing, Err(GuideError::Unsatisfiable { .. })));
    /// # Ok::<(), GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails for schemas over the limits in [`crate::limits`], and for schemas with keywords that cannot be
    /// enforced. Such keywords are named in the error; no part of a schema is ignored.
    pub fn json_schema(schema: &Value) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::json_schema(schema)?)
    }

    /// Does the same as [`Self::json_schema`], for the text of a schema.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// assert!(Guide::json_schema_text(r#"{"type": "integer", "minimum": 1}"#).is_ok());
    /// assert!(Guide::json_schema_text("{").is_err());
    /// ```
    ///
    /// # Errors
    /// Fails like [`Self::json_schema`], and if the text is not JSON.
    pub fn json_schema_text(schema: &str) -> Result<Self, GuideError> {
        Self::json_schema(&parse_schema(schema)?)
    }

    /// Requires a JSON object.
    ///
    /// # Errors
    /// Does not fail in practice.
    pub fn json_object() -> Result<Self, GuideError> {
        Self::json_schema(&json!({ "type": "object" }))
    }

    /// Requires text that a regular expression matches as a whole. The syntax is that of the crate `regex`,
    /// without look-around and anchors.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// let date = Guide::regex("[0-9]{4}-[0-9]{2}-[0-9]{2}")?;
    /// let error = Guide::regex("a(").err().map(|error| error.to_string());
    /// assert!(error.is_some_and(|error| error.contains("unclosed group")));
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the expression exceeds the limits or cannot be compiled.
    pub fn regex(regex: &str) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::regex(regex)?)
    }

    /// Requires text of a context-free grammar in Lark's syntax, in the dialect of `llguidance`. The rule
    /// `start` is the answer, and `%json` embeds a JSON schema.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// let guide = Guide::lark("start: word (\" \" word)*\nword: \"tick\" | \"tock\"")?;
    /// assert!(Guide::lark("start: nothing").is_err());
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the grammar exceeds the limits or cannot be compiled.
    pub fn lark(grammar: &str) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::lark(grammar)?)
    }

    /// Requires text of a context-free grammar in GBNF, llama.cpp's format. The rule `root` is the answer.
    ///
    /// The syntax is that of llama.cpp's `grammars/README.md`, and `{,n}` is `{0,n}`. Rules may be left-recursive.
    /// References to tokens (`<think>`, `<[1000]>`) are not supported, and neither is a class or range that
    /// matches no character. Each repetition is limited to [`crate::limits::REPEAT_MAX`]; llama.cpp removes a
    /// maximum over 2,000.
    ///
    /// Parts of a grammar that have no recursion are matched as a whole where that cannot change the language.
    /// In other parts each character is matched by itself, so that a mask takes more time with a large vocabulary,
    /// and a generation that exceeds the work limit ends with an error.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// let guide = Guide::gbnf("root ::= list\nlist ::= \"(\" (list | [a-z]+)* \")\"")?;
    /// let error = Guide::gbnf("root ::= nothing").err().map(|error| error.to_string());
    /// assert!(error.is_some_and(|error| error.contains("rule `nothing`")));
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if the grammar exceeds [`crate::limits`], has an error of syntax or cannot be compiled, if a rule is
    /// not defined or defined twice, and if there is no rule `root`.
    pub fn gbnf(grammar: &str) -> Result<Self, GuideError> {
        let [fast, slow] = gbnf_grammars(grammar)?;
        Self::of(fast).or_else(|_| Self::of(slow))
    }

    /// Requires text of a grammar in GBNF if one of its rules is written with `::=`, else in Lark's syntax.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// let lark = Guide::grammar("start: \"yes\" | \"no\"")?;
    /// let gbnf = Guide::grammar("root ::= \"yes\" | \"no\"")?;
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails like [`Self::gbnf`] and [`Self::lark`].
    pub fn grammar(grammar: &str) -> Result<Self, GuideError> {
        if is_gbnf(grammar) { Self::gbnf(grammar) } else { Self::lark(grammar) }
    }

    /// Requires one of several texts.
    ///
    /// ```
    /// use nestling_guide::Guide;
    ///
    /// let guide = Guide::choices(&["yes".into(), "no".into()])?;
    /// assert!(Guide::choices(&[]).is_err());
    /// # Ok::<(), nestling_guide::GuideError>(())
    /// ```
    ///
    /// # Errors
    /// Fails if `choices` is empty or exceeds [`crate::limits`].
    pub fn choices(choices: &[String]) -> Result<Self, GuideError> {
        Self::of(CheckedGrammar::choices(choices)?)
    }

    fn of(grammar: CheckedGrammar) -> Result<Self, GuideError> {
        // Compilation errors are reported here, before there is a model.
        CompiledGrammar::new(&grammar, &Vocabulary::of_bytes()?).map_err(explained)?;
        Ok(Self { grammar, compiled: Arc::default() })
    }
}

/// Parses the text of a schema.
///
/// # Errors
/// Fails with [`GuideError::Invalid`] or [`GuideError::Limit`].
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
        let manner = GrammarMode { starts: Starts::AfterReasoning, writes: Writes::Text };
        let vocabulary = Vocabulary::of_model(context).map_err(unavailable)?;
        let compiled = self.compiled.get(&vocabulary, &self.grammar).map_err(unavailable)?;
        Ok(Box::new(GrammarConstraint::new(&compiled, manner)))
    }
}

pub(crate) fn unavailable(error: GuideError) -> ConstraintError {
    ConstraintError::unavailable(error.to_string())
}

/// Cache of a grammar compiled for recently used vocabularies.
#[derive(Default)]
pub(crate) struct CompiledGrammars {
    known: Mutex<Vec<CachedGrammar>>,
}

struct CachedGrammar {
    vocabulary: Weak<Vocabulary>,
    compiled: CompiledGrammar,
}

impl std::fmt::Debug for CompiledGrammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CompiledGrammars({})", self.lock().len())
    }
}

impl CompiledGrammars {
    /// Returns the grammar compiled for a vocabulary.
    ///
    /// # Errors
    /// Fails if the grammar cannot be compiled.
    pub fn get(
        &self,
        vocabulary: &Arc<Vocabulary>,
        grammar: &CheckedGrammar,
    ) -> Result<CompiledGrammar, GuideError> {
        let found =
            self.lock().iter().find(|known| known.is_of(vocabulary)).map(CachedGrammar::compiled);
        if let Some(compiled) = found {
            return Ok(compiled);
        }
        // The lock is not held during the slow compilation, so that concurrent callers may compile too.
        let compiled = CompiledGrammar::new(grammar, vocabulary)?;
        let mut known = self.lock();
        known.retain(|known| known.vocabulary.strong_count() > 0);
        if known.len() >= COMPILED_MAX {
            known.remove(0);
        }
        known.push(CachedGrammar {
            vocabulary: Arc::downgrade(vocabulary),
            compiled: compiled.clone(),
        });
        Ok(compiled)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CachedGrammar>> {
        // Entries are added as a whole, so that the list is valid after a panic.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CachedGrammar {
    fn is_of(&self, vocabulary: &Arc<Vocabulary>) -> bool {
        std::ptr::eq(self.vocabulary.as_ptr(), Arc::as_ptr(vocabulary))
    }

    fn compiled(&self) -> CompiledGrammar {
        self.compiled.clone()
    }
}

//! Matching of one answer against a grammar.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::api::{GrammarInit, TopLevelGrammar};
use llguidance::earley::lexerspec::LexerSpec;
use nestling_runtime::{Constraint, ConstraintError, Starts, TokenMask, Writes};

use crate::error::GuideError;
use crate::grammar::CheckedGrammar;
use crate::json_ending::{JsonBounds, JsonEnding};
use crate::json_scan::TokenKinds;
#[cfg(not(target_family = "wasm"))]
use crate::limits::COMPILE_STACK_BYTES;
use crate::limits::{COMPILE_FUEL, parser_limits};
use crate::vocabulary::Vocabulary;

/// A grammar compiled for a vocabulary, in its initial state.
#[derive(Clone)]
pub(crate) struct CompiledGrammar {
    matcher: Matcher,
    kinds: Arc<TokenKinds>,
    json: Option<JsonBounds>,
}

impl CompiledGrammar {
    /// # Errors
    /// Fails with [`GuideError::NotCompiled`] and the message of the grammar engine.
    pub fn new(grammar: &CheckedGrammar, vocabulary: &Vocabulary) -> Result<Self, GuideError> {
        let CheckedGrammar { grammar, what, json } = grammar;
        let compile = || compile(grammar.clone(), vocabulary);
        let matcher =
            with_stack(compile).map_err(|reason| GuideError::not_compiled(what, &reason))?;
        Ok(Self { matcher, kinds: Arc::clone(&vocabulary.kinds), json: *json })
    }

    /// Creates the matcher of an answer. It shares no state with other answers, so that they do not wait for
    /// each other.
    pub fn begin(&self) -> Matcher {
        self.matcher.deep_clone()
    }
}

/// Runs a compilation on a thread with a stack of [`COMPILE_STACK_BYTES`], because the grammar engine compiles
/// nested definitions recursively. A panic is an error.
#[cfg(not(target_family = "wasm"))]
fn with_stack<T: Send>(compile: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(COMPILE_STACK_BYTES);
        let thread = thread.spawn_scoped(scope, compile).map_err(|error| error.to_string())?;
        thread.join().unwrap_or_else(|_| Err("it panicked".into()))
    })
}

/// Runs a compilation where there are no threads. A panic and an exhausted stack are traps there.
#[cfg(target_family = "wasm")]
fn with_stack<T>(compile: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    compile()
}

fn compile(grammar: TopLevelGrammar, vocabulary: &Vocabulary) -> Result<Matcher, String> {
    let factory = &vocabulary.factory;
    let (env, limits) = (factory.tok_env().clone(), factory.limits().clone());
    let internal = GrammarInit::Serialized(grammar).to_internal(Some(env), limits);
    let (grammar, lexer) = internal.map_err(|error| error.to_string())?;
    check_first_transitions(&lexer)?;
    let init = GrammarInit::Internal(grammar, lexer);
    let matcher = Matcher::new(factory.create_parser_from_init_default(init));
    matcher.get_error().map_or(Ok(matcher), Err)
}

/// Computes the lexer's first transitions within [`COMPILE_FUEL`]. The grammar engine computes the same
/// transitions without a limit (llguidance 1.9.1, `Lexer::from`), and an intersection of a few regular
/// expressions can take hours.
fn check_first_transitions(lexer: &LexerSpec) -> Result<(), String> {
    let mut limits = parser_limits();
    let mut dfa = lexer.to_regex_vec(&mut limits).map_err(|error| error.to_string())?;
    dfa.set_fuel(COMPILE_FUEL);
    let start = dfa.initial_state(&lexer.all_lexemes());
    for byte in 0..=u8::MAX {
        dfa.transition(start, byte);
        if dfa.has_error() {
            return Err("its regular expressions take too much work".into());
        }
    }
    Ok(())
}

/// Start condition and output of a grammar.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GrammarMode {
    pub starts: Starts,
    pub writes: Writes,
}

pub(crate) struct GrammarConstraint {
    matcher: Matcher,
    /// Initial state, to which the constraint returns for each call.
    compiled: CompiledGrammar,
    manner: GrammarMode,
    has_begun: bool,
    /// Preferences, if the text is JSON.
    ending: Option<JsonEnding>,
}

impl GrammarConstraint {
    pub fn new(compiled: &CompiledGrammar, manner: GrammarMode) -> Self {
        let (matcher, compiled) = (compiled.begin(), compiled.clone());
        let ending = compiled.json.map(|json| JsonEnding::new(Arc::clone(&compiled.kinds), json));
        Self { matcher, compiled, manner, has_begun: false, ending }
    }

    /// Returns true if the grammar allows no more text.
    fn is_stopped(&self) -> Result<bool, ConstraintError> {
        match self.matcher.get_error() {
            Some(error) => Err(failed(error)),
            None => Ok(self.matcher.is_stopped()),
        }
    }
}

fn failed(error: impl std::fmt::Display) -> ConstraintError {
    match GuideError::not_compiled("the answer", &error.to_string()) {
        GuideError::NotCompiled { reason, .. } => ConstraintError::failed(reason),
        other => ConstraintError::failed(other.to_string()),
    }
}

impl Constraint for GrammarConstraint {
    fn starts(&self) -> Starts {
        self.manner.starts
    }

    fn writes(&self) -> Writes {
        self.manner.writes
    }

    fn start(&mut self, _: Option<&str>) -> Result<bool, ConstraintError> {
        if std::mem::replace(&mut self.has_begun, true) {
            self.matcher = self.compiled.begin();
            self.ending.iter_mut().for_each(JsonEnding::restart);
        }
        Ok(true)
    }

    fn set_tokens_left(&mut self, tokens: usize) {
        self.ending.iter_mut().for_each(|ending| ending.set_tokens_left(tokens));
    }

    fn mask(&mut self, mask: &mut TokenMask) -> Result<(), ConstraintError> {
        if self.is_stopped()? {
            return Ok(());
        }
        let allowed = self.matcher.compute_mask().map_err(failed)?;
        let preferred = self.ending.as_ref().and_then(|ending| ending.preferred(&allowed));
        mask.set_words(preferred.as_ref().unwrap_or(&allowed).as_slice());
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.matcher.consume_token(token).map_err(failed)?;
        self.ending.iter_mut().for_each(|ending| ending.accept(token));
        Ok(())
    }

    fn forced(&mut self) -> Result<Vec<u32>, ConstraintError> {
        if self.is_stopped()? {
            return Ok(Vec::new());
        }
        let tokens = self.matcher.compute_ff_tokens();
        match self.matcher.get_error() {
            None => Ok(tokens),
            Some(error) => Err(failed(error)),
        }
    }

    fn may_end(&mut self) -> Result<bool, ConstraintError> {
        Ok(self.is_stopped()? || self.matcher.is_accepting().map_err(failed)?)
    }

    fn is_done(&mut self) -> Result<bool, ConstraintError> {
        let ends_value = self.ending.as_ref().is_some_and(JsonEnding::ends_value);
        Ok(self.is_stopped()? || ends_value && self.may_end()?)
    }
}

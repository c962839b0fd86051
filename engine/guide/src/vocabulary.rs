//! Vocabulary of a model in the form of the grammar engine.

use std::sync::Arc;

use llguidance::earley::SlicedBiasComputer;
use llguidance::{ParserFactory, toktrie};
use nestling_runtime::ConstraintContext;
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};
use toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use crate::error::GuideError;
use crate::json_scan::TokenKinds;
use crate::limits::{TOKEN_BYTES_MAX, VOCABULARY_BYTES_MAX, parser_limits};

/// Tokens of a model, and the compiler of grammars for them.
pub(crate) struct Vocabulary {
    pub factory: ParserFactory,
    pub kinds: Arc<TokenKinds>,
}

/// Tokens as bytes, with a tokenizer for text.
struct Tokens {
    trie: TokTrie,
    /// Tokenizer; without one, each byte is a token.
    tokenizer: Option<Tokenizer>,
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        let Some(tokenizer) = &self.tokenizer else { return self.trie.greedy_tokenize(bytes) };
        let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let tokens = tokenizer.encode(text, options);
            tokens.unwrap_or_else(|_| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }
}

impl Vocabulary {
    /// Returns the vocabulary of a model, which is cached with the model.
    ///
    /// # Errors
    /// Fails with [`GuideError::Vocabulary`].
    pub fn of_model(context: &ConstraintContext<'_>) -> Result<Arc<Self>, GuideError> {
        let no_tokenizer = || GuideError::Vocabulary { reason: "it has no tokenizer".into() };
        let tokenizer = context.tokenizer.ok_or_else(no_tokenizer)?;
        context.cache.get(|| {
            let words = token_bytes(tokenizer, context.vocab_size)?;
            Self::new(words, Some(tokenizer.clone()))
        })
    }

    /// Creates a vocabulary with one token per byte. A grammar that compiles for it compiles for all models,
    /// apart from work limits.
    ///
    /// # Errors
    /// Does not fail in practice.
    pub fn of_bytes() -> Result<Self, GuideError> {
        let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
        words.push(END.to_vec());
        Self::new(words, None)
    }

    /// Creates a vocabulary. The last of `words` ends a text and has an id that no model has, because end
    /// tokens are handled by the engine.
    fn new(words: Vec<Vec<u8>>, tokenizer: Option<Tokenizer>) -> Result<Self, GuideError> {
        let fault = |reason: String| GuideError::Vocabulary { reason };
        let tokens = words.len() - 1;
        let end = u32::try_from(tokens).map_err(|_| fault(format!("{tokens} tokens")))?;
        let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
        let env: TokEnv = Arc::new(Tokens { trie, tokenizer });
        let capabilities = InferenceCapabilities { ff_tokens: true, ..Default::default() };
        let slices = SlicedBiasComputer::json_slices();
        let factory = ParserFactory::new(&env, capabilities, &slices);
        let mut factory = factory.map_err(|error| fault(error.to_string()))?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(Self { factory, kinds: Arc::new(TokenKinds::new(env)) })
    }
}

/// Pseudo-token that ends a text.
const END: [u8; 8] = *b"\xff<|end|>";

/// Returns whether a token is a marker: a special token, or an added token that looks like a tag. Text never
/// contains markers.
pub(crate) fn is_marker(tokenizer: &Tokenizer, id: u32) -> bool {
    if tokenizer.is_special(id) {
        return true;
    }
    let bytes = tokenizer.token_bytes(id);
    // `<` and `>` alone are text in many vocabularies.
    bytes.is_some_and(|bytes| {
        bytes.len() > 2
            && bytes.starts_with(b"<")
            && bytes.ends_with(b">")
            && std::str::from_utf8(bytes).is_ok_and(|text| tokenizer.is_added(text))
    })
}

/// Returns the bytes of all tokens, with a prefix for markers. Tokens that are never chosen are empty.
fn token_bytes(tokenizer: &Tokenizer, tokens: usize) -> Result<Vec<Vec<u8>>, GuideError> {
    let mut words = Vec::with_capacity(tokens + 1);
    let mut total = 0;
    for id in (0..tokens).map_while(|index| u32::try_from(index).ok()) {
        // Default: unassigned ids, and tokens of other kinds of vocabularies, have no bytes.
        let bytes = tokenizer.token_bytes(id).unwrap_or_default();
        let word = match is_marker(tokenizer, id) {
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
            false => bytes.to_vec(),
        };
        let is_long = word.len() > TOKEN_BYTES_MAX;
        words.push(if is_long { Vec::new() } else { word });
        total += words.last().map_or(0, Vec::len);
    }
    let reason = match total {
        0 => "its tokens have no bytes of their own".to_owned(),
        _ if total > VOCABULARY_BYTES_MAX => {
            format!("{total} bytes of tokens, over the limit of {VOCABULARY_BYTES_MAX}")
        }
        _ => {
            words.push(END.to_vec());
            return Ok(words);
        }
    };
    Err(GuideError::Vocabulary { reason })
}

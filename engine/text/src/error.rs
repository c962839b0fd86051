use std::time::Duration;

use thiserror::Error;

/// What can go wrong between text and tokens.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A tokenizer or template file that is not what it should be.
    #[error("{file}: {what}: expected {expected}, found {found}")]
    Invalid {
        /// Which file or asset.
        file: String,
        /// Which part of it.
        what: String,
        /// What would have been valid.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tokenizer or template larger than the limit.
    #[error("{what} of {found} bytes, at most {limit} bytes are accepted")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Tools for a model whose chat template has no place for them: it would never hear of them.
    #[error("{tools} tools were given, and the chat template of this model knows none")]
    ToolsUnknown {
        /// How many.
        tools: usize,
    },
    /// The tokenizer refused a text.
    #[error("cannot tokenize: {reason}")]
    Tokenize {
        /// The tokenizer's reason.
        reason: String,
    },
    /// The tokenizer library panicked over what the model's file describes.
    #[error("the tokenizer of this model failed in {what}: it is damaged, or made to fail")]
    TokenizerPanicked {
        /// What it was doing.
        what: &'static str,
    },
    /// The caller cancelled while a text was encoded.
    #[error("cancelled while a text was tokenized")]
    EncodingCancelled,
    /// The tokenizer takes longer for a text than any sound one does.
    #[error(
        "the tokenizer of this model took more than {limit:?} for the text: it is damaged, or made to fail"
    )]
    EncodingDeadline {
        /// The time that the text has.
        limit: Duration,
    },
    /// The tokenizer takes more memory for a text than any sound one does for a text that has a sense.
    #[error("the text would take more than {limit} bytes of memory to tokenize")]
    EncodingMemory {
        /// The most that a text may take.
        limit: usize,
    },
    /// A token id that the tokenizer does not have.
    #[error("token {id} is not in the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// How many ids there are.
        vocab_size: usize,
    },
    /// The chat template does not parse.
    #[error("chat template, line {line}: {reason}")]
    TemplateSyntax {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// The chat template failed on these messages.
    #[error("chat template, line {line}: {reason}")]
    TemplateRender {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// What failed.
        reason: String,
    },
    /// The chat template itself refused the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// The template's own words.
        message: String,
    },
    /// The chat template ran longer than its allowance.
    #[error("the chat template did more than {limit} units of work")]
    TemplateFuel {
        /// The allowance in units of work, about one for a nanosecond.
        limit: u64,
    },
    /// A value or the whole output of a chat template grew beyond the limit.
    #[error("the chat template makes more than {limit} bytes of text")]
    TemplateOutput {
        /// The limit in bytes.
        limit: usize,
    },
    /// The values of a chat template grew beyond the limit.
    #[error("the chat template needs more than {limit} bytes of memory")]
    TemplateMemory {
        /// The limit in bytes.
        limit: usize,
    },
    /// The chat template took too long.
    #[error("the chat template took longer than {limit:?}")]
    TemplateDeadline {
        /// The time that was allowed.
        limit: Duration,
    },
    /// The caller ended the rendering of the chat template.
    #[error("the rendering of the chat template was cancelled")]
    TemplateCancelled,
    /// The model came without a chat template.
    #[error("this model has no chat template; give plain text or token ids instead of messages")]
    NoTemplate,
    /// An option that makes no sense.
    #[error("{what}: expected {expected}, found {found}")]
    InvalidOption {
        /// Which option.
        what: &'static str,
        /// What would have been valid.
        expected: &'static str,
        /// What was given.
        found: String,
    },
}

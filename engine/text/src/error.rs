use std::time::Duration;

use thiserror::Error;

/// An error of tokenization, chat templates or output parsing.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TextError {
    /// A malformed tokenizer or template file.
    #[error("{file}: {what}: expected {expected}, found {found}")]
    Invalid {
        /// File or asset name.
        file: String,
        /// Part of the file.
        what: String,
        /// Description of a valid value.
        expected: String,
        /// The value found.
        found: String,
    },
    /// A tokenizer or template that exceeds the size limit.
    #[error("{what} of {found} bytes, at most {limit} bytes are accepted")]
    TooLarge {
        /// Kind of input.
        what: &'static str,
        /// Size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// Tools were given, but the model's chat template does not support tools and would omit them.
    #[error("{tools} tools were given, but the chat template of this model does not support tools")]
    ToolsUnknown {
        /// Number of tools.
        tools: usize,
    },
    /// The tokenizer failed on a text.
    #[error("cannot tokenize: {reason}")]
    Tokenize {
        /// The tokenizer's reason.
        reason: String,
    },
    /// The tokenizer library panicked because of the contents of the model's file.
    #[error("the tokenizer of this model failed in {what}: it is damaged or malicious")]
    TokenizerPanicked {
        /// Operation during which the panic happened.
        what: &'static str,
    },
    /// The caller cancelled the encoding of a text.
    #[error("cancelled while a text was tokenized")]
    EncodingCancelled,
    /// Tokenization exceeded its time limit, which no valid tokenizer reaches.
    #[error(
        "the tokenizer of this model took more than {limit:?} for the text: it is damaged or malicious"
    )]
    EncodingDeadline {
        /// Time limit for the text.
        limit: Duration,
    },
    /// Tokenization would exceed its memory limit, which no valid tokenizer reaches for meaningful text.
    #[error("the text would take more than {limit} bytes of memory to tokenize")]
    EncodingMemory {
        /// The limit in bytes.
        limit: usize,
    },
    /// The memory for tokenizing a text is not available now.
    #[error("out of memory: tokenizing the text would take {bytes} bytes")]
    OutOfMemory {
        /// Estimated number of bytes.
        bytes: u64,
    },
    /// A token id outside the vocabulary.
    #[error("token {id} is not in the vocabulary of {vocab_size} tokens")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Number of ids in the vocabulary.
        vocab_size: usize,
    },
    /// A syntax error in the chat template.
    #[error("chat template, line {line}: {reason}")]
    TemplateSyntax {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// Message of the parser.
        reason: String,
    },
    /// The chat template failed to render these messages.
    #[error("chat template, line {line}: {reason}")]
    TemplateRender {
        /// Line of the template, from 1; 0 when unknown.
        line: usize,
        /// Reason of the failure.
        reason: String,
    },
    /// The chat template itself rejected the conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {message}")]
    TemplateRefused {
        /// Message of the template.
        message: String,
    },
    /// The chat template exceeded its work limit.
    #[error("the chat template did exceeded the limit of {limit} units of work")]
    TemplateFuel {
        /// The limit in units of work, about one per nanosecond.
        limit: u64,
    },
    /// A value or the output of a chat template exceeded its size limit.
    #[error("the chat template makes more than {limit} bytes of text")]
    TemplateOutput {
        /// The limit in bytes.
        limit: usize,
    },
    /// The values of a chat template exceeded the memory limit.
    #[error("the chat template needs more than {limit} bytes of memory")]
    TemplateMemory {
        /// The limit in bytes.
        limit: usize,
    },
    /// The chat template exceeded its time limit.
    #[error("the chat template took longer than {limit:?}")]
    TemplateDeadline {
        /// The time limit.
        limit: Duration,
    },
    /// The caller cancelled the rendering of the chat template.
    #[error("the rendering of the chat template was cancelled")]
    TemplateCancelled,
    /// The model has no chat template.
    #[error("this model has no chat template; give plain text or token ids instead of messages")]
    NoTemplate,
    /// An invalid option.
    #[error("{what}: expected {expected}, found {found}")]
    InvalidOption {
        /// Name of the option.
        what: &'static str,
        /// Description of a valid value.
        expected: &'static str,
        /// The value given.
        found: String,
    },
}

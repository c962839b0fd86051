//! Text input and output: tokenization, sampling, messages, chat templates and streamed output.
//!
//! This crate is independent of models and devices; sessions combine them.

mod argument_types;
mod call_form;
mod call_head;
mod call_stream;
mod channels;
mod chat_template;
mod detokenize;
mod encode_stop;
mod error;
mod json_compact;
mod limits;
mod messages;
mod output_dialects;
mod output_event;
mod output_format;
mod output_parser;
mod sampler;
mod spelling;
mod stop;
mod tagged_output;
mod template_time;
mod token_bound;
mod token_mask;
mod tokenizer;
mod tokenizer_parts;
mod wire;
mod word_cache;
mod word_split;

pub use argument_types::ArgumentTypes;
pub use call_form::CallForm;
pub use chat_template::{ChatInput, ChatTemplate, ContentTokens, RenderedChat};
pub use detokenize::DetokenizeStream;
pub use error::TextError;
pub use messages::{ContentPart, Message, MessageContent, Role, ToolCall, ToolSchema};
pub use output_event::{OutputEvent, OutputPlace};
pub use output_format::{OutputFormat, TagPair, TaggedFormat};
pub use output_parser::OutputParser;
pub use sampler::{
    InvalidParameter, SampleError, Sampled, Sampler, SamplingParams, TokenLogprobs, logprobs_of,
};
pub use stop::{StopMatcher, StopOutput};
pub use template_time::TemplateTime;
pub use token_mask::TokenMask;
pub use tokenizer::{EncodeOptions, SpecialText, Tokenizer};

#[cfg(test)]
mod tests;

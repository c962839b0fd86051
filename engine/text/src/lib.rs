//! Text input and output: tokenization, sampling, messages, chat templates and streamed output.
//!
//! This crate is independent of models and devices; sessions combine them. All input is untrusted: files of a
//! model, messages and options are checked, and errors are typed ([`TextError`], [`SampleError`]).
//!
//! # Example
//!
//! Messages become the text of a prompt, and the output is split into reasoning, text and tool calls:
//!
//! ```
//! use nestling_text::{ChatInput, ChatTemplate, Message, OutputEvent, OutputFormat, OutputParser};
//!
//! let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|><think>";
//! let messages = [Message::user("How deep is the sea?")];
//! let input = ChatInput { messages: &messages, ..ChatInput::default() };
//! let prompt = ChatTemplate::new(source)?.render(&input)?.text();
//! assert_eq!(prompt, "<|user|>How deep is the sea?<|assistant|><think>");
//!
//! let mut parser = OutputParser::new(OutputFormat::detect(source, &prompt, &[]), 0);
//! let mut events = parser.push("It varies.</think>");
//! events.extend(parser.push("Up to 11 km."));
//! events.extend(parser.finish());
//! assert_eq!(events.first(), Some(&OutputEvent::Reasoning("It varies.".into())));
//! assert_eq!(events.last(), Some(&OutputEvent::Text("Up to 11 km.".into())));
//! # Ok::<(), nestling_text::TextError>(())
//! ```
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`Tokenizer`] | text to token ids and back |
//! | [`DetokenizeStream`] | text of token ids that arrive one at a time |
//! | [`Sampler`], [`SamplingParams`], [`SamplingOptions`] | choice of the next token |
//! | [`TokenMask`] | set of tokens allowed by a constraint |
//! | [`Message`], [`ToolCall`], [`ToolSchema`] | conversation, in the JSON form of the OpenAI API |
//! | [`ChatTemplate`] | conversation to the text of a prompt |
//! | [`OutputParser`] | output to text, reasoning and tool calls |
//! | [`StopMatcher`] | stop strings |

mod argument_types;
mod call_form;
mod call_head;
mod call_stream;
mod channels;
mod chat_template;
mod conversation_json;
mod detokenize;
mod encode_stop;
mod error;
mod generic_tools;
mod json_compact;
mod limits;
mod messages;
mod output_dialects;
mod output_event;
mod output_format;
mod output_parser;
mod python_calls;
mod sampler;
mod sampling_options;
mod sampling_params;
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
pub use conversation_json::{ConversationJson, ConversationJsonError};
pub use detokenize::DetokenizeStream;
pub use error::TextError;
pub use generic_tools::ToolStyle;
pub use messages::{ContentPart, Message, MessageContent, Role, ToolCall, ToolSchema};
pub use output_event::{OutputEvent, OutputPlace};
pub use output_format::{OutputFormat, TagPair, TaggedFormat};
pub use output_parser::OutputParser;
pub use sampler::{SampleError, Sampled, Sampler, TokenLogprobs, logprobs_of};
pub use sampling_options::SamplingOptions;
pub use sampling_params::{InvalidParameter, SamplerKind, SamplingParams, UnknownSampler};
pub use stop::{StopMatcher, StopOutput};
pub use template_time::TemplateTime;
pub use token_mask::TokenMask;
pub use tokenizer::{EncodeOptions, SpecialText, Tokenizer};

#[cfg(test)]
mod tests;

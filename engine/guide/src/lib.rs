//! Answers that keep to a JSON schema, a regular expression, a grammar or a list of choices, and tool calls that keep to
//! the schemas of their tools.
//!
//! A [`Guide`] is what an answer must look like, checked against the limits of [`limits`]; as
//! [`nestling_runtime::GenerateOptions::constraint`] it holds for every model. It is compiled for a model's vocabulary
//! when a generation starts, and kept for the next one with the same model. What cannot be compiled is an error that
//! says why: nothing is ever left out of a schema.
//!
//! The grammar engine is `llguidance`. It sees tokens as the bytes that [`nestling_text::Tokenizer::token_bytes`] says,
//! and has text turned into tokens by the same tokenizer.

mod call_grammar;
mod error;
mod grammar;
mod guide;
pub mod limits;
mod matcher;
mod schema_check;
mod tools;
mod typed;
mod vocabulary;

pub use error::GuideError;
pub use guide::Guide;
pub use tools::{ToolChoice, ToolGuide};
pub use typed::{TypedGuide, schema_for};

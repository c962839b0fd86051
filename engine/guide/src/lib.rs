//! Answers that keep to a JSON schema, a regular expression, a grammar or a list of choices, and tool calls that keep to
//! the schemas of their tools.
//!
//! A [`Guide`] is what an answer must look like, checked against the limits of [`limits`]; as
//! [`nestling_runtime::GenerateOptions::constraint`] it holds for every model. It is compiled for a model's vocabulary
//! when a generation starts, and kept for the next one with the same model. What cannot be compiled is an error that
//! says why: nothing is ever left out of a schema.
//!
//! A schema is rewritten in the words that the grammar engine has: references become places in the same document,
//! `oneOf`, `not`, `if`, `contains`, `uniqueItems`, `propertyNames`, `dependentRequired`, `dependentSchemas`,
//! `unevaluatedProperties` and `unevaluatedItems` become something that admits the same or less, never more. Lists with
//! `uniqueItems` have one item at most, or so many of an `enum` of up to six values in its order, or items of different
//! types; with `minProperties` or `maxProperties` the named properties are there in their order, or not at all. A schema
//! without values has an error of its own ([`GuideError::Unsatisfiable`]).
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
mod schema_conjunctions;
mod schema_disjoint;
mod schema_narrow;
mod schema_negate;
mod schema_refs;
mod schema_unevaluated;
mod schema_work;
mod tools;
mod typed;
mod vocabulary;

pub use error::GuideError;
pub use guide::Guide;
pub use tools::{ToolChoice, ToolGuide};
pub use typed::{TypedGuide, schema_for};

//! Constrained answers: JSON schemas, regular expressions, grammars in Lark's syntax and in GBNF (llama.cpp's
//! format), lists of choices, and tool calls that follow the schemas of their tools.
//!
//! A [`Guide`] is a constraint on the form of an answer, checked against [`limits`]. Set it as
//! [`nestling_runtime::GenerateOptions::constraint`]; it works with all models. It is compiled for a model's
//! vocabulary when a generation starts, and cached for the next generation with the same model. A schema that
//! cannot be compiled is an error with a reason; no part of a schema is ignored.
//!
//! # Example
//!
//! ```
//! use std::sync::Arc;
//!
//! use nestling_core::CancelToken;
//! use nestling_guide::Guide;
//! use nestling_runtime::{Engine, EngineOptions, GenerateOptions, Model, ModelOptions};
//!
//! # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
//! let engine = Engine::new(EngineOptions::default())?;
//! let options = ModelOptions::default();
//! let model = Model::open(&engine, store, &options, &mut |_| {}, &CancelToken::new())?;
//!
//! let guide = Guide::choices(&["calm".into(), "stormy".into()])?;
//! let options =
//!     GenerateOptions { constraint: Some(Arc::new(guide)), ..GenerateOptions::greedy() };
//! let answer = model.session().generate("The sea was", &options)?.into_text()?;
//! assert!(["calm", "stormy"].contains(&answer.as_str()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`Guide`] | JSON schema, regular expression, grammar or list of choices |
//! | [`TypedGuide`] | answer that deserializes to a Rust type |
//! | [`ToolGuide`], [`ToolChoice`] | tool calls with valid arguments |
//! | [`GuideError`] | reason why a guide cannot be compiled |
//!
//! # Schemas
//!
//! A schema is rewritten to the keywords of the grammar engine. References are resolved within the same
//! document. `oneOf`, `not`, `if`, `contains`, `uniqueItems`, `propertyNames`, `dependentRequired`,
//! `dependentSchemas`, `unevaluatedProperties` and `unevaluatedItems` are replaced by schemas that admit the
//! same values or fewer, never more. A list with `uniqueItems` has at most one item, or values of an `enum`
//! of up to six values in its order, or items of different types. With `minProperties` or `maxProperties`,
//! named properties are required in their order, or absent. A schema without valid values has a separate
//! error ([`GuideError::Unsatisfiable`]).
//!
//! A `format` that JSON Schema does not define, such as `int32`, constrains nothing, as the specification says.
//! Neither does a `maxLength` above [`limits::COUNTED_LENGTH_MAX`], because the limit on tokens ends such a text.
//!
//! An answer under a schema draws to an end: numbers have at most [`limits::NUMBER_DIGITS`] digits in a row unless the schema
//! has longer ones, and within the last tokens before the limit ([`limits::CLOSING_TOKENS`]) the value is closed. What the
//! grammar requires always stays possible.
//!
//! The grammar engine is `llguidance`. It sees tokens as the bytes that
//! [`nestling_text::Tokenizer::token_bytes`] returns, and tokenizes text with the same tokenizer.

mod call_grammar;
mod error;
mod gbnf;
mod gbnf_lark;
mod gbnf_terminals;
mod grammar;
mod guide;
mod json_ending;
mod json_scan;
pub mod limits;
mod matcher;
mod schema_check;
mod schema_conjunctions;
mod schema_disjoint;
mod schema_narrow;
mod schema_negate;
mod schema_refs;
mod schema_unenforced;
mod schema_unevaluated;
mod schema_work;
mod tools;
mod typed;
mod vocabulary;

pub use error::GuideError;
pub use guide::Guide;
pub use tools::{ToolChoice, ToolGuide};
pub use typed::{TypedGuide, schema_for};

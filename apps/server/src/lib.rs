//! HTTP server for models, compatible with clients of the OpenAI, Anthropic and Ollama APIs.
//!
//! [`Server`] holds the state shared by all requests. [`router`] returns its routes, to be mounted in any
//! axum application. [`Listener`] serves them on its own threads, within the bounds of [`limits`]. Request
//! fields that would change the output and are not supported are errors that name the field; fields without
//! effect are listed in the response header `x-nestling-ignored`. No route accepts a file path.

mod access;
mod answer_form;
mod answers;
mod blocking;
mod body;
mod chat;
mod completions;
mod connection;
mod conversation;
mod describe;
mod error;
mod events;
mod field_path;
mod field_rules;
mod fields;
mod json;
pub mod limits;
mod listen;
mod listing;
mod logprobs;
mod memory;
mod messages;
mod metrics;
mod ollama;
mod openapi;
mod page;
mod parts;
mod pool;
mod prompt;
mod query;
mod reasoning;
mod response_store;
mod responses;
mod router;
mod samplers;
mod sampling;
mod served_model;
mod server;
mod sessions;
mod single_model;
mod source;
mod tokens;
mod tools;
mod tracked_body;
mod usage;

pub use access::{Access, AccessError};
pub use field_path::UnknownFields;
pub use listen::{ListenError, Listener};
pub use router::router;
pub use server::{Server, ServerOptions};
pub use single_model::Reopen;
pub use source::{ListedModel, ModelSource, OpenModelError, OpenedModel, PoolOptions};

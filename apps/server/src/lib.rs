//! Models over HTTP, as clients of the OpenAI API, Anthropic's and Ollama's expect them.
//!
//! [`Server`] holds what all requests share, [`router`] is the routes of it to mount anywhere, and [`Listener`] serves
//! them within the bounds of [`limits`] on threads of its own. Nothing in a request is ignored: what is unknown or not
//! supported is an error that names it. No route reads a path.

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
mod fields;
mod json;
pub mod limits;
mod listen;
mod listing;
mod logprobs;
mod lone;
mod memory;
mod messages;
mod metrics;
mod ollama;
mod openapi;
mod page;
mod parts;
mod pool;
mod prompt;
mod reasoning;
mod responses;
mod router;
mod sampling;
mod served;
mod server;
mod sessions;
mod source;
mod tokens;
mod tools;
mod usage;

pub use access::{Access, AccessError};
pub use listen::{ListenError, Listener};
pub use lone::Reopen;
pub use router::router;
pub use server::{Server, ServerOptions};
pub use source::{ListedModel, ModelSource, OpenModelError, OpenedModel, PoolOptions};

//! An interpreter of chat templates: the part of jinja2 that published templates use, with the
//! results that jinja2 has under `transformers`.
//!
//! A template comes with a model, so it is somebody else's program. It reaches no file, no clock
//! and no network; every byte that it makes others allocate and every step that it takes are
//! charged against [`RenderLimits`] before they happen; and nothing here recurses on its input, so
//! that no template is too deep for a thread's stack.

mod access;
mod arguments;
mod arithmetic;
mod compare;
mod emitter;
mod error;
mod expression;
mod filters;
mod functions;
mod iterate;
mod json;
mod lexer;
mod limits;
mod list_filters;
mod machine;
mod meter;
mod methods;
mod numbers;
mod operators;
mod parser;
mod predicates;
mod print;
mod program;
mod scopes;
mod sort;
mod template;
mod text;
mod text_filters;
mod text_methods;
mod value;

pub use error::{TemplateError, TemplateErrorKind};
pub use functions::Clock;
pub use limits::RenderLimits;
pub use template::{RenderOptions, Template};

//! Interpreter of chat templates: the subset of jinja2 that published templates use, with the same results as
//! jinja2 under `transformers`.
//!
//! A template is part of a model and is untrusted code. It has no access to files, the clock or the network.
//! All allocations and steps are charged against [`RenderLimits`] before they happen. The interpreter does
//! not recurse on its input, so that no template can overflow the stack.
//!
//! # Example
//!
//! ```
//! use nestling_template::{RenderOptions, Template};
//!
//! let template = Template::parse("Hello, {{ names | join(' and ') }}!")?;
//! let variables = serde_json::from_str(r#"{"names": ["Ada", "Grace"]}"#)?;
//! let text = template.render(&variables, &RenderOptions::default())?;
//! assert_eq!(text, "Hello, Ada and Grace!");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`Template`] | parsed template, rendered any number of times |
//! | [`RenderOptions`] | limits, cancellation and date of one rendering |
//! | [`RenderLimits`] | maximum memory, output, work and time |
//! | [`TemplateError`], [`TemplateErrorKind`] | line and cause of a failure |

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

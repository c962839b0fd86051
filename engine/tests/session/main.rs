//! Sessions and the step loop, on a model whose every answer is known.

mod fake;
mod histories;
mod steps;

//! Model graphs, CPU backend, sessions and text.

pub mod budget;
pub mod cancel;

pub use budget::{Budget, BudgetExceeded};
pub use cancel::CancelToken;

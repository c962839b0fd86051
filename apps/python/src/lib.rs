//! The extension module of the Python package `nestling`: what its Python half, in `python/nestling`, is made over.
//!
//! A handle holds what the Rust library has, behind a lock that nobody waits for. The interpreter is let go of while
//! the engine works; who waits looks for signals every 50 ms. No panic leaves it.

mod arrays;
mod call;
mod chat;
mod conversation;
mod error;
mod event;
mod gather;
mod generation;
mod hub;
mod model;
mod notify;
mod opening;
mod options;
mod progress;
mod session;
mod wait;

use pyo3::prelude::*;

/// What `nestling` is made over; programs import `nestling`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::arrays::Array;
    #[pymodule_export]
    use crate::chat::Chat;
    #[pymodule_export]
    use crate::generation::Generation;
    #[pymodule_export]
    use crate::hub::{Places, fetch};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::notify::stop_notifiers;
    #[pymodule_export]
    use crate::opening::{CancelToken, open};
    #[pymodule_export]
    use crate::session::Session;
}

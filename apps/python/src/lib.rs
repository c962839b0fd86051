//! The native extension module of the Python package `nestling`. The package in `python/nestling` is built on
//! it.
//!
//! A handle holds a value of the Rust library behind a lock on which no thread waits. The interpreter lock is
//! released while the engine works. Waiting calls check for signals every 50 ms. Panics are converted to
//! exceptions.

mod arrays;
mod call;
mod chat;
mod conversation;
mod engine;
mod error;
mod event;
mod gather;
mod generation;
mod hub;
mod log;
mod model;
mod notify;
mod opening;
mod options;
mod progress;
mod session;
mod signal;
mod wait;

use pyo3::prelude::*;

/// Internal module of `nestling`; programs import `nestling` instead.
#[pymodule]
mod _core {
    #[pymodule_export]
    use crate::arrays::Array;
    #[pymodule_export]
    use crate::chat::Chat;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::generation::Generation;
    #[pymodule_export]
    use crate::hub::{HubPaths, fetch};
    #[pymodule_export]
    use crate::log::{LogQueue, set_log_level};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::notify::stop_notifiers;
    #[pymodule_export]
    use crate::opening::{CancelToken, open};
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::signal::Signal;
}

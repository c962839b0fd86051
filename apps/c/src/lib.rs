//! Nestling for C: what `nestling.h` declares.
//!
//! A handle is a box of Rust's; a call checks what it is given, catches every panic, and says what went wrong in an error
//! of its own. What callers promise stands in the header's introduction (`header.txt`).

mod cancel;
mod chat;
mod conversation;
mod error;
mod event;
mod generation;
mod given;
mod log;
mod model;
mod options;
mod session;
mod sized;
mod text;

pub use cancel::*;
pub use chat::*;
pub use error::*;
pub use event::*;
pub use generation::*;
pub use log::*;
pub use model::*;
pub use options::*;
pub use session::*;
pub use text::nestling_string_free;

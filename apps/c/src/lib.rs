//! Nestling for C: what `nestling.h` declares.
//!
//! A handle is a box of Rust's; a call checks what it is given, catches every panic, and says what went wrong in an error
//! of its own. What callers promise stands in the header's introduction (`cbindgen.toml`).

mod cancel;
mod chat;
mod engine;
mod error;
mod event;
mod generation;
mod given;
mod log;
mod model;
mod options;
mod owner;
mod session;
mod sized;
mod text;
mod tokenizer;
mod version;

pub use cancel::*;
pub use chat::*;
pub use engine::*;
pub use error::*;
pub use event::*;
pub use generation::*;
pub use log::*;
pub use model::*;
pub use options::*;
pub use session::*;
pub use text::nestling_string_free;
pub use tokenizer::*;
pub use version::nestling_version;

/// Threads of C share handles.
const fn is_shared<T: Send + Sync>() {}

const _: () = {
    is_shared::<NestlingEngine>();
    is_shared::<NestlingModel>();
    is_shared::<NestlingSession>();
    is_shared::<NestlingChat>();
    is_shared::<NestlingGeneration>();
    is_shared::<NestlingCancel>();
    is_shared::<NestlingBytes>();
    is_shared::<NestlingTokens>();
    is_shared::<NestlingError>();
};

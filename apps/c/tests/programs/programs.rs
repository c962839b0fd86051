//! The programs in Rust that those in C and C++ are compared with.

#[path = "../../../../examples/embed/budget.rs"]
pub mod budget;
#[path = "../../../../examples/embed/cancel.rs"]
pub mod cancel;
#[path = "../../../../examples/embed/chat.rs"]
pub mod chat;
#[path = "../../../../examples/embed/gguf.rs"]
pub mod gguf;
#[path = "../../../../examples/embed/snapshot.rs"]
pub mod snapshot;
#[path = "../../../../examples/embed/threads.rs"]
pub mod threads;
#[path = "../../../../examples/embed/tool.rs"]
pub mod tool;

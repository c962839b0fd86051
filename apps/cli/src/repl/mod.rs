//! Interactive input of a chat: line editing and slash commands.

pub mod command;
pub mod input;

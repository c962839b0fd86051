//! The chat at a terminal: reading lines, slash commands, the conversation.

pub mod command;
pub mod input;

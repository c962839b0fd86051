//! What a model's output is made of.

use super::messages::ToolCall;

/// Longest tool call; beyond it the text is passed on as it is.
pub(super) const CALL_BYTES_MAX: usize = 1 << 20;

/// One piece of a model's output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputEvent {
    /// Words of the answer.
    Text(String),
    /// Words of the reasoning before it.
    Reasoning(String),
    /// A complete tool call.
    ToolCall(ToolCall),
}

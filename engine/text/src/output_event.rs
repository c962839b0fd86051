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
    /// A tool call begins. It will be one, whatever follows.
    ToolCallStart {
        /// Among the calls of the answer, from 0.
        index: usize,
        /// What a tool's result refers to.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of the arguments of the call that began last.
    ToolCallArguments {
        /// The call's.
        index: usize,
        /// All of a call are its [`ToolCall::arguments_text`].
        delta: String,
    },
    /// The tool call that began last, whole. Arguments that broke off are text in place of an object.
    ToolCall(ToolCall),
}

/// Where in an answer the output is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputPlace<'a> {
    /// In the reasoning.
    Reasoning,
    /// Where the answer's words are.
    Text {
        /// They are no remark on the way, such as a preamble of tool calls.
        is_final: bool,
    },
    /// In a tool call, behind the marker that opens it.
    Call {
        /// The tool's name, where the marker has it.
        name: Option<&'a str>,
        /// What stands behind the marker so far.
        text: &'a str,
    },
    /// Between messages, or in the header of one.
    Between,
    /// Behind a marker that ends the answer.
    End,
}

//! Events of a model's output.

use super::messages::ToolCall;

/// Maximum length of a tool call in bytes. Text beyond it is passed on unchanged.
pub(super) const CALL_BYTES_MAX: usize = 1 << 20;

/// One event of a model's output.
#[derive(Debug, Clone, PartialEq)]
pub enum OutputEvent {
    /// Text of the response.
    Text(String),
    /// Text of the reasoning.
    Reasoning(String),
    /// The start of a tool call. The call remains one whatever text follows.
    ToolCallStart {
        /// Index among the calls of the response, from 0.
        index: usize,
        /// Id that the tool's result refers to.
        id: String,
        /// The function's name.
        name: String,
    },
    /// A chunk of arguments of the most recently started call.
    ToolCallArguments {
        /// Index of the call.
        index: usize,
        /// Chunk of text. All chunks of a call concatenated are its [`ToolCall::arguments_text`].
        delta: String,
    },
    /// The most recently started tool call, complete. Arguments that broke off are text instead of an object.
    ToolCall(ToolCall),
}

/// Place in a response that the output has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutputPlace<'a> {
    /// Inside the reasoning.
    Reasoning,
    /// Inside the text of the response.
    Text {
        /// False for an intermediate remark, such as a preamble of tool calls.
        is_final: bool,
    },
    /// Inside a tool call, after the opening marker.
    Call {
        /// Name of the tool, if the marker contains it.
        name: Option<&'a str>,
        /// Text after the marker so far.
        text: &'a str,
    },
    /// Between messages, or in the header of one.
    Between,
    /// After a marker that ends the response.
    End,
}

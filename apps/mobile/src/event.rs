//! Events of a generation.

use crate::summary::{Summary, ToolCall};

/// A likely token with its log-probability.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct TopToken {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of the probability.
    pub log_prob: f32,
}

/// A token with its probability.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct TokenInfo {
    /// Token id.
    pub token: u32,
    /// Bytes of the token, possibly part of a character.
    pub bytes: Vec<u8>,
    /// Natural logarithm of the probability before any sampling option, if requested.
    pub log_prob: Option<f32>,
    /// Requested number of likeliest tokens, likeliest first.
    pub top: Vec<TopToken>,
}

/// An event of a generation.
#[derive(Clone, Debug, PartialEq, uniffi::Enum)]
pub enum Event {
    /// Further text of the answer, always whole characters.
    Text {
        /// The text.
        text: String,
    },
    /// Further text of the reasoning before the answer.
    Reasoning {
        /// The text.
        text: String,
    },
    /// A chosen token, before the text that it completes.
    Token {
        /// The token.
        info: TokenInfo,
    },
    /// A token of the prompt. The first one has no log-probability.
    PromptToken {
        /// The token.
        info: TokenInfo,
    },
    /// A hidden row of the prompt.
    HiddenRow {
        /// Position of the token.
        position: u64,
        /// Elements of the row.
        values: Vec<f32>, // [hidden_size]
    },
    /// Start of a tool call.
    ToolCallStart {
        /// Index among the tool calls of the answer, from 0.
        index: u64,
        /// Id of the call.
        id: String,
        /// Name of the tool.
        name: String,
    },
    /// Further arguments of a tool call.
    ToolCallArguments {
        /// Index of the call.
        index: u64,
        /// Next part of the arguments.
        delta: String,
    },
    /// A completed tool call.
    ToolCallDone {
        /// The call.
        call: ToolCall,
    },
    /// The last event of an answer that did not fail.
    Finished {
        /// Result of the answer.
        summary: Summary,
    },
}

impl Event {
    /// Converts an event. Returns `None` for kinds that the bindings do not have.
    pub(crate) fn of(event: nestling::Event) -> Option<Self> {
        Some(match event {
            nestling::Event::Text(text) => Self::Text { text },
            nestling::Event::Reasoning(text) => Self::Reasoning { text },
            nestling::Event::Token(token) => Self::Token { info: token.into() },
            nestling::Event::PromptToken(token) => Self::PromptToken { info: token.into() },
            nestling::Event::Hidden(row) => {
                Self::HiddenRow { position: row.position as u64, values: row.values }
            }
            nestling::Event::ToolCallStart { index, id, name } => {
                Self::ToolCallStart { index: index as u64, id, name }
            }
            nestling::Event::ToolCallArguments { index, delta } => {
                Self::ToolCallArguments { index: index as u64, delta }
            }
            nestling::Event::ToolCall(call) => Self::ToolCallDone { call: (&call).into() },
            nestling::Event::Finished(finished) => Self::Finished { summary: (&finished).into() },
            _ => return None,
        })
    }
}

impl From<nestling::TokenEvent> for TokenInfo {
    fn from(event: nestling::TokenEvent) -> Self {
        let nestling::TokenEvent { token, bytes, log_prob, top, .. } = event;
        let top = top.into_iter().map(|(token, log_prob)| TopToken { token, log_prob }).collect();
        Self { token, bytes, log_prob, top }
    }
}

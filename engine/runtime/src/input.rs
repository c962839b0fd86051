//! What a session is asked to go on from.

use serde_json::{Map, Value};

use nestling_text::{Message, OutputFormat, SpecialText, TemplateTime, ToolSchema};

/// The prompt of a generation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Input {
    /// The history as it is.
    History,
    /// A whole conversation, from its first message: it becomes the session's history. What it
    /// shares with the old history from the start is not computed again.
    Messages(Conversation),
    /// Text that is added to the history as it is.
    Text(String),
    /// Tokens that are added to the history.
    Tokens(Vec<u32>),
    /// What [`crate::Model::prompt`] made: it becomes the session's history, as a whole conversation does.
    Prompt(Prompt),
}

/// A prompt as the whole history that it makes, and how the answer to it is read. Of one model: to another one its
/// tokens mean other words.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) format: OutputFormat,
    /// Number of the next tool call of the conversation.
    pub(crate) next_call: usize,
}

impl Prompt {
    /// The history that it makes.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// A conversation, and what its chat template needs besides.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// The messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<ToolSchema>,
    /// Further variables of the template, such as `enable_thinking`.
    pub template_arguments: Map<String, Value>,
    /// The time for templates that print a date; without one such templates fail.
    pub now: Option<TemplateTime>,
    /// What the text of special tokens inside messages becomes: words, unless told otherwise, so
    /// that nobody's text can end a message or pose as somebody else.
    pub special_text: SpecialText,
    /// End with the start of an assistant message, so that the model answers.
    pub add_generation_prompt: bool,
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            tools: Vec::new(),
            template_arguments: Map::new(),
            now: None,
            special_text: SpecialText::Plain,
            add_generation_prompt: true,
        }
    }
}

/// A conversation without messages.
impl Default for Conversation {
    fn default() -> Self {
        Self::new([])
    }
}

impl From<Conversation> for Input {
    fn from(conversation: Conversation) -> Self {
        Self::Messages(conversation)
    }
}

impl From<Vec<Message>> for Input {
    fn from(messages: Vec<Message>) -> Self {
        Self::Messages(Conversation::new(messages))
    }
}

impl From<&[Message]> for Input {
    fn from(messages: &[Message]) -> Self {
        Self::Messages(Conversation::new(messages))
    }
}

impl From<Prompt> for Input {
    fn from(prompt: Prompt) -> Self {
        Self::Prompt(prompt)
    }
}

impl From<&str> for Input {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Input {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Vec<u32>> for Input {
    fn from(tokens: Vec<u32>) -> Self {
        Self::Tokens(tokens)
    }
}

impl From<&[u32]> for Input {
    fn from(tokens: &[u32]) -> Self {
        Self::Tokens(tokens.to_vec())
    }
}

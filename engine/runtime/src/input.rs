//! Inputs that start a generation.

use serde_json::{Map, Value};

use nestling_text::{
    ConversationJson, Message, OutputFormat, SpecialText, TemplateTime, ToolSchema, ToolStyle,
};

/// The prompt of a generation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Input {
    /// Continues the session's history unchanged.
    History,
    /// A whole conversation, from its first message, that replaces the session's history. The prefix shared
    /// with the old history is not recomputed.
    Messages(Conversation),
    /// Text appended to the history.
    Text(String),
    /// Tokens appended to the history.
    Tokens(Vec<u32>),
    /// A prompt from [`crate::Model::prompt`], which replaces the session's history as a whole conversation
    /// does.
    Prompt(Prompt),
}

/// A tokenized prompt with the format for parsing its output.
///
/// It replaces the whole history of a session. It is valid only for the model that encoded it.
#[derive(Clone, Debug)]
pub struct Prompt {
    pub(crate) tokens: Vec<u32>,
    pub(crate) format: OutputFormat,
    /// Index of the next tool call in the conversation.
    pub(crate) next_call: usize,
}

impl Prompt {
    /// Returns the tokens of the prompt.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

/// Messages with the other arguments of the chat template.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Messages, oldest first.
    pub messages: Vec<Message>,
    /// Tools that the model may call.
    pub tools: Vec<ToolSchema>,
    /// Additional template variables, such as `enable_thinking`.
    pub template_arguments: Map<String, Value>,
    /// Current time for templates that print a date. Such templates fail if it is `None`.
    pub now: Option<TemplateTime>,
    /// Treatment of special-token text inside messages.
    ///
    /// The default encodes it as ordinary text, so that message content cannot end a message or forge a role.
    pub special_text: SpecialText,
    /// True to append the header of an assistant message, so that the model answers.
    pub add_generation_prompt: bool,
    /// True to let the model continue the last message, which is the assistant's.
    pub continue_final_message: bool,
    /// Treatment of tools that the chat template does not read; native ones are then an error.
    pub tool_style: ToolStyle,
}

impl Conversation {
    /// Creates a conversation without tools.
    pub fn new(messages: impl Into<Vec<Message>>) -> Self {
        Self {
            messages: messages.into(),
            tools: Vec::new(),
            template_arguments: Map::new(),
            now: None,
            special_text: SpecialText::Plain,
            add_generation_prompt: true,
            continue_final_message: false,
            tool_style: ToolStyle::Native,
        }
    }
}

impl From<ConversationJson> for Conversation {
    fn from(json: ConversationJson) -> Self {
        let ConversationJson { messages, tools, template_arguments, now } = json;
        Self { tools, template_arguments, now, ..Self::new(messages) }
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

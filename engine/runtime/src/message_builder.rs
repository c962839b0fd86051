//! The output of a generation up to the present, as an assistant message.

use nestling_text::{Message, ToolCall};

use crate::event::Event;

/// Text, reasoning and tool calls collected from the events of a generation.
#[derive(Debug, Default)]
pub(crate) struct MessageBuilder {
    text: String,
    reasoning: String,
    calls: Vec<ToolCall>,
}

impl MessageBuilder {
    pub(crate) fn take(&mut self, event: &Event) {
        match event {
            Event::Text(text) => self.text.push_str(text),
            Event::Reasoning(text) => self.reasoning.push_str(text),
            Event::ToolCall(call) => self.calls.push(call.clone()),
            _ => {}
        }
    }

    /// Returns the assistant message. `content` is `None` if the output consists of tool calls without text.
    pub(crate) fn message(&self) -> Message {
        let mut message = Message::assistant(self.text.as_str());
        if self.text.is_empty() && !self.calls.is_empty() {
            message.content = None;
        }
        if !self.reasoning.is_empty() {
            message.reasoning = Some(self.reasoning.clone());
        }
        message.tool_calls.clone_from(&self.calls);
        message
    }
}

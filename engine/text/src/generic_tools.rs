//! Tools for chat templates that have no place for them: a description in the system message, and calls and
//! results as text between the tags of Hermes 2 Pro.

use std::borrow::Cow;

use serde_json::json;

use super::messages::{Message, MessageContent, Role, ToolCall, ToolSchema};

/// Treatment of tools when a chat template does not read the variable `tools`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ToolStyle {
    /// The template gets them nevertheless.
    #[default]
    Native,
    /// Tools are described in the system message, and calls are text between `<tool_call>` tags.
    Generic,
}

/// Message that describes the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ToolsPlace {
    System,
    /// For templates that refuse a system message.
    User,
}

const BEGIN: &str = "# Tools

You may call these functions. Each line describes one, with its parameters as a JSON schema.
";

const END: &str = "
To call a function, write its name and its arguments as one JSON object between these tags:
<tool_call>
{\"name\": \"FUNCTION\", \"arguments\": {\"PARAMETER\": \"VALUE\"}}
</tool_call>
The result follows between <tool_response> and </tool_response>. To call no function, answer in plain text.";

/// Returns the conversation without tool calls, results and tools: as text.
pub(super) fn as_text(
    messages: &[Message],
    tools: &[ToolSchema],
    place: ToolsPlace,
) -> Vec<Message> {
    let mut all: Vec<Message> = Vec::with_capacity(messages.len() + 1);
    let mut ends_with_result = false;
    for message in messages {
        let is_result = message.role == Role::Tool;
        let message = plain(message);
        match all.last_mut() {
            // Many templates require that users and assistants alternate.
            Some(last) if ends_with_result && message.role == Role::User => {
                append(last, &text_of(&message));
            }
            _ => all.push(message),
        }
        ends_with_result = is_result;
    }
    if !tools.is_empty() {
        describe(&mut all, &description(tools), place);
    }
    all
}

fn describe(all: &mut Vec<Message>, description: &str, place: ToolsPlace) {
    match (all.first_mut(), place) {
        (Some(first), ToolsPlace::System)
            if matches!(first.role, Role::System | Role::Developer) =>
        {
            append(first, description);
        }
        (Some(first), ToolsPlace::User) if first.role == Role::User => {
            let said = text_of(first);
            first.content = Some(MessageContent::Text(format!("{description}\n\n{said}")));
        }
        (_, ToolsPlace::System) => all.insert(0, Message::system(description)),
        (_, ToolsPlace::User) => all.insert(0, Message::user(description)),
    }
}

fn description(tools: &[ToolSchema]) -> String {
    let lines = tools.iter().map(|tool| format!("{}\n", tool.0.get("function").unwrap_or(&tool.0)));
    format!("{BEGIN}{}{END}", lines.collect::<String>())
}

/// Returns a message with its calls as text, or the result of a call as a message of the user.
fn plain(message: &Message) -> Message {
    let mut plain = message.clone();
    for call in std::mem::take(&mut plain.tool_calls) {
        append(&mut plain, &format!("<tool_call>\n{}\n</tool_call>", call_text(&call)));
    }
    if plain.role == Role::Tool {
        let result = text_of(&plain);
        return Message::user(format!("<tool_response>\n{result}\n</tool_response>"));
    }
    plain
}

fn call_text(call: &ToolCall) -> String {
    json!({ "name": call.name, "arguments": call.arguments }).to_string()
}

fn text_of(message: &Message) -> Cow<'_, str> {
    // Default: absent content is empty.
    message.content.as_ref().map(MessageContent::text).unwrap_or_default()
}

fn append(message: &mut Message, text: &str) {
    let said = text_of(message);
    let joined = if said.is_empty() { text.to_owned() } else { format!("{said}\n\n{text}") };
    message.content = Some(MessageContent::Text(joined));
}

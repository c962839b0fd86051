//! Makes a model call a tool with arguments that match its schema, and returns the result to it.

use std::error::Error;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use nestling::guide::{ToolChoice, ToolGuide};
use nestling::{Chat, Conversation, Event, GenerateOptions, Message, ToolSchema};

const TOOLS: &str = r#"[{"type": "function", "function": {"name": "weather", "parameters":
    {"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties":
        {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}]"#;

pub fn run(model: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = nestling::open(model)?;
    let tools: Vec<ToolSchema> = serde_json::from_str(TOOLS)?;
    let conversation = Conversation { tools: tools.clone(), ..Conversation::default() };
    let mut chat = Chat::new(model.session(), conversation);

    let must_call = ToolGuide::new(&tools, ToolChoice::Named("weather".into()))?;
    let options = GenerateOptions {
        max_tokens: Some(300),
        constraint: Some(Arc::new(must_call)),
        ..GenerateOptions::greedy()
    };
    let mut replies = Vec::new();
    for event in chat.send("Will it rain in Bergen?", &options)? {
        if let Event::ToolCall(call) = event? {
            writeln!(out, "{} {}", call.name, call.arguments_text())?;
            replies.push(Message::tool(call.id, r#"{"rain": true}"#));
        }
    }

    // The next turn is an answer without tools.
    chat.conversation_mut()?.tools.clear();
    let options = GenerateOptions { max_tokens: Some(16), ..GenerateOptions::greedy() };
    let answer = chat.reply_to_tools(replies, &options)?.into_text()?;
    writeln!(out, "{answer}")?;
    Ok(())
}

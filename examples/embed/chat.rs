//! Streams two turns of a conversation.

use std::error::Error;
use std::io::Write;
use std::path::Path;

use nestling::{Chat, Conversation, Event, GenerateOptions};

pub fn run(model: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let model = nestling::open(model)?;
    let options = GenerateOptions { max_tokens: Some(40), ..GenerateOptions::greedy() };
    let mut chat = Chat::new(model.session(), Conversation::default());
    for said in ["Tell me a story about a ship.", "And what did the captain say?"] {
        for event in chat.send(said, &options)? {
            if let Event::Text(text) = event? {
                write!(out, "{text}")?;
                out.flush()?;
            }
        }
        writeln!(out)?;
    }
    writeln!(out, "{}", serde_json::to_string(&chat.transcript())?)?;
    Ok(())
}

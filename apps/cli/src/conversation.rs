//! The conversation of a chat: messages, and the file they are saved to.

use crate::failure::{Failure, Result};
use crate::reply::Reply;
use nestling::engine::text::{Message, Role};
use serde_json::{Value, json};
use std::path::Path;

/// Most bytes of a file that `/load` or `/read` takes.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// What was said so far; the system prompt stands apart, since it can be changed at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub system: Option<String>,
    pub messages: Vec<Message>,
}

impl Transcript {
    /// All messages, the system prompt first.
    pub fn all(&self) -> Vec<Message> {
        let system = self.system.as_deref().filter(|text| !text.is_empty()).map(Message::system);
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    pub fn add_reply(&mut self, reply: Reply) {
        let reasoning = Some(reply.reasoning).filter(|text| !text.is_empty());
        let tool_calls = reply.tool_calls;
        self.messages.push(Message { reasoning, tool_calls, ..Message::assistant(reply.text) });
    }

    /// Forgets the last reply, so that another can be written. False if there is none.
    pub fn drop_reply(&mut self) -> bool {
        let replied = self.messages.last().is_some_and(|last| last.role == Role::Assistant);
        if replied {
            self.messages.pop();
        }
        replied
    }

    /// Writes the conversation as JSON, in the field names of the OpenAI chat API.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = format!("{:#}\n", json!({ "messages": self.all() }));
        std::fs::write(path, text).map_err(|error| Failure::file("write to", path, &error))
    }

    pub fn load(path: &Path) -> Result<Self> {
        let wrong = |what: String| {
            Failure::new(format!("{} is no saved conversation: {what}", path.display()))
                .advise("name a file that /save wrote, or a store")
        };
        let text = read_text(path)?;
        let mut json: Value =
            serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
        let mut messages: Vec<Message> = serde_json::from_value(json["messages"].take())
            .map_err(|error| wrong(error.to_string()))?;
        let leads = messages.first().is_some_and(|first| first.role == Role::System);
        let system = leads.then(|| messages.remove(0)).and_then(|message| message.content);
        Ok(Self { system: system.map(|content| content.text()), messages })
    }
}

/// A text file of bearable size.
pub fn read_text(path: &Path) -> Result<String> {
    let failed = |error| Failure::file("read", path, &error);
    let data = std::fs::metadata(path).map_err(failed)?;
    if data.is_dir() {
        return Err(
            Failure::new(format!("{} is a directory", path.display())).advise("name a text file")
        );
    }
    if data.len() > FILE_BYTES_MAX {
        let size = crate::bytes::ByteSize(data.len());
        return Err(Failure::new(format!("{} is too long a text: {size}", path.display()))
            .advise("cut it to what matters; no context holds more than a few hundred kB"));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Failure::new(format!("{} is no text in UTF-8: byte {at} is wrong", path.display()))
            .advise("name a text file, or convert it to UTF-8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling::engine::text::ToolCall;

    #[test]
    fn what_is_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("chat.json");
        let mut transcript = Transcript { system: Some("Be brief.".into()), messages: vec![] };
        transcript.messages.push(Message::user("Hello \"you\"\n"));
        let id = "call_0".into();
        let call = ToolCall { id, name: "now".into(), arguments: json!({"zone": "UTC"}) };
        transcript.add_reply(Reply {
            text: "Good day.".into(),
            reasoning: "They greet.".into(),
            tool_calls: vec![call],
            finished: None,
        });
        transcript.save(&path).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), transcript);
        // Arguments are a JSON text, and an object in older files.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""arguments": "{\"zone\":\"UTC\"}""#), "{text}");
        let older = text.replace(r#""{\"zone\":\"UTC\"}""#, r#"{"zone": "UTC"}"#);
        std::fs::write(&path, older).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), transcript);
        assert_eq!(transcript.all().len(), 3);
        assert!(transcript.drop_reply());
        assert!(!transcript.drop_reply());
        std::fs::write(&path, "{\"messages\": 3}").unwrap();
        assert!(Transcript::load(&path).unwrap_err().message.contains("no saved conversation"));
    }
}

//! Transcript of a chat, and its file format.

use crate::failure::{Failure, Result};
use crate::reply::Reply;
use nestling::engine::Conversation;
use nestling::engine::text::{Message, Role, TemplateTime};
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use tempfile::NamedTempFile;

/// Maximum size in bytes of a file for `/load` or `/read`.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Messages of a chat. The system prompt is separate because it can be changed at any time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    pub system: Option<String>,
    pub messages: Vec<Message>,
}

impl Transcript {
    /// Returns all messages, the system prompt first.
    pub fn all(&self) -> Vec<Message> {
        let system = self.system.as_deref().filter(|text| !text.is_empty()).map(Message::system);
        system.into_iter().chain(self.messages.iter().cloned()).collect()
    }

    /// Returns the conversation with the arguments that chat templates may use.
    pub fn conversation(&self, think: Option<bool>) -> Conversation {
        let mut conversation = Conversation::new(self.all());
        if let Some(think) = think {
            conversation.template_arguments.insert("enable_thinking".into(), think.into());
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        conversation.now = now
            .ok()
            .and_then(|now| i64::try_from(now.as_secs()).ok())
            .map(TemplateTime::from_unix_seconds);
        conversation
    }

    pub fn add_reply(&mut self, reply: Reply) {
        let reasoning = Some(reply.reasoning).filter(|text| !text.is_empty());
        let tool_calls = reply.tool_calls;
        self.messages.push(Message { reasoning, tool_calls, ..Message::assistant(reply.text) });
    }

    /// Removes the last reply, so that it can be regenerated. Returns false if there is none.
    pub fn drop_reply(&mut self) -> bool {
        let replied = self.messages.last().is_some_and(|last| last.role == Role::Assistant);
        if replied {
            self.messages.pop();
        }
        replied
    }

    /// Atomically writes the conversation as JSON, in the field names of the OpenAI chat API. Fails if the
    /// file exists and is not a saved conversation, unless `over_anything` is set.
    pub fn save(&self, path: &Path, over_anything: bool) -> Result<()> {
        if std::fs::metadata(path).is_ok_and(|data| !data.is_file()) {
            return Err(Failure::new(format!(
                "{} is not a regular file and is not replaced",
                path.display()
            ))
            .advise("give the file another name"));
        }
        if path.exists() && !over_anything && Self::load(path).is_err() {
            return Err(Failure::new(format!(
                "{} exists and is not a saved conversation",
                path.display()
            ))
            .advise("give the file another name, or write over it with /save -f FILE"));
        }
        let text = format!("{:#}\n", json!({ "messages": self.all() }));
        // The target of a symbolic link is replaced.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        replace(&target, text.as_bytes()).map_err(|error| Failure::file("write to", path, &error))
    }

    pub fn load(path: &Path) -> Result<Self> {
        let wrong = |what: String| {
            Failure::new(format!("{} is not a saved conversation: {what}", path.display()))
                .advise("name a file that /save wrote, or a store")
        };
        let text = read_text(path)?;
        let json: std::result::Result<Value, _> = serde_json::from_str(&text);
        let mut json = json.map_err(|error| {
            let (line, column) = (error.line(), error.column());
            wrong(format!("it is not valid JSON (line {line}, column {column})"))
        })?;
        let listed = json.get_mut("messages").filter(|messages| messages.is_array());
        let listed = listed.ok_or_else(|| wrong("it has no list of messages".into()))?;
        let mut messages: Vec<Message> =
            serde_json::from_value(listed.take()).map_err(|error| wrong(error.to_string()))?;
        let leads = messages.first().is_some_and(|first| first.role == Role::System);
        let system = leads.then(|| messages.remove(0)).and_then(|message| message.content);
        Ok(Self { system: system.map(|content| content.text().into_owned()), messages })
    }
}

/// Replaces or creates a file atomically. A new file is readable only by its owner, since conversations are
/// private.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let mut file = NamedTempFile::new_in(folder.unwrap_or(Path::new(".")))?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    if let Ok(data) = std::fs::metadata(path) {
        // An existing file keeps its permissions.
        file.as_file().set_permissions(data.permissions())?;
    }
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Reads a text file of limited size.
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
        Failure::new(format!("{} is not UTF-8 text (byte {at})", path.display()))
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
        transcript.save(&path, false).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), transcript);
        // Arguments are a string that contains JSON; older files store an object.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""arguments": "{\"zone\":\"UTC\"}""#), "{text}");
        let older = text.replace(r#""{\"zone\":\"UTC\"}""#, r#"{"zone": "UTC"}"#);
        std::fs::write(&path, older).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), transcript);
        assert_eq!(transcript.all().len(), 3);
        assert!(transcript.drop_reply());
        assert!(!transcript.drop_reply());
        for (text, words) in [
            ("{\"messages\": 3}", "it has no list of messages"),
            ("[]", "it has no list of messages"),
            ("{ 3: 4 }", "it is not valid JSON (line 1, column 3)"),
            ("{\"messages\": [3]}", "not a saved conversation"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = Transcript::load(&path).unwrap_err().message;
            assert!(message.contains(words), "{text}: {message}");
        }
    }

    #[test]
    fn only_conversations_are_written_over_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes.txt");
        std::fs::write(&path, "keep me\n").unwrap();
        let transcript =
            Transcript { system: None, messages: vec![Message::user("Hello"), Message::user("?")] };
        let failure = transcript.save(&path, false).unwrap_err();
        assert!(failure.advice.unwrap().contains("/save -f"));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "keep me\n");
        transcript.save(&path, true).unwrap();
        let shorter = Transcript { system: None, messages: vec![Message::user("Hello")] };
        shorter.save(&path, false).unwrap();
        assert_eq!(Transcript::load(&path).unwrap(), shorter);
        assert!(shorter.save(directory.path(), true).is_err());
        assert!(shorter.save(&directory.path().join("no/such/folder.json"), true).is_err());
        // Temporary files are removed.
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

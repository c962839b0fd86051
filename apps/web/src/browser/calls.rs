//! Calls of the package.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::answer::AnswerOptions;
use crate::error::TabError;
use crate::tab::{Prompt, Tab};

/// A call of the package.
#[derive(Deserialize)]
#[serde(tag = "call", rename_all = "camelCase")]
pub(super) enum Call {
    OpenDevice,
    FetchMore,
    Status,
    SetMemoryBudget { bytes: f64 },
    NewChat { conversation: Value },
    CloseChat { chat: u32 },
    Transcript { chat: u32 },
    Send { chat: u32, text: String, options: AnswerOptions },
    ReplyToTools { chat: u32, results: Vec<String>, options: AnswerOptions },
    NewSession,
    ForkSession { session: u32 },
    SessionTokens { session: u32 },
    Snapshot { session: u32 },
    Restore,
    CloseSession { session: u32 },
    Generate { session: u32, prompt: Prompt, options: AnswerOptions },
    Step,
}

impl Call {
    /// Runs the call. `bytes` are its binary parameter or result.
    pub(super) fn run(
        self,
        tab: &mut Tab,
        bytes: &mut Option<Vec<u8>>,
    ) -> Result<String, TabError> {
        // Default: a call without bytes that needs them has none.
        let given = bytes.take().unwrap_or_default();
        match self {
            Self::OpenDevice => json(&tab.open_device()?),
            Self::FetchMore => json(&tab.fetch_more()?),
            Self::Status => json(&tab.status()),
            // The conversion saturates.
            Self::SetMemoryBudget { bytes } => json(&tab.set_memory_budget(bytes as u64)?),
            Self::NewChat { conversation } => json(&tab.new_chat(&conversation.to_string())?),
            Self::CloseChat { chat } => json(&tab.close_chat(chat)),
            Self::Transcript { chat } => json(&tab.transcript(chat)?),
            Self::Send { chat, text, options } => json(&tab.send(chat, &text, options)?),
            Self::ReplyToTools { chat, results, options } => {
                json(&tab.reply_to_tools(chat, results, options)?)
            }
            Self::NewSession => json(&tab.new_session()),
            Self::ForkSession { session } => json(&tab.fork_session(session)?),
            Self::SessionTokens { session } => json(&tab.session_tokens(session)?),
            Self::Snapshot { session } => {
                *bytes = Some(tab.snapshot(session)?);
                json(&())
            }
            Self::Restore => json(&tab.restore(&given)?),
            Self::CloseSession { session } => json(&tab.close_session(session)),
            Self::Generate { session, prompt, options } => {
                json(&tab.generate(session, prompt, options)?)
            }
            Self::Step => json(&tab.step()?),
        }
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, TabError> {
    serde_json::to_string(value)
        .map_err(|error| TabError::Invalid { what: "result", reason: error.to_string() })
}

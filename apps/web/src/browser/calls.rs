//! Calls of the package.
//!
//! On a GPU a wait suspends the WebAssembly stack, which requires that no JavaScript function is on it. The package
//! therefore enters `run`, whose only argument is a number, through `WebAssembly.promising`. Parameters are set before, and
//! results are taken after it. While a call is suspended, its borrow of the tab refuses every other one.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use super::module::{NestlingTab, parse, thrown};
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
    fn run(self, tab: &mut Tab, bytes: &mut Option<Vec<u8>>) -> Result<String, TabError> {
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

#[wasm_bindgen]
impl NestlingTab {
    /// Sets the call that `run` computes, as JSON, and its bytes.
    pub fn prepare(&mut self, call: &str, bytes: Option<Vec<u8>>) -> Result<(), JsValue> {
        self.outcome = None;
        self.bytes = bytes;
        self.call = Some(parse(call).map_err(thrown)?);
        Ok(())
    }

    /// Computes the prepared call. The stack may be suspended meanwhile.
    pub fn run(&mut self) {
        self.outcome = self.call.take().map(|call| call.run(&mut self.tab, &mut self.bytes));
    }

    /// Takes the result of `run` as JSON.
    pub fn outcome(&mut self) -> Result<String, JsValue> {
        // Default: a call that was not run has no result.
        self.outcome.take().unwrap_or(Err(TabError::NotReady)).map_err(thrown)
    }

    /// Takes the bytes that `run` returned.
    #[wasm_bindgen(js_name = takeBytes)]
    pub fn take_bytes(&mut self) -> Option<Vec<u8>> {
        self.bytes.take()
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<String, TabError> {
    serde_json::to_string(value)
        .map_err(|error| TabError::Invalid { what: "result", reason: error.to_string() })
}

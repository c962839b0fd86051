//! Types of the module, for the package's own worker.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::FileSystemSyncAccessHandle;

use super::access_file::AccessFile;
use super::http::HttpSource;
use crate::blocks::{BlockFile, Blocks, MemoryFile};
use crate::error::TabError;
use crate::tab::{Prompt, Tab};

/// A model in this worker. Options and results are JSON.
#[wasm_bindgen]
pub struct NestlingTab {
    tab: Tab,
}

#[wasm_bindgen]
impl NestlingTab {
    /// Opens a model at an absolute address. Without files, its bytes are kept in memory.
    #[wasm_bindgen(constructor)]
    pub fn new(
        url: String,
        options: &str,
        data: Option<FileSystemSyncAccessHandle>,
        map: Option<FileSystemSyncAccessHandle>,
    ) -> Result<Self, JsValue> {
        let blocks = Blocks::open(block_file(data), block_file(map)).map_err(TabError::from);
        let open = |blocks| Tab::open(Box::new(HttpSource::new(url)), blocks, parse(options)?);
        let tab = blocks.and_then(open).map_err(thrown)?;
        Ok(Self { tab })
    }

    /// Fetches or verifies the next part. Returns true once everything is there.
    #[wasm_bindgen(js_name = fetchMore)]
    pub fn fetch_more(&mut self) -> Result<bool, JsValue> {
        self.tab.fetch_more().map_err(thrown)
    }

    /// Returns the state.
    pub fn status(&self) -> Result<String, JsValue> {
        json(&self.tab.status())
    }

    /// Sets the memory budget in bytes.
    #[wasm_bindgen(js_name = setMemoryBudget)]
    pub fn set_memory_budget(&mut self, bytes: f64) -> Result<(), JsValue> {
        self.tab.set_memory_budget(bytes as u64).map_err(thrown)
    }

    /// Creates a conversation from its JSON form.
    #[wasm_bindgen(js_name = newChat)]
    pub fn new_chat(&mut self, conversation: &str) -> Result<u32, JsValue> {
        self.tab.new_chat(conversation).map_err(thrown)
    }

    /// Removes a conversation.
    #[wasm_bindgen(js_name = closeChat)]
    pub fn close_chat(&mut self, chat: u32) {
        self.tab.close_chat(chat);
    }

    /// Returns the messages of a conversation.
    pub fn transcript(&mut self, chat: u32) -> Result<String, JsValue> {
        json(&self.tab.transcript(chat).map_err(thrown)?)
    }

    /// Starts the answer to a message.
    pub fn send(&mut self, chat: u32, text: &str, options: &str) -> Result<(), JsValue> {
        parse(options).and_then(|options| self.tab.send(chat, text, options)).map_err(thrown)
    }

    /// Starts the answer to the results of tools.
    #[wasm_bindgen(js_name = replyToTools)]
    pub fn reply_to_tools(
        &mut self,
        chat: u32,
        results: Vec<String>,
        options: &str,
    ) -> Result<(), JsValue> {
        parse(options)
            .and_then(|options| self.tab.reply_to_tools(chat, results, options))
            .map_err(thrown)
    }

    /// Creates an empty session.
    #[wasm_bindgen(js_name = newSession)]
    pub fn new_session(&mut self) -> u32 {
        self.tab.new_session()
    }

    /// Creates a session from a snapshot.
    pub fn restore(&mut self, snapshot: &[u8]) -> Result<u32, JsValue> {
        self.tab.restore(snapshot).map_err(thrown)
    }

    /// Copies a session.
    #[wasm_bindgen(js_name = forkSession)]
    pub fn fork_session(&mut self, session: u32) -> Result<u32, JsValue> {
        self.tab.fork_session(session).map_err(thrown)
    }

    /// Returns the tokens of a session.
    #[wasm_bindgen(js_name = sessionTokens)]
    pub fn session_tokens(&mut self, session: u32) -> Result<Vec<u32>, JsValue> {
        self.tab.session_tokens(session).map_err(thrown)
    }

    /// Returns the bytes of a session.
    pub fn snapshot(&mut self, session: u32) -> Result<Vec<u8>, JsValue> {
        self.tab.snapshot(session).map_err(thrown)
    }

    /// Removes a session.
    #[wasm_bindgen(js_name = closeSession)]
    pub fn close_session(&mut self, session: u32) {
        self.tab.close_session(session);
    }

    /// Starts the continuation of a session by a text.
    #[wasm_bindgen(js_name = generateText)]
    pub fn generate_text(
        &mut self,
        session: u32,
        text: String,
        options: &str,
    ) -> Result<(), JsValue> {
        self.generate(session, Prompt::Text(text), options)
    }

    /// Starts the continuation of a session by tokens.
    #[wasm_bindgen(js_name = generateTokens)]
    pub fn generate_tokens(
        &mut self,
        session: u32,
        tokens: Vec<u32>,
        options: &str,
    ) -> Result<(), JsValue> {
        self.generate(session, Prompt::Tokens(tokens), options)
    }

    /// Computes at most one step of the answer.
    pub fn step(&mut self) -> Result<String, JsValue> {
        json(&self.tab.step().map_err(thrown)?)
    }

    /// Cancels the answer.
    pub fn cancel(&self) {
        self.tab.cancel();
    }
}

impl NestlingTab {
    fn generate(&mut self, session: u32, prompt: Prompt, options: &str) -> Result<(), JsValue> {
        parse(options)
            .and_then(|options| self.tab.generate(session, prompt, options))
            .map_err(thrown)
    }
}

fn block_file(handle: Option<FileSystemSyncAccessHandle>) -> Box<dyn BlockFile> {
    match handle {
        Some(handle) => Box::new(AccessFile::new(handle)),
        None => Box::new(MemoryFile::default()),
    }
}

fn parse<T: DeserializeOwned>(options: &str) -> Result<T, TabError> {
    serde_json::from_str(options)
        .map_err(|error| TabError::Invalid { what: "options", reason: error.to_string() })
}

fn json<T: Serialize>(value: &T) -> Result<String, JsValue> {
    serde_json::to_string(value).map_err(|error| JsValue::from_str(&error.to_string()))
}

/// Converts an error to the JSON that the worker throws as a `NestlingError`.
fn thrown(error: TabError) -> JsValue {
    let value = serde_json::json!({
        "kind": error.kind(),
        "message": error.to_string(),
        "mayRetry": error.may_retry(),
    });
    JsValue::from_str(&value.to_string())
}

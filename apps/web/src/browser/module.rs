//! Types of the module, for the package's own worker.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::FileSystemSyncAccessHandle;

use super::access_file::AccessFile;
use super::gpu::Call;
use super::http::HttpSource;
use crate::blocks::{BlockFile, Blocks, MemoryFile};
use crate::error::TabError;
use crate::tab::Tab;

/// A model in this worker. Options and results are JSON.
#[wasm_bindgen]
pub struct NestlingTab {
    pub(super) tab: Tab,
    /// Call that `run` computes.
    pub(super) call: Option<Call>,
    /// Result of `run` as JSON, or its error.
    pub(super) outcome: Option<Result<String, TabError>>,
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
        Ok(Self { tab, call: None, outcome: None })
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

    /// Creates a conversation.
    #[wasm_bindgen(js_name = newChat)]
    pub fn new_chat(&mut self, system: &str) -> u32 {
        self.tab.new_chat(system)
    }

    /// Removes a conversation.
    #[wasm_bindgen(js_name = closeChat)]
    pub fn close_chat(&mut self, chat: u32) {
        self.tab.close_chat(chat);
    }

    /// Starts the answer to a message.
    pub fn send(&mut self, chat: u32, text: &str, options: &str) -> Result<(), JsValue> {
        parse(options).and_then(|options| self.tab.send(chat, text, options)).map_err(thrown)
    }

    /// Starts the completion of raw text.
    pub fn complete(&mut self, text: &str, options: &str) -> Result<(), JsValue> {
        parse(options).and_then(|options| self.tab.complete(text, options)).map_err(thrown)
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

fn block_file(handle: Option<FileSystemSyncAccessHandle>) -> Box<dyn BlockFile> {
    match handle {
        Some(handle) => Box::new(AccessFile::new(handle)),
        None => Box::new(MemoryFile::default()),
    }
}

pub(super) fn parse<T: DeserializeOwned>(options: &str) -> Result<T, TabError> {
    serde_json::from_str(options)
        .map_err(|error| TabError::Invalid { what: "options", reason: error.to_string() })
}

fn json<T: Serialize>(value: &T) -> Result<String, JsValue> {
    serde_json::to_string(value).map_err(|error| JsValue::from_str(&error.to_string()))
}

/// Converts an error to the JSON that the worker throws as a `NestlingError`.
pub(super) fn thrown(error: TabError) -> JsValue {
    let value = serde_json::json!({
        "kind": error.kind(),
        "message": error.to_string(),
        "mayRetry": error.may_retry(),
    });
    JsValue::from_str(&value.to_string())
}

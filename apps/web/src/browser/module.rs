//! Types of the module, for the package's own worker.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::FileSystemSyncAccessHandle;

use super::access_file::AccessFile;
use super::http::HttpSource;
use super::workers::{FurtherWorkers, SharedRings, Team, group_of};
use crate::blocks::{BlockFile, Blocks, MemoryFile};
use crate::error::TabError;
use crate::tab::Tab;
use crate::workers;

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

    /// Divides models opened later among further workers.
    pub fn divide(&mut self, team: Team) {
        self.tab.divide(Box::new(FurtherWorkers::new(team)));
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

/// Holds a share of a model as rank `rank`, until rank 0 closes it. The store is the first `bytes` bytes of `data`.
#[wasm_bindgen]
pub fn follow(
    data: FileSystemSyncAccessHandle,
    url: String,
    bytes: f64,
    context_length: Option<u32>,
    rings: SharedRings,
    rank: u32,
    ranks: u32,
) -> Result<(), JsValue> {
    let group = group_of(rings, rank as usize, ranks as usize);
    let context_length = context_length.map(|tokens| tokens as usize);
    let file = Box::new(AccessFile::new(data));
    workers::follow(file, url, bytes as u64, context_length, group).map_err(thrown)
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

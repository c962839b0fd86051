//! Types of the module, for the package's own worker.
//!
//! On a GPU a wait suspends the WebAssembly stack, which requires that no JavaScript function is on it. The package
//! therefore enters `run`, whose only argument is a number, through `WebAssembly.promising`. Parameters are set before, and
//! results are taken after it. While a call is suspended, its borrow of the tab refuses every other one.

use serde::de::DeserializeOwned;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::FileSystemSyncAccessHandle;

use super::access_file::AccessFile;
use super::calls::Call;
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
    /// Call that `run` computes.
    call: Option<Call>,
    /// Bytes of the call, then of its result.
    bytes: Option<Vec<u8>>,
    /// Result of `run` as JSON, or its error.
    outcome: Option<Result<String, TabError>>,
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
        Ok(Self { tab, call: None, bytes: None, outcome: None })
    }

    /// Divides models opened later among further workers.
    pub fn divide(&mut self, team: Team) {
        self.tab.divide(Box::new(FurtherWorkers::new(team)));
    }

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
    options: &str,
    rings: SharedRings,
    rank: u32,
    ranks: u32,
) -> Result<(), JsValue> {
    let group = group_of(rings, rank as usize, ranks as usize);
    let file = Box::new(AccessFile::new(data));
    parse(options)
        .and_then(|options| workers::follow(file, url, bytes as u64, &options, group))
        .map_err(thrown)
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

/// Converts an error to the JSON that the worker throws as a `NestlingError`.
fn thrown(error: TabError) -> JsValue {
    let value = serde_json::json!({
        "kind": error.kind(),
        "message": error.to_string(),
        "mayRetry": error.may_retry(),
    });
    JsValue::from_str(&value.to_string())
}

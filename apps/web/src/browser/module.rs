//! Types of the module, for the package's own worker.

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
    pub(super) tab: Tab,
    /// Call that `run` computes.
    pub(super) call: Option<Call>,
    /// Bytes of the call, then of its result.
    pub(super) bytes: Option<Vec<u8>>,
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
        Ok(Self { tab, call: None, bytes: None, outcome: None })
    }

    /// Divides models opened later among further workers.
    pub fn divide(&mut self, team: Team) {
        self.tab.divide(Box::new(FurtherWorkers::new(team)));
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

pub(super) fn parse<T: DeserializeOwned>(options: &str) -> Result<T, TabError> {
    serde_json::from_str(options)
        .map_err(|error| TabError::Invalid { what: "options", reason: error.to_string() })
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

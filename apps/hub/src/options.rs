//! Options for access to the Hub and the caches.

use crate::client::Limits;
use crate::store_cache::StoreCache;
use std::path::PathBuf;

/// Address of the Hugging Face Hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Options for obtaining models.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Address of the Hub, such as [`DEFAULT_ENDPOINT`], without a trailing slash.
    pub endpoint: String,
    /// Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of stores.
    pub stores: StoreCache,
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    /// Access token.
    pub token: Option<String>,
    /// Timeouts of requests.
    pub limits: Limits,
    /// True if the network must not be used.
    pub offline: bool,
    /// Available memory in bytes, used to choose one of several models.
    pub room: u64,
    /// True if GGUF files run in place, so that they are not converted.
    pub in_place: bool,
}

//! What a caller says of the Hub and the caches.

use crate::client::Limits;
use crate::store_cache::StoreCache;
use std::path::PathBuf;

/// The Hugging Face Hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Where models come from and go to.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Address of the Hub, such as [`DEFAULT_ENDPOINT`], without a slash at its end.
    pub endpoint: String,
    /// The Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of stores.
    pub stores: StoreCache,
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    /// An access token.
    pub token: Option<String>,
    /// How long is waited for it.
    pub limits: Limits,
    /// Whether the network is left alone.
    pub offline: bool,
    /// Memory that there is for a model, by which one of several is chosen.
    pub room: u64,
    /// Whether GGUF files run where they lie, so that no store is made of them.
    pub in_place: bool,
}

//! Options for access to the Hub and the caches.

use crate::client::Limits;
use crate::store_cache::StoreCache;
use std::fmt;
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
    /// True if a store that is not here yet is read by ranges, through a copy for [`crate::WebStore`].
    pub by_ranges: bool,
}

/// Access to the stores that copies were begun of.
#[derive(Clone)]
pub struct WebAccess {
    /// Address of the Hub, without a trailing slash.
    pub endpoint: String,
    /// Access token, which only the Hub receives.
    pub token: Option<String>,
    /// Timeouts of requests.
    pub limits: Limits,
    /// True if the network must not be used.
    pub offline: bool,
}

impl fmt::Debug for WebAccess {
    /// Omits the token, which must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebAccess").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl HubOptions {
    /// Returns the access to stores on the web and on the Hub.
    pub fn access(&self) -> WebAccess {
        let Self { endpoint, token, limits, offline, .. } = self;
        let (endpoint, token) = (endpoint.clone(), token.clone());
        WebAccess { endpoint, token, limits: *limits, offline: *offline }
    }
}

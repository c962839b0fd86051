//! Which file on this machine a store was made of, remembered in a small file beside it.

use crate::error::{HubError, Result};
use crate::identity::Identity;
use nestling_formats::{Invariant, open_regular};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Largest file of this kind.
const RECORD_BYTES_MAX: u64 = 64 << 10;

/// How the names of such files end, after the store's own.
pub const ENDING: &str = ".source.json";

/// A file that a store was made of, in the state that it had then.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct MadeOf {
    pub path: PathBuf,
    /// What tells that state of the file from all others.
    pub identity: String,
}

/// What has become of a file that a store was made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// It is there as it was.
    Here,
    /// It is there, but not as it was: nothing finds the store by it.
    Changed,
    /// It is not there, or cannot be read.
    Gone,
}

impl MadeOf {
    fn path(store: &Path) -> PathBuf {
        let mut name = store.as_os_str().to_owned();
        name.push(ENDING);
        name.into()
    }

    /// What is remembered of a store; none where nothing sensible is.
    pub fn of(store: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = open_regular(&Self::path(store)).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Remembers it beside a store that was just made of the file at `source`.
    pub fn remember(source: &Path, store: &Path) -> Result<()> {
        let path = Self::path(store);
        let failed = |error| HubError::file("write", &path, error);
        let canonical =
            source.canonicalize().map_err(|error| HubError::file("read", source, error))?;
        let made_of = Self { path: canonical, identity: Identity::of(source)?.hash };
        let text = serde_json::to_string_pretty(&made_of);
        let text = text.invariant("texts can be written as JSON")? + "\n";
        let beside = path.with_extension("json.part");
        std::fs::write(&beside, text).map_err(failed)?;
        std::fs::rename(&beside, &path).map_err(failed)
    }

    /// What has become of it.
    pub fn state(&self) -> SourceState {
        if !self.path.exists() {
            return SourceState::Gone;
        }
        match Identity::of(&self.path) {
            Ok(identity) if identity.hash == self.identity => SourceState::Here,
            Ok(_) => SourceState::Changed,
            Err(_) => SourceState::Gone,
        }
    }
}

//! Records of the local file that a store was converted from, saved next to the store.

use crate::error::{HubError, Result};
use crate::identity::Identity;
use nestling_formats::{Invariant, open_regular};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};

const RECORD_BYTES_MAX: u64 = 64 << 10;

/// Suffix that a record's name adds to that of the store.
pub const ENDING: &str = ".source.json";

/// Source file of a store, in its state at conversion.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct MadeOf {
    pub path: PathBuf,
    /// Fingerprint of the file in that state.
    pub identity: String,
}

/// Current state of a store's source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceState {
    /// Unchanged.
    Here,
    /// Changed since the conversion, so that the store is not found by it.
    Changed,
    /// Missing or unreadable.
    Gone,
}

impl MadeOf {
    fn path(store: &Path) -> PathBuf {
        let mut name = store.as_os_str().to_owned();
        name.push(ENDING);
        name.into()
    }

    /// Reads the record of a store. Returns `None` if it is missing or invalid.
    pub fn of(store: &Path) -> Option<Self> {
        let mut text = Vec::new();
        let file = open_regular(&Self::path(store)).ok()?;
        file.take(RECORD_BYTES_MAX).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes the record next to a store converted from the file at `source`.
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

    /// Returns the current state of the source file.
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

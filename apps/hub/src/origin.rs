//! Records of the origin of a downloaded store, saved next to the store.

use crate::error::{HubError, Result};
use crate::names::{is_commit, is_path};
use nestling_formats::Invariant;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A store of a repository at a commit.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Origin {
    pub repository: String,
    pub commit: String,
    /// File name of the store, or of the first of its shards.
    pub file: String,
}

impl Origin {
    fn path(store: &Path) -> PathBuf {
        let mut name = store.as_os_str().to_owned();
        name.push(".origin.json");
        name.into()
    }

    /// Reads the record of a store. Returns `None` if it is missing or invalid.
    pub fn of(store: &Path) -> Option<Self> {
        let text = std::fs::read(Self::path(store)).ok()?;
        let origin: Self = serde_json::from_slice(&text).ok()?;
        (is_commit(&origin.commit) && is_path(&origin.file)).then_some(origin)
    }

    /// Writes the record next to the store.
    pub fn remember(&self, store: &Path) -> Result<()> {
        let path = Self::path(store);
        let failed = |error| HubError::file("write", &path, error);
        let text =
            serde_json::to_string_pretty(self).invariant("texts can be written as JSON")? + "\n";
        let beside = path.with_extension("json.part");
        std::fs::write(&beside, text).map_err(failed)?;
        std::fs::rename(&beside, &path).map_err(failed)
    }
}

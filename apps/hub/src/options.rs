//! What a caller says of the Hub and the caches, and where stores lie in them.

use crate::client::Limits;
use crate::gguf::GgufFiles;
use crate::repository::{Repository, RepositoryCache};
use nestling_convert::convert::QUANTIZER_VERSION;
use std::path::PathBuf;

/// The Hugging Face Hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// A model that lies complete in the Hub's cache, and the store it is to become.
#[derive(Debug)]
pub struct Obtained {
    /// Folder with the checkpoint, or the first GGUF file; it may be gone if the store is there.
    pub checkpoint: PathBuf,
    /// Where the store is, or is to be written.
    pub store: PathBuf,
}

impl Obtained {
    /// Whether the store is there.
    pub fn is_converted(&self) -> bool {
        self.store.is_file()
    }
}

/// Where models come from and go to.
#[derive(Clone, Debug)]
pub struct HubOptions {
    /// Address of the Hub, such as [`DEFAULT_ENDPOINT`], without a slash at its end.
    pub endpoint: String,
    /// The Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of converted stores.
    pub stores: PathBuf,
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    /// An access token.
    pub token: Option<String>,
    /// How long is waited for it.
    pub limits: Limits,
    /// Whether the network is left alone.
    pub offline: bool,
    /// What a conversion is calibrated with, as a part of the store's name.
    pub calibration: String,
    /// The same of a conversion from a GGUF file.
    pub gguf_calibration: String,
    /// Memory that there is for a model, by which one of several is chosen.
    pub room: u64,
}

impl HubOptions {
    /// Where the stores of a repository lie.
    pub(crate) fn folder(&self, repository: &Repository) -> PathBuf {
        self.stores.join(repository.folder())
    }

    /// A checkpoint, and the store that a conversion makes of it.
    pub(crate) fn converted(&self, cache: &RepositoryCache, commit: &str) -> Obtained {
        // A store of an older quantizer, or of another text, is not what a conversion would make.
        let name = format!("{commit}-{}", ending(&self.calibration));
        let store = self.folder(cache.repository()).join(name);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }

    /// A model in GGUF files, and the store that a conversion makes of it.
    pub(crate) fn converted_gguf(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        files: &GgufFiles,
    ) -> Obtained {
        let first = files.parts.first().map_or("", |part| &part.name);
        let file = files.name.rsplit('/').next().unwrap_or(&files.name);
        let stored = |calibration: &str| {
            let ending = ending(calibration);
            let name = format!("{commit}-{}-{ending}", file.trim_end_matches(".gguf"));
            self.folder(cache.repository()).join(name)
        };
        // One that was calibrated on an earlier occasion is the better one.
        let better = stored(&self.calibration);
        let store = if better.is_file() { better } else { stored(&self.gguf_calibration) };
        Obtained { checkpoint: cache.snapshot(commit).join(first), store }
    }

    /// A store that is downloaded as it is.
    pub(crate) fn downloaded(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        first: &str,
    ) -> Obtained {
        let file = first.rsplit('/').next().unwrap_or(first);
        let store = self.folder(cache.repository()).join(commit).join(file);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }
}

/// How the names of stores end that were converted with such a calibration.
pub(crate) fn ending(calibration: &str) -> String {
    format!("q{QUANTIZER_VERSION}-{calibration}.nest")
}

//! `-hf owner/repo`: from the Hugging Face Hub to a store on this machine.
//!
//! Files go to the Hub's standard cache, where other programs find them; the converted store goes
//! to Nestling's cache, named after the commit it was made from.

mod download;
mod listing;
mod repository;
mod space;

pub use repository::Repository;

use crate::args::ModelArgs;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::places;
use download::{Hub, Trouble};
use listing::{Listing, Wanted};
use nestling::engine::convert::QUANTIZER_VERSION;
use nestling::formats::ModelConfig;
use repository::RepositoryCache;
use std::path::{Path, PathBuf};

const ENDPOINT: &str = "https://huggingface.co";

/// A checkpoint that lies complete in the Hub's cache, and the store it is to become.
#[derive(Debug)]
pub struct Obtained {
    /// Folder with the checkpoint; it may be gone if the store is there.
    pub checkpoint: PathBuf,
    /// Where the store is, or is to be written.
    pub store: PathBuf,
}

impl Obtained {
    pub fn is_converted(&self) -> bool {
        self.store.is_file()
    }
}

/// What the environment says about the Hub, read once.
#[derive(Clone, Debug)]
pub struct Surroundings {
    pub endpoint: String,
    /// The Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of converted stores.
    pub stores: PathBuf,
    pub token: Option<String>,
    pub offline: bool,
    /// What a conversion is calibrated with, as a part of the store's name.
    pub calibration: String,
}

impl Surroundings {
    pub fn from_environment(model: &ModelArgs) -> Result<Self> {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned();
        Ok(Self {
            endpoint,
            downloads: places::hub_cache()?,
            stores: places::nestling_cache()?.join("stores"),
            token: token(model)?,
            offline: offline(model),
            calibration: crate::calibration::name(&model.calibration)?,
        })
    }
}

/// Brings a repository onto this machine, as far as the network is needed.
pub fn obtain(
    repository: &Repository,
    around: &Surroundings,
    console: &Console,
) -> Result<Obtained> {
    let cache = repository.cache(around.downloads.clone());
    if around.offline {
        return from_cache(repository, &cache, around).ok_or_else(|| not_cached(repository));
    }
    let hub = Hub::connect(repository, &cache, around)?;
    let listing = match hub.listing() {
        Ok(listing) => listing,
        Err(Trouble::Unreachable(reason)) => {
            let found = from_cache(repository, &cache, around).filter(Obtained::is_converted);
            let obtained = found.ok_or_else(|| hub.unreachable(&reason))?;
            console.note(format_args!("{reason}; using the store from the cache"));
            return Ok(obtained);
        }
        Err(trouble) => return Err(hub.explain(trouble)),
    };
    let obtained = obtained(repository, &cache, around, &listing.commit);
    if !obtained.is_converted() {
        fetch(&hub, &cache, &listing, &obtained, console)?;
    }
    Ok(obtained)
}

/// Downloads what is missing: first the small files, which say what the rest is.
fn fetch(
    hub: &Hub<'_>,
    cache: &RepositoryCache,
    listing: &Listing,
    obtained: &Obtained,
    console: &Console,
) -> Result<()> {
    let description = listing.description()?;
    hub.fetch(listing, &description, console)?;
    let config = config(&obtained.checkpoint)?;
    let weights = listing.weights(&obtained.checkpoint)?;
    let plan = space::Plan::new(cache, listing, &weights, (obtained, &config))?;
    plan.announce(console)?;
    hub.fetch(listing, &weights, console)?;
    cache.set_revision(&listing.commit)
}

/// The model's configuration: what cannot run is refused before it is downloaded.
fn config(checkpoint: &Path) -> Result<ModelConfig> {
    let path = checkpoint.join("config.json");
    let json = std::fs::read(&path).map_err(|error| Failure::file("read", &path, &error))?;
    ModelConfig::from_json("config.json", &json).map_err(|error| {
        Failure::new(format!("this model cannot run here: {error}"))
            .advise("nothing large was downloaded; this release runs the Qwen3-MoE family")
    })
}

fn obtained(
    repository: &Repository,
    cache: &RepositoryCache,
    around: &Surroundings,
    commit: &str,
) -> Obtained {
    // A store of an older quantizer, or of another text, is not what a conversion would make.
    let name = format!("{commit}-q{QUANTIZER_VERSION}-{}.nest", around.calibration);
    let store = around.stores.join(repository.folder()).join(name);
    Obtained { checkpoint: cache.snapshot(commit), store }
}

/// What the caches hold of the repository, without the network.
fn from_cache(
    repository: &Repository,
    cache: &RepositoryCache,
    around: &Surroundings,
) -> Option<Obtained> {
    let commit = cache.known_commit()?;
    let found = obtained(repository, cache, around, &commit);
    let complete = || Wanted::all_present(&found.checkpoint);
    (found.is_converted() || complete()).then_some(found)
}

fn not_cached(repository: &Repository) -> Failure {
    Failure::new(format!("{repository} is not complete in the cache, and the network is off"))
        .advise("run the same command once without --offline (and without HF_HUB_OFFLINE)")
}

fn offline(model: &ModelArgs) -> bool {
    let falsey = |value: &str| {
        matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off")
    };
    model.offline || std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !falsey(value.trim()))
}

/// `--hf-token` or `HF_TOKEN`, else the file that the Hub's own tools write at login.
fn token(model: &ModelArgs) -> Result<Option<String>> {
    if let Some(token) = model.hf_token.as_deref().map(str::trim).filter(|token| !token.is_empty())
    {
        return Ok(Some(token.into()));
    }
    let path = match std::env::var_os("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => places::hub_home()?.join("token"),
    };
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty()))
}

#[cfg(test)]
mod tests;

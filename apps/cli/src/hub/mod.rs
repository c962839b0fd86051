//! `-hf owner/repo[:file or quantization]`: from the Hugging Face Hub to a store on this machine.
//!
//! A repository holds a checkpoint, GGUF files or a store. Checkpoints and GGUF files go to the Hub's
//! standard cache, where other programs find them; the converted store goes to Nestling's cache,
//! named after the commit it was made from. A store goes there as it is, as many sections of it as
//! the level needs.

mod cached;
mod choice;
mod client;
mod digest;
mod download;
mod gguf;
mod headers;
mod listing;
mod names;
mod origin;
mod ranges;
mod remote_store;
mod repository;
mod sections;
mod space;
mod survey;
mod upgrade;

pub use cached::downloaded;
pub use repository::{Reference, Repository};
pub use survey::{Arrival, Survey, estimated, survey};
pub use upgrade::upgrade;

use crate::args::{CalibrationArgs, HubArgs};
use crate::calibration;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::memory::memory_budget;
use crate::places;
use cached::Cached;
use choice::{Choice, StoreFiles};
use client::{Limits, Trouble};
use download::Hub;
use gguf::GgufFiles;
use headers::Headers;
use listing::Listing;
use nestling::engine::convert::QUANTIZER_VERSION;
use nestling::formats::Level;
use nestling::formats::store::Store;
use nestling::import::ModelConfig;
use origin::Origin;
use repository::RepositoryCache;
use sections::Sections;
use std::path::{Path, PathBuf};
use std::time::Duration;

const ENDPOINT: &str = "https://huggingface.co";

/// A model that lies complete in the Hub's cache, and the store it is to become.
#[derive(Debug)]
pub struct Obtained {
    /// Folder with the checkpoint, or the first GGUF file; it may be gone if the store is there.
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
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    pub token: Option<String>,
    pub limits: Limits,
    pub offline: bool,
    /// What a conversion is calibrated with, as a part of the store's name.
    pub calibration: String,
    /// The same of a conversion from a GGUF file.
    pub gguf_calibration: String,
    /// Memory that there is for a model, by which one of several is chosen.
    pub room: u64,
}

impl Surroundings {
    pub fn from_environment(hub: &HubArgs, calibration: &CalibrationArgs) -> Result<Self> {
        let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.into()).trim_end_matches('/').to_owned();
        Ok(Self {
            endpoint,
            downloads: places::hub_cache()?,
            stores: places::nestling_cache()?.join("stores"),
            headers: places::nestling_cache()?.join("headers"),
            token: token(hub)?,
            limits: limits(),
            offline: offline(hub),
            calibration: calibration::name(calibration)?,
            gguf_calibration: calibration::name(&calibration::of_gguf(calibration))?,
            room: memory_budget(None).unwrap_or(u64::MAX),
        })
    }
}

/// Brings a model onto this machine, as far as the network is needed; of a store, what `level` needs.
pub fn obtain(
    reference: &Reference,
    level: Option<Level>,
    around: &Surroundings,
    console: &Console,
) -> Result<Obtained> {
    let repository = &reference.repository;
    let cache = repository.cache(around.downloads.clone());
    let cached = Cached { reference, cache: &cache, around };
    if around.offline {
        return cached.find().ok_or_else(|| not_cached(reference));
    }
    let hub = Hub::new(repository, &cache, around);
    let listing = match hub.listing() {
        Ok(listing) => listing,
        Err(Trouble::Unreachable(reason)) => {
            let found = cached.find().filter(Obtained::is_converted);
            let obtained = found.ok_or_else(|| hub.unreachable(&reason))?;
            console.note(format_args!("{reason}; using the store from the cache"));
            return Ok(obtained);
        }
        Err(trouble) => return Err(hub.explain(trouble)),
    };
    let transfer = Transfer { hub, cache: &cache, listing: &listing, around, console };
    match Choice::of(&listing, reference, around.room)? {
        Choice::Checkpoint => transfer.checkpoint(),
        Choice::Gguf(files) => transfer.gguf(&files),
        Choice::Store(files) => transfer.store(files, level),
    }
}

/// A repository whose listing is known, and where its files go.
struct Transfer<'a> {
    hub: Hub<'a>,
    cache: &'a RepositoryCache,
    listing: &'a Listing,
    around: &'a Surroundings,
    console: &'a Console,
}

impl Transfer<'_> {
    /// Downloads what is missing: first the small files, which say what the rest is.
    fn checkpoint(&self) -> Result<Obtained> {
        let obtained = self.around.converted(self.cache, &self.listing.commit);
        if obtained.is_converted() {
            return Ok(obtained);
        }
        let headers = Headers::new(&self.hub, self.listing, self.around, self.console);
        let (checkpoint, weights) = headers.checkpoint()?;
        let store = estimated(&checkpoint)?.length();
        let plan = space::Plan::new(self.cache, self.listing, &weights, (&obtained, store))?;
        plan.announce(self.console)?;
        let description = self.listing.description()?;
        self.hub.fetch(self.listing, &description, self.console)?;
        self.hub.fetch(self.listing, &weights, self.console)?;
        self.cache.set_revision(&self.listing.commit)?;
        Ok(obtained)
    }

    fn gguf(&self, files: &GgufFiles) -> Result<Obtained> {
        let obtained = self.around.converted_gguf(self.cache, &self.listing.commit, files);
        if obtained.is_converted() {
            return Ok(obtained);
        }
        let told = files.quantization().map_or(String::new(), |told| format!(" ({told})"));
        self.console.note(format_args!("model:    {}{told}", files.name));
        let headers = Headers::new(&self.hub, self.listing, self.around, self.console);
        let store = estimated(&headers.gguf(files)?)?.length();
        let parts = &files.parts;
        let plan = space::Plan::new(self.cache, self.listing, parts, (&obtained, store))?;
        plan.announce(self.console)?;
        self.hub.fetch(self.listing, parts, self.console)?;
        self.cache.set_revision(&self.listing.commit)?;
        Ok(obtained)
    }

    /// The first sections of a store, as many as the level needs; what is here already is enough
    /// where none is asked for.
    fn store(&self, files: StoreFiles, level: Option<Level>) -> Result<Obtained> {
        let commit = &self.listing.commit;
        let obtained = self.around.downloaded(self.cache, commit, files.first());
        let held = Store::open(&obtained.store).ok();
        if let Some(held) = held.filter(|held| level.is_none_or(|level| level <= held.level())) {
            if held.sections_present() < held.index().sections().len() {
                self.console.note(format_args!(
                    "level {} of the store is here; `nestling upgrade` fetches the rest",
                    held.level()
                ));
            }
            return Ok(obtained);
        }
        let file = files.first().to_owned();
        let (storage, source) = remote_store::open(&self.hub, commit, files)?;
        check_config(&source)?;
        let (hub, path) = (&self.hub, obtained.store.as_path());
        let sections = Sections { hub, storage: &storage, source: &source, path };
        let wanted = sections_of(&source, level)?;
        sections.announce(wanted, self.console)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| Failure::file("make", folder, &error))?;
        let repository = self.hub.repository.id.clone();
        Origin { repository, commit: commit.clone(), file }.remember(path)?;
        sections.bring(wanted, self.console)?;
        cached::remember_commit(self.around, self.hub.repository, commit)?;
        Ok(obtained)
    }
}

/// How many sections a level needs; all that there are where none is asked for.
fn sections_of(source: &Store, level: Option<Level>) -> Result<usize> {
    let Some(level) = level else { return Ok(source.sections_present()) };
    let needed = source.index().sections_for(level);
    needed.filter(|needed| *needed <= source.sections_present()).ok_or_else(|| {
        let held = source.level();
        Failure::new(format!("{} holds level {held}, not level {level}", source.name()))
            .advise(format!("choose --level {held} or lower"))
    })
}

/// What cannot run is refused before it is downloaded.
fn check_config(source: &Store) -> Result<()> {
    let json = source.config_json().map_err(|error| crate::explain::explain_store(&error))?;
    ModelConfig::from_json("config.json", &json).map(drop).map_err(|error| cannot_run(&error))
}

fn cannot_run(error: &dyn std::fmt::Display) -> Failure {
    Failure::new(format!("this model cannot run here: {error}"))
        .advise("nothing large was downloaded; look for a newer release that knows it")
}

impl Surroundings {
    /// Where the stores of a repository lie.
    fn folder(&self, repository: &Repository) -> PathBuf {
        self.stores.join(repository.folder())
    }

    /// A checkpoint, and the store that a conversion makes of it.
    fn converted(&self, cache: &RepositoryCache, commit: &str) -> Obtained {
        // A store of an older quantizer, or of another text, is not what a conversion would make.
        let name = format!("{commit}-{}", ending(&self.calibration));
        let store = self.folder(cache.repository()).join(name);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }

    /// A model in GGUF files, and the store that a conversion makes of it.
    fn converted_gguf(&self, cache: &RepositoryCache, commit: &str, files: &GgufFiles) -> Obtained {
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
    fn downloaded(&self, cache: &RepositoryCache, commit: &str, first: &str) -> Obtained {
        let file = first.rsplit('/').next().unwrap_or(first);
        let store = self.folder(cache.repository()).join(commit).join(file);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }
}

/// How the names of stores end that were converted with such a calibration.
fn ending(calibration: &str) -> String {
    format!("q{QUANTIZER_VERSION}-{calibration}.nest")
}

fn not_cached(reference: &Reference) -> Failure {
    Failure::new(format!("{reference} is not complete in the cache, and the network is off"))
        .advise("run the same command once without --offline (and without HF_HUB_OFFLINE)")
}

fn offline(hub: &HubArgs) -> bool {
    let falsey = |value: &str| {
        matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off")
    };
    hub.offline || std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !falsey(value.trim()))
}

/// Whoever has a slow line says so to the Hub's own tools, too.
fn limits() -> Limits {
    let said = std::env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
    let seconds = said.and_then(|text| text.trim().parse::<u32>().ok()).filter(|s| *s > 0);
    let limits = Limits::default();
    match seconds {
        Some(seconds) => Limits { silence: Duration::from_secs(seconds.into()), ..limits },
        None => limits,
    }
}

/// `--hf-token` or `HF_TOKEN`, else the file that the Hub's own tools write at login.
fn token(hub: &HubArgs) -> Result<Option<String>> {
    if let Some(token) = hub.hf_token.as_deref().map(str::trim).filter(|token| !token.is_empty()) {
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

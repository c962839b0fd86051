//! Obtains models from the Hugging Face Hub.
//!
//! A repository contains a checkpoint, GGUF files or a store. Checkpoints and GGUF files are downloaded to
//! the Hub's standard cache, which other programs share. The converted store goes to Nestling's cache and is
//! named after its commit. A store is downloaded to Nestling's cache directly, with only the sections that
//! the level needs, or read by ranges through a copy there.

use crate::cached::{self, CachedRepository, not_cached};
use crate::choice::{Choice, StoreFiles};
use crate::client::RequestError;
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::gguf::GgufFiles;
use crate::headers::Headers;
use crate::listing::Listing;
use crate::observer::{Notice, Observer};
use crate::options::HubOptions;
use crate::origin::Origin;
use crate::refusals::check_config;
use crate::remote_store;
use crate::repository::{Reference, RepositoryCache};
use crate::sections::{Sections, sections_of};
use crate::space::Plan;
use crate::sparse_file::SparseFile;
use crate::store_cache::ConvertedModel;
use crate::survey::estimated;
use crate::web_copy;
use crate::web_store::WebStore;
use nestling_formats::Level;
use nestling_formats::store::Store;
use std::path::Path;

/// Obtains a model, using the network only if necessary. Stores are downloaded up to `level`; with
/// [`HubOptions::by_ranges`], only a copy for [`WebStore`] is prepared.
///
/// # Errors
/// Returns an error if the model does not exist, is not supported, or cannot be downloaded, checked and
/// stored.
pub fn obtain(
    reference: &Reference,
    level: Option<Level>,
    options: &HubOptions,
    observer: &dyn Observer,
) -> Result<ConvertedModel> {
    let repository = &reference.repository;
    let cache = repository.cache(options.downloads.clone());
    let cached = CachedRepository { reference, cache: &cache, options };
    if options.offline {
        return cached.find().ok_or_else(|| not_cached(reference));
    }
    let hub = Hub::new(repository, &cache, options);
    let listing = match hub.listing() {
        Ok(listing) => listing,
        Err(RequestError::Unreachable(reason)) => {
            let found = cached.find().filter(ConvertedModel::is_converted);
            let obtained = found.ok_or_else(|| hub.unreachable(&reason))?;
            observer.notice(&Notice::CachedStore(&reason));
            return Ok(obtained);
        }
        Err(trouble) => return Err(hub.explain(trouble)),
    };
    let transfer = Transfer { hub, cache: &cache, listing: &listing, options, observer };
    match Choice::of(&listing, reference, options.room)? {
        Choice::Checkpoint => transfer.checkpoint(),
        Choice::Gguf(files) => transfer.gguf(&files),
        Choice::Store(files) => transfer.store(files, level),
    }
}

struct Transfer<'a> {
    hub: Hub<'a>,
    cache: &'a RepositoryCache,
    listing: &'a Listing,
    options: &'a HubOptions,
    observer: &'a dyn Observer,
}

impl Transfer<'_> {
    /// Downloads the missing files. The small files come first, because they describe the rest.
    fn checkpoint(&self) -> Result<ConvertedModel> {
        let obtained = self.options.stores.converted(self.cache, &self.listing.commit);
        if obtained.is_converted() {
            return Ok(obtained);
        }
        let headers = Headers::new(&self.hub, self.listing, self.options, self.observer);
        let (checkpoint, weights) = headers.checkpoint()?;
        let store = estimated(&checkpoint)?.length();
        let plan = Plan::new(self.cache, self.listing, &weights, &obtained, Some(store))?;
        plan.announce(self.observer)?;
        let description = self.listing.description()?;
        self.hub.fetch(self.listing, &description, self.observer)?;
        self.hub.fetch(self.listing, &weights, self.observer)?;
        self.cache.set_revision(&self.listing.commit)?;
        Ok(obtained)
    }

    fn gguf(&self, files: &GgufFiles) -> Result<ConvertedModel> {
        let obtained = self.options.stores.converted_gguf(self.cache, &self.listing.commit, files);
        if obtained.is_converted() {
            return Ok(obtained);
        }
        let quantization = files.quantization();
        let quantization = quantization.as_deref();
        self.observer.notice(&Notice::GgufFile { name: &files.name, quantization });
        let headers = Headers::new(&self.hub, self.listing, self.options, self.observer);
        let checkpoint = headers.gguf(files)?;
        let store = match self.options.in_place {
            true => None,
            false => Some(estimated(&checkpoint)?.length()),
        };
        let parts = &files.parts;
        let plan = Plan::new(self.cache, self.listing, parts, &obtained, store)?;
        plan.announce(self.observer)?;
        self.hub.fetch(self.listing, parts, self.observer)?;
        self.cache.set_revision(&self.listing.commit)?;
        Ok(obtained)
    }

    /// Downloads the sections of a store up to the level. Without a requested level, an existing partial
    /// store suffices.
    fn store(&self, files: StoreFiles, level: Option<Level>) -> Result<ConvertedModel> {
        let commit = &self.listing.commit;
        let obtained = self.options.stores.downloaded(self.cache, commit, files.first());
        let held = Store::open(&obtained.store).ok();
        if let Some(held) = held.filter(|held| level.is_none_or(|level| level <= held.level())) {
            if held.sections_present() < held.index().sections().len() {
                self.observer.notice(&Notice::HeldLevel(held.level()));
            }
            return Ok(obtained);
        }
        files.check_complete()?;
        let file = files.first().to_owned();
        let (repository, revision) = (self.hub.repository.id.clone(), commit.clone());
        let origin = Origin { repository, commit: revision, file };
        let copy = SparseFile::path_of(&obtained.store);
        if self.options.by_ranges && !obtained.store.exists() {
            return self.copy(origin, &files, obtained);
        }
        if level.is_none() && copy.exists() && !obtained.store.exists() {
            let copy = WebStore::open(&copy, &self.options.access())?;
            copy.bring(copy.sections_for(None)?, self.observer, &|| false)?;
            if copy.finish()?.is_some() {
                return Ok(obtained);
            }
        }
        let (storage, source) = remote_store::open(&self.hub, commit, files)?;
        check_config(&source)?;
        let (hub, path) = (&self.hub, obtained.store.as_path());
        let sections = Sections { hub, storage: &storage, source: &source, path };
        let wanted = sections_of(&source, level)?;
        sections.announce(wanted, self.observer)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(|error| HubError::file("make", folder, error))?;
        origin.remember(path)?;
        sections.bring(wanted, self.observer)?;
        cached::remember_commit(self.options, self.hub.repository, commit)?;
        Ok(obtained)
    }

    /// Prepares the copy of a store that is read by ranges. Its path replaces that of the store.
    fn copy(
        &self,
        origin: Origin,
        files: &StoreFiles,
        obtained: ConvertedModel,
    ) -> Result<ConvertedModel> {
        let path = web_copy::of_repository(origin.clone(), files, &obtained.store, self.options)?;
        // The record is for an upgrade of the complete store.
        origin.remember(&obtained.store)?;
        cached::remember_commit(self.options, self.hub.repository, &origin.commit)?;
        Ok(ConvertedModel { store: path, ..obtained })
    }
}

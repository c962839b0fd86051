//! Requirements of a model on the Hub, determined without a large download.

use crate::cached::{CachedRepository, not_cached};
use crate::choice::{Choice, StoreFiles};
use crate::disk::Disk;
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::gguf::GgufFiles;
use crate::headers::Headers;
use crate::listing::{Listing, RemoteFile};
use crate::observer::Observer;
use crate::options::HubOptions;
use crate::refusals::check_config;
use crate::remote_store;
use crate::repository::{Reference, RepositoryCache};
use crate::sections::{Sections, sections_of};
use crate::space::Plan;
use crate::sparse_file::SparseFile;
use crate::store_cache::ConvertedModel;
use crate::web_store::WebStore;
use nestling_convert::convert::{ConvertOptions, estimate_store};
use nestling_convert::in_place::plan_in_place;
use nestling_formats::Level;
use nestling_formats::store::{Index, Store};
use nestling_import::Checkpoint;
use std::path::PathBuf;
use std::sync::Arc;

/// Result of a survey.
pub enum Survey {
    /// Local store.
    Here(PathBuf),
    /// Local download that can be converted.
    Unconverted(PathBuf),
    /// Store on the Hub.
    Store(Arc<Store>, Arrival),
    /// Model that would be converted into a store with this index.
    Model(Box<Checkpoint>, Box<Index>, Arrival),
    /// GGUF file that would run in place, as a store with this index.
    InPlace(Box<Checkpoint>, Box<Index>, Arrival),
}

/// Required downloads and disk space.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Format of the files.
    pub format: String,
    /// Number of files.
    pub files: usize,
    /// Size of all files in bytes.
    pub total: u64,
    /// Number of bytes still to be downloaded.
    pub missing: u64,
    /// Folder of the store, or of the files that run in place.
    pub folder: PathBuf,
    /// Required space on each disk.
    pub disks: Vec<Disk>,
}

/// Determines the requirements of a model, and of a store at a level.
///
/// # Errors
/// Returns an error if the Hub is unavailable or the model is not supported.
pub fn survey(
    reference: &Reference,
    level: Option<Level>,
    options: &HubOptions,
    observer: &dyn Observer,
) -> Result<Survey> {
    let cache = reference.repository.cache(options.downloads.clone());
    if options.offline {
        let found = CachedRepository { reference, cache: &cache, options }.find();
        let found = found.ok_or_else(|| not_cached(reference))?;
        return Ok(match found.is_converted() {
            true => Survey::Here(found.store),
            false => Survey::Unconverted(found.checkpoint),
        });
    }
    let hub = Hub::new(&reference.repository, &cache, options);
    let listing = hub.listing().map_err(|trouble| hub.explain(trouble))?;
    let asked = SurveyRequest { hub: &hub, cache: &cache, listing: &listing, options, observer };
    match Choice::of(&listing, reference, options.room)? {
        Choice::Checkpoint => asked.checkpoint(),
        Choice::Gguf(files) => asked.gguf(&files),
        Choice::Store(files) => asked.store(files, level),
    }
}

struct SurveyRequest<'a> {
    hub: &'a Hub<'a>,
    cache: &'a RepositoryCache,
    listing: &'a Listing,
    options: &'a HubOptions,
    observer: &'a dyn Observer,
}

impl SurveyRequest<'_> {
    fn checkpoint(&self) -> Result<Survey> {
        let obtained = self.options.stores.converted(self.cache, &self.listing.commit);
        if obtained.is_converted() {
            return Ok(Survey::Here(obtained.store));
        }
        let headers = Headers::new(self.hub, self.listing, self.options, self.observer);
        let (checkpoint, mut files) = headers.checkpoint()?;
        files.extend(self.listing.description()?);
        let index = estimated(&checkpoint)?;
        self.model(checkpoint, index, &files, &obtained, "safetensors".into())
    }

    fn gguf(&self, files: &GgufFiles) -> Result<Survey> {
        let obtained = self.options.stores.converted_gguf(self.cache, &self.listing.commit, files);
        if obtained.is_converted() {
            return Ok(Survey::Here(obtained.store));
        }
        let headers = Headers::new(self.hub, self.listing, self.options, self.observer);
        let checkpoint = headers.gguf(files)?;
        let told = files.quantization().map_or(String::new(), |told| format!(" {told}"));
        let format = format!("GGUF{told}");
        if !self.options.in_place {
            let index = estimated(&checkpoint)?;
            return self.model(checkpoint, index, &files.parts, &obtained, format);
        }
        let index = in_place(&checkpoint)?;
        let plan = Plan::new(self.cache, self.listing, &files.parts, &obtained, None)?;
        let arrival = Arrival {
            format,
            files: files.parts.len(),
            total: plan.total,
            missing: plan.missing,
            folder: self.cache.root.clone(),
            disks: plan.disks,
        };
        Ok(Survey::InPlace(Box::new(checkpoint), Box::new(index), arrival))
    }

    fn model(
        &self,
        checkpoint: Checkpoint,
        index: Index,
        files: &[RemoteFile],
        obtained: &ConvertedModel,
        format: String,
    ) -> Result<Survey> {
        let store = Some(index.length());
        let plan = Plan::new(self.cache, self.listing, files, obtained, store)?;
        let arrival = Arrival {
            format,
            files: files.len(),
            total: plan.total,
            missing: plan.missing,
            folder: plan.store_directory,
            disks: plan.disks,
        };
        Ok(Survey::Model(Box::new(checkpoint), Box::new(index), arrival))
    }

    fn store(&self, files: StoreFiles, level: Option<Level>) -> Result<Survey> {
        let commit = &self.listing.commit;
        let obtained = self.options.stores.downloaded(self.cache, commit, files.first());
        let count = files.shards.len();
        let (storage, source) = remote_store::open(self.hub, commit, files)?;
        check_config(&source)?;
        let (hub, path) = (self.hub, obtained.store.as_path());
        let sections = Sections { hub, storage: &storage, source: &source, path };
        let wanted = sections_of(&source, level)?;
        let copy = SparseFile::path_of(path);
        let (missing, disk) = if self.options.by_ranges && !path.exists() && copy.exists() {
            let opened = WebStore::open(&copy, &self.options.access())?;
            if opened.missing_bytes(wanted) == 0 {
                return Ok(Survey::Here(copy));
            }
            (opened.missing_bytes(wanted), opened.missing_bytes(wanted))
        } else {
            sections.missing(wanted)?
        };
        if missing == 0 {
            return Ok(Survey::Here(obtained.store));
        }
        // Default: a bare file name is in the current folder.
        let folder = path.parent().map(PathBuf::from).unwrap_or_default();
        let arrival = Arrival {
            format: "a store".into(),
            files: count,
            total: sections.end(wanted),
            missing,
            disks: vec![Disk::new(&folder, disk)?],
            folder,
        };
        Ok(Survey::Store(source, arrival))
    }
}

/// Returns the index of the store that a conversion would write.
///
/// # Errors
/// Returns an error if a store cannot represent the model.
pub fn estimated(checkpoint: &Checkpoint) -> Result<Index> {
    estimate_store(checkpoint, &ConvertOptions::default())
        .map_err(|error| HubError::new(format!("no store can hold this model: {error}")))
}

/// Returns the index of a GGUF file in place.
///
/// # Errors
/// Returns an error if a store cannot represent the model, or if the file has no tokenizer.
fn in_place(checkpoint: &Checkpoint) -> Result<Index> {
    let planned = plan_in_place(checkpoint)
        .map_err(|error| HubError::new(format!("this model cannot run in place: {error}")));
    Ok(planned?.0)
}

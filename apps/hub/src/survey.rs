//! What a model of the Hub would take here, before anything large is downloaded.

use crate::cached::{Cached, not_cached};
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
use crate::store_cache::Obtained;
use nestling_convert::convert::{ConvertOptions, estimate_store};
use nestling_convert::in_place::plan_in_place;
use nestling_formats::Level;
use nestling_formats::store::{Index, Store};
use nestling_import::Checkpoint;
use std::path::PathBuf;
use std::sync::Arc;

/// What was found out.
pub enum Survey {
    /// A store that is on this machine.
    Here(PathBuf),
    /// A download on this machine that can be converted.
    Unconverted(PathBuf),
    /// A store on the Hub.
    Store(Arc<Store>, Arrival),
    /// A model that would be converted into a store of this index.
    Model(Box<Checkpoint>, Box<Index>, Arrival),
    /// A GGUF file that would run where it lies, as a store of this index would.
    InPlace(Box<Checkpoint>, Box<Index>, Arrival),
}

/// What would be fetched and written.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The format of the files.
    pub format: String,
    /// How many files there are.
    pub files: usize,
    /// Bytes of all files.
    pub total: u64,
    /// Bytes of them that are not here yet.
    pub missing: u64,
    /// Where the store will be, or the files that run where they lie.
    pub folder: PathBuf,
    /// What the disks must have room for.
    pub disks: Vec<Disk>,
}

/// Asks the Hub about a model, at a level if it is a store.
///
/// # Errors
/// If the Hub cannot be asked, or what it has cannot be run.
pub fn survey(
    reference: &Reference,
    level: Option<Level>,
    options: &HubOptions,
    observer: &dyn Observer,
) -> Result<Survey> {
    let cache = reference.repository.cache(options.downloads.clone());
    if options.offline {
        let found = Cached { reference, cache: &cache, options }.find();
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
        obtained: &Obtained,
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
        let (missing, disk) = sections.missing(wanted)?;
        if missing == 0 {
            return Ok(Survey::Here(obtained.store));
        }
        // Default: a bare name lies in the current folder.
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

/// The index of the store that a conversion would make.
///
/// # Errors
/// If no store can hold the model.
pub fn estimated(checkpoint: &Checkpoint) -> Result<Index> {
    estimate_store(checkpoint, &ConvertOptions::default())
        .map_err(|error| HubError::new(format!("no store can hold this model: {error}")))
}

/// The index of what a GGUF file is where it lies.
///
/// # Errors
/// If no store can hold the model, or the file has no tokenizer.
fn in_place(checkpoint: &Checkpoint) -> Result<Index> {
    let planned = plan_in_place(checkpoint)
        .map_err(|error| HubError::new(format!("this model cannot run where it lies: {error}")));
    Ok(planned?.0)
}

//! The model that a plan is for: a store, or a source that would be converted to one.

use crate::args::{CalibrationArgs, PlanArgs};
use crate::explain::{explain_import, explain_store};
use crate::failure::{Failure, Result};
use crate::located::NamedModel;
use crate::speed::StoreLocation;
use crate::stores::open_store;
use crate::{bytes::ByteSize, console::Console};
use crate::{hub, in_place, places};
use nestling::formats::Level;
use nestling::formats::store::{Index, Store};
use nestling::import::{Checkpoint, ModelConfig};
use nestling_hub::{Arrival, Reference, Survey, is_gguf};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// A local or remote store, or a store planned from the headers of a model.
pub struct Subject {
    pub name: String,
    pub index: Arc<Index>,
    /// Highest level of the store.
    pub held: Level,
    pub config: ModelConfig,
    /// Location that the store is or will be read from.
    pub place: StoreLocation,
    /// Number of weights of a model that is not converted yet.
    pub weights: Option<u64>,
    /// True if the sizes of the auxiliary files are known, so that all sizes are exact.
    pub is_exact: bool,
    /// True for a GGUF file that runs in place.
    pub in_place: bool,
    /// Downloads and conversions that are necessary before use.
    pub arrival: Option<Arrival>,
}

impl Subject {
    /// Returns the model named on the command line.
    pub fn of_arguments(args: &PlanArgs, console: &Console) -> Result<Self> {
        let path = args.path.as_ref().or(args.model.as_ref());
        let (None, Some(repo)) = (path, &args.hub.hf_repo) else {
            if let Some(web) = NamedModel::of_files(path, &args.hub).locate_on_web(console)? {
                return Self::of_path(&web.path);
            }
            let path = path.map_or_else(places::bundled_store, |path| Ok(path.clone()))?;
            return Self::of_path(&path);
        };
        let reference = Reference::parse(repo, &args.hub.hf_revision)?;
        let mut options = hub::options(&args.hub, &CalibrationArgs::default())?;
        options.in_place = true;
        options.by_ranges = true;
        let level = args.level.map(|level| level.0);
        match nestling_hub::survey(&reference, level, &options, console)? {
            Survey::Here(path) | Survey::Unconverted(path) => Self::of_path(&path),
            Survey::Store(store, arrival) => {
                let folder = arrival.folder.clone();
                let place = StoreLocation::of_folder(&folder, store.index());
                Ok(Self { place, arrival: Some(arrival), ..Self::of_store(&store)? })
            }
            Survey::Model(checkpoint, index, arrival) => {
                let name = reference.to_string();
                let place = StoreLocation::of_folder(&arrival.folder, &index);
                Ok(Self::planned(name, &checkpoint, *index, place, Some(arrival)))
            }
            Survey::InPlace(checkpoint, index, arrival) => {
                let name = reference.to_string();
                let place = StoreLocation::of_folder(&arrival.folder, &index);
                let planned = Self::planned(name, &checkpoint, *index, place, Some(arrival));
                Ok(Self { in_place: true, is_exact: true, ..planned })
            }
        }
    }

    /// Reads a store, a checkpoint folder or a GGUF file.
    pub fn of_path(path: &Path) -> Result<Self> {
        let in_place = in_place::is_wanted(path, &CalibrationArgs::default());
        let named_gguf = path.extension().is_some_and(|ending| ending == "gguf");
        if in_place || !path.is_dir() && !is_gguf(path) && !named_gguf {
            let store = open_store(path)?;
            return Self::of_store(&store);
        }
        let checkpoint = Checkpoint::open(path).map_err(|error| explain_import(&error))?;
        let index = nestling_hub::estimated(&checkpoint)?;
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        let place = StoreLocation::of_folder(folder.unwrap_or(Path::new(".")), &index);
        Ok(Self::planned(path.display().to_string(), &checkpoint, index, place, None))
    }

    pub fn of_store(store: &Arc<Store>) -> Result<Self> {
        let json = store.config_json().map_err(|error| explain_store(&error))?;
        let config = ModelConfig::from_json("config.json", &json);
        let config = config.map_err(|error| explain_import(&error))?;
        Ok(Self {
            name: store.name().to_owned(),
            index: Arc::new(store.index().clone()),
            held: store.level(),
            config,
            place: StoreLocation::of_store(store),
            weights: None,
            is_exact: true,
            in_place: store.is_derived(),
            arrival: None,
        })
    }

    fn planned(
        name: String,
        checkpoint: &Checkpoint,
        index: Index,
        place: StoreLocation,
        arrival: Option<Arrival>,
    ) -> Self {
        let held = index.complete_level(index.sections().len()).unwrap_or(Level::L8);
        Self {
            name,
            held,
            is_exact: matches!(checkpoint.asset("tokenizer.json"), Ok(Some(_))),
            config: checkpoint.config().clone(),
            place,
            weights: Some(checkpoint.shape().weights()),
            in_place: false,
            arrival,
            index: Arc::new(index),
        }
    }

    /// Describes the download, conversion and disk space that the model needs before use. Empty for a local
    /// store.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        if let Some(arrival) = &self.arrival {
            let Arrival { format, files, total, missing, .. } = arrival;
            let plural = if *files == 1 { "" } else { "s" };
            let _ = writeln!(
                text,
                "download  {} in {files} file{plural} ({format}), {} still to fetch",
                ByteSize(*total),
                ByteSize(*missing),
            );
        }
        if self.in_place {
            text += "file      runs in place: no store is made of it\n";
        } else if self.weights.is_some() {
            let store = ByteSize(self.index.length());
            let limit = if self.is_exact { "" } else { "at most " };
            let _ = writeln!(text, "store     {limit}{store} once converted");
        }
        for disk in self.arrival.iter().flat_map(|arrival| &arrival.disks) {
            let lacking = disk.needed.saturating_sub(disk.free);
            let lacking = match lacking {
                0 => String::new(),
                lacking => format!("; {} too little", ByteSize(lacking)),
            };
            let _ = writeln!(text, "disk      {}{lacking}", disk.describe());
        }
        text
    }

    /// Returns the missing disk space in bytes.
    pub fn lacking(&self) -> u64 {
        let disks = self.arrival.iter().flat_map(|arrival| &arrival.disks);
        // Default: 0 if nothing has to be written.
        disks.map(|disk| disk.needed.saturating_sub(disk.free)).max().unwrap_or(0)
    }

    /// Returns true for a store on this machine.
    pub fn is_here(&self) -> bool {
        self.weights.is_none() && self.arrival.is_none()
    }

    pub fn as_json(&self) -> Value {
        let disks = |arrival: &Arrival| {
            let disks = arrival.disks.iter().map(|disk| {
                json!({
                    "directory": disk.directory.display().to_string(),
                    "needed_bytes": disk.needed,
                    "free_bytes": disk.free,
                })
            });
            disks.collect::<Vec<_>>()
        };
        json!({
            "weights": self.weights,
            "in_place": self.in_place,
            "store_bytes": (!self.in_place).then(|| self.index.length()),
            "download": self.arrival.as_ref().map(|arrival| json!({
                "format": arrival.format,
                "files": arrival.files,
                "total_bytes": arrival.total,
                "missing_bytes": arrival.missing,
                "disks": disks(arrival),
            })),
        })
    }

    /// Returns an error if the store does not contain a level.
    pub fn check_level(&self, level: Level) -> Result<()> {
        if level <= self.held {
            return Ok(());
        }
        let held = self.held;
        Err(Failure::new(format!("{} holds level {held}, not level {level}", self.name))
            .advise(format!("choose --level {held} or lower")))
    }
}

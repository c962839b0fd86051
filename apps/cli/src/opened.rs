//! Opens the model that the command line names.

use crate::args::{KvTypeArg, LoadModeArg, ModelArgs, RanksArg, ResourceArgs};
use crate::background::{self, Background};
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::explain::{explain, explain_store};
use crate::failure::{Failure, Result};
use crate::in_place::InPlaceFile;
use crate::interrupt::Interrupt;
use crate::kernels::instruction_set;
use crate::located::{LocatedModel, NamedModel, WebStart};
use crate::memory::memory_budget;
use crate::model_devices::ModelDevices;
use crate::progress::Progress;
use crate::speed::{best_threads, read_options};
use crate::stores::open_store_for;
use crate::words::context_note;
use crate::{demo, hub, in_place, located, mapped, processes, warnings};
use nestling::engine::allocation::AllocationSummary;
use nestling::engine::record::Recorder;
use nestling::engine::{
    Engine, EngineError, EngineOptions, KvDtype, LevelMode, Model, ModelOptions, ModelSource,
    Residence, ThreadPlacement,
};
use nestling::engine::{MemoryPlan, PlannedResidence};
use nestling::formats::store::Store;
use nestling::import::ModelConfig;
use nestling::{OpenDevice, PageReads, PageStore, PageStoreOptions};
use nestling_hub::{ModelLease, is_gguf};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A model that is ready to generate.
pub struct LoadedModel {
    pub model: Model,
    pub path: PathBuf,
    /// True for the bundled storyteller.
    pub is_bundled: bool,
    /// Time to open the model.
    pub load: Duration,
    /// Reason why the CPU computes although a GPU was looked for.
    pub on_cpu: Option<String>,
    /// Mean bits of the experts if the matrices have different levels.
    pub allocated_bits: Option<f64>,
    /// The GGUF file, if one runs in place.
    pub file: Option<InPlaceFile>,
    /// Background conversion of the file into a store.
    pub background: Option<Background>,
    /// Prevents other processes from removing the model's files.
    pub _in_use: Option<ModelLease>,
}

/// Locates the model named on the command line. Downloads and converts it for `-hf`.
pub fn locate(model: &ModelArgs, console: &Console, interrupt: &Interrupt) -> Result<LocatedModel> {
    let start = if model.lazy { WebStart::Index } else { WebStart::Level };
    locate_from(model, start, console, interrupt)
}

/// Locates the model named on the command line. Of a store on the web, fetches what `start` says.
pub fn locate_from(
    model: &ModelArgs,
    start: WebStart,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<LocatedModel> {
    warnings::refuse_contradictions(model)?;
    let demo = if model.is_demo() { demo::find(console) } else { None };
    let named = NamedModel {
        path: model.given_path().or(demo.as_ref()),
        hub: &model.hub,
        calibration: model.calibration.clone(),
        level: model.level.map(|level| level.0),
        start,
    };
    named.locate(console, interrupt)
}

pub fn open(
    model: &ModelArgs,
    resources: &ResourceArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<LoadedModel> {
    let located = locate(model, console, interrupt)?;
    open_at(located, model, resources, None, console, interrupt)
}

/// Opens a located model. The recorder receives its events.
pub fn open_at(
    located: LocatedModel,
    model: &ModelArgs,
    resources: &ResourceArgs,
    recorder: Option<Arc<Recorder>>,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<LoadedModel> {
    let LocatedModel { mut path, is_bundled, level } = located;
    warnings::of_options(model, resources, &path, console);
    let mut devices = ModelDevices::open(&resources.device, resources.ranks, console)?;
    // A page store has one writer, and the pages of rank 0 are those of all ranks.
    let is_lead = resources.ranks != RanksArg::Mpi
        || processes::join_as_lead().map_err(|error| explain(&error))?;
    let page_store = if is_lead { page_store(resources)? } else { None };
    let mut options = ModelOptions { recorder, page_store, ..model_options(model, resources) };
    options.level = options.level.or(level);
    let in_place = in_place::is_wanted(&path, &model.calibration);
    if let Some(made) = background::made_of(&path).filter(|_| in_place) {
        console.note(format_args!("{} is the store that was made of it", made.display()));
        path = made;
    } else if in_place {
        in_place::tell(&path, model, resources, console)?;
        options = in_place::options(options);
    } else if is_gguf(&path) {
        path = located::store_of(&path, &model.calibration, console, interrupt)?;
    }
    let mut in_use = note_use(&path, None)?;
    let mut started = Instant::now();
    let (opened, store, file) = loop {
        let (source, file) = source(&path, resources.load_mode, model.partial, devices.first())?;
        if is_gguf(&path) {
            options.residence = in_place::residence(devices.first());
        }
        let store = store_of(&source).cloned();
        match load(&devices, source, resources, &mut options, console, interrupt) {
            Ok(opened) => break (opened, store, file),
            Err(error) => devices = devices.instead(&resources.device, error, console)?,
        }
        started = Instant::now();
    };
    if let Some(reads) = file.as_ref().and_then(InPlaceFile::reads_file) {
        in_use = note_use(&path, Some(&reads))?;
    }
    // Default: 0 if no context length was requested.
    let (asked, given) = (resources.ctx_size.unwrap_or(0), opened.context_length());
    if asked as usize > given {
        console.warn(format_args!("-c {asked} is more than the model supports: {given}"));
    }
    warnings::of_level(model, opened.limits().level_max, console);
    let allocated = store.zip(opened.allocation());
    let allocated = allocated.map(|(store, levels)| AllocationSummary::of(store.index(), levels));
    let on_cpu = match devices {
        ModelDevices::One(OpenDevice::Cpu { reason }) => reason,
        _ => None,
    };
    Ok(LoadedModel {
        allocated_bits: allocated.and_then(|summary| summary.expert_bits),
        model: opened,
        path,
        is_bundled,
        load: started.elapsed(),
        on_cpu,
        file,
        background: None,
        _in_use: in_use,
    })
}

/// Records that a model is in use. Without a cache, nothing is recorded.
fn note_use(path: &Path, reads: Option<&Path>) -> Result<Option<ModelLease>> {
    match hub::uses() {
        Ok(uses) => Ok(uses.begin(path, reads)?),
        Err(_) => Ok(None),
    }
}

fn store_of(source: &ModelSource) -> Option<&Arc<Store>> {
    match source {
        ModelSource::Store(store) => Some(store),
        ModelSource::Mapped(mapped) => Some(mapped.store()),
        _ => None,
    }
}

/// Loads a model on its devices within the memory budgets of host and devices.
fn load(
    devices: &ModelDevices,
    source: ModelSource,
    resources: &ResourceArgs,
    options: &mut ModelOptions,
    console: &Console,
    interrupt: &Interrupt,
) -> std::result::Result<Model, EngineError> {
    let engine = Engine::new(engine_options(resources, devices)?)?;
    // A longer context is a warning once the model is open.
    let config = source.config()?;
    let limit = config.max_position_embeddings;
    let is_longer = options.context_length.is_some_and(|length| length > limit);
    if let Some(note) = context_note(&config).filter(|_| is_longer) {
        console.warn(format_args!("{note}"));
    }
    options.context_length = options.context_length.map(|length| length.min(limit));
    if let ModelSource::Store(store) = &source
        && is_streamed(store, options, engine.budget().total_bytes())
    {
        options.reads = read_options(store, console);
    }
    let mut bar = Progress::parts(console, "loading");
    interrupt.guard(|cancel| {
        let mut progress = |at: nestling::engine::OpenProgress| {
            bar.set_of(at.parts_done, at.parts_total);
        };
        devices.open_model(&engine, source, options, &mut progress, cancel)
    })
}

fn source(
    path: &Path,
    mode: LoadModeArg,
    partial: bool,
    device: &OpenDevice,
) -> Result<(ModelSource, Option<InPlaceFile>)> {
    if !path.is_file() {
        // A checkpoint folder; its weights are always read into memory. Any other path fails here.
        return Ok((ModelSource::at(path).map_err(|error| explain(&error))?, None));
    }
    let opened = open_store_for(path, partial, in_place::digits(device))?;
    let store = Arc::clone(&opened);
    let source = match mode {
        LoadModeArg::Mmap => {
            ModelSource::Mapped(mapped::map(store).map_err(|error| explain_store(&error))?)
        }
        LoadModeArg::Owned => ModelSource::Store(store),
    };
    Ok((source, opened.file))
}

fn engine_options(
    resources: &ResourceArgs,
    devices: &ModelDevices,
) -> std::result::Result<EngineOptions, EngineError> {
    let host = memory_budget(resources.memory);
    devices.keep_in_host(host);
    Ok(EngineOptions {
        threads: resources.threads.map(|threads| threads as usize).or_else(best_threads),
        placement: match resources.pin_threads {
            true => ThreadPlacement::Pinned,
            false => ThreadPlacement::Free,
        },
        instruction_set: instruction_set()?,
        memory_budget: devices.memory_budget(host),
        ..EngineOptions::default()
    })
}

/// Returns true if a store's experts do not fit into memory. Returns false if the store cannot be opened.
fn is_streamed(store: &Store, options: &ModelOptions, budget: Option<u64>) -> bool {
    let json = store.config_json().ok();
    let config = json.and_then(|json| ModelConfig::from_json("config.json", &json).ok());
    let plan = |config| MemoryPlan::of_store(store, &config, options, None, budget).ok();
    config.and_then(plan).is_some_and(|plan| plan.residence == PlannedResidence::Streamed)
}

pub fn model_options(model: &ModelArgs, resources: &ResourceArgs) -> ModelOptions {
    ModelOptions {
        level: model.level.map(|level| level.0),
        weight_budget: model.weight_budget.map(|size| size.0),
        dual: model.dual(),
        kv_dtype: kv_dtype(resources.kv_type),
        context_length: context_length(resources.ctx_size),
        kv_tokens: resources.kv_tokens.map(|tokens| tokens as usize),
        host_experts: resources.host.host_experts.into(),
        expert_division: resources.experts.into(),
        kv_division: resources.kv.of_ranks(resources.ranks),
        expert_replicas: resources.experts.expert_replicas,
        residence: if model.lazy { Residence::Lazy } else { Residence::Auto },
        ..ModelOptions::default()
    }
}

fn page_store(resources: &ResourceArgs) -> Result<Option<PageStore>> {
    let Some(directory) = resources.page_store.clone() else { return Ok(None) };
    let (bytes_max, reads) = (resources.page_store_size.0, PageReads::default());
    let store = PageStore::open(PageStoreOptions { directory, bytes_max, reads });
    let failed = |error: EngineError| Failure::sentence(&error);
    store.map(Some).map_err(|error| failed(error).advise("name another folder with --page-store"))
}

pub fn kv_dtype(kind: KvTypeArg) -> KvDtype {
    match kind {
        KvTypeArg::F16 => KvDtype::F16,
        KvTypeArg::F32 => KvDtype::F32,
        KvTypeArg::Int8 => KvDtype::Int8,
    }
}

/// Returns the requested context length in tokens; 0 means the length that the model was trained for.
pub fn context_length(tokens: Option<u32>) -> Option<usize> {
    tokens.map(|tokens| if tokens == 0 { usize::MAX } else { tokens as usize })
}

impl LoadedModel {
    /// Returns the display name of the model: its file or folder name without the extension.
    pub fn name(&self) -> String {
        let path = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        let stem = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        // Default: only the name of an incomplete copy has a second ending.
        stem.strip_suffix(".nest").unwrap_or(&stem).to_owned()
    }

    /// Returns the text of `/show info`.
    pub fn describe(&self) -> String {
        let (model, limits) = (&self.model, self.model.limits());
        let mut text = format!("{} ({})", self.name(), self.path.display());
        let level = limits.level_max.map_or("unquantized".into(), |level| format!("level {level}"));
        let level = match model.allocation() {
            Some(allocation) => format!("allocation {}", allocation.hash()),
            None => level,
        };
        let level = match self.model.dual() {
            Some(dual) => {
                let policy = dual.policy();
                let mean = dual.expected_level(policy).unwrap_or(0.0);
                let mode = match policy.mode {
                    LevelMode::Elastic => "elastic",
                    _ => "strict",
                };
                let threshold = policy.threshold;
                format!("{level}, mean level {mean:.2} ({mode}, threshold {threshold})")
            }
            None => level,
        };
        let _ = write!(text, "\n{}", model.device_name());
        let _ = write!(text, "\n{level}, {} of weights", ByteSize(model.weight_bytes()));
        let _ = write!(text, ", context of {} tokens", model.context_length());
        let _ = write!(text, ", vocabulary of {}", limits.vocab_size);
        text
    }
}

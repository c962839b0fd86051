//! Runs Mixture-of-Experts language models from one bit-nested store.
//!
//! Nestling runs models that are larger than memory: experts that do not fit are read from disk while the model
//! runs. One store contains the model at 2, 3, 4, 6 and 8 bits per weight, and each generation can choose its
//! level. This is the crate that applications depend on. It opens models on the best device of the build, and
//! re-exports the API of [`engine`] and [`formats`].
//!
//! # Example
//!
//! [`open`] accepts the path of a store, here the one that is bundled with the repository:
//!
//! ```
//! use nestling::{Event, GenerateOptions};
//!
//! # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
//! let model = nestling::open(store)?;
//! let options = GenerateOptions { max_tokens: Some(4), ..GenerateOptions::greedy() };
//! let mut text = String::new();
//! for event in model.session().generate("The captain said", &options)? {
//!     if let Event::Text(more) = event? {
//!         text.push_str(&more);
//!     }
//! }
//! assert!(!text.is_empty());
//! # Ok::<(), nestling::EngineError>(())
//! ```
//!
//! # Types
//!
//! | type | purpose |
//! |---|---|
//! | [`open`], [`Builder`], [`OpenOptions`] | opening a model: with defaults, step by step, with options in a struct |
//! | [`Device`], [`DeviceOptions`] | compute device: the CPU or a GPU |
//! | [`ranks`], [`RankDevices`] | one model over several ranks, which are threads, processes or GPUs, with the bits of one |
//! | [`Engine`], [`EngineOptions`] | threads and memory budget, shared by all models of an engine |
//! | [`Model`], [`ModelOptions`] | an open model: levels, context length, residence of experts, tokenizer |
//! | [`Session`], [`SnapshotContents`] | token history with its KV cache; can be forked and saved |
//! | [`Chat`], [`Conversation`], [`Message`] | conversation with a transcript, tools and reasoning |
//! | [`GenerateOptions`], [`SamplingOptions`] | limits, sampling, stop strings and level of one generation |
//! | [`Generation`], [`Event`] | running output: a blocking iterator, a stream or a future |
//! | [`Constraint`], [`ConstraintSource`] | constraints on the output; the feature `guide` implements them |
//! | [`PageStore`] | computed prefixes on disk, reused by later processes |
//! | [`CancelToken`] | cancellation of an opening or a generation |
//! | [`EngineError`], [`ErrorClass`] | errors; the class separates the caller's errors from temporary ones |
//!
//! # Features
//!
//! | feature | purpose |
//! |---|---|
//! | `convert` | conversion of checkpoints, GGUF files in place, calibration, evaluation |
//! | `guide` | outputs that follow a JSON schema, a regular expression or a grammar |
//! | `wgpu` | GPUs through Vulkan, Metal, Direct3D 12 and WebGPU |
//! | `cuda` | NVIDIA GPUs through the CUDA driver, which is loaded at run time |
//! | `mpi` | ranks that are processes; needs an installed MPI to build |

mod builder;
mod device;
pub mod engine;
#[cfg(feature = "convert")]
mod gguf;
mod rank_devices;

#[cfg(feature = "cuda")]
pub use nestling_cuda as cuda;
pub use nestling_formats as formats;
#[cfg(feature = "guide")]
pub use nestling_guide as guide;
pub use nestling_import as import;
pub use nestling_ranks as ranks;
pub use nestling_threads::system_memory as system;
#[cfg(feature = "wgpu")]
pub use nestling_wgpu as wgpu;

pub use builder::Builder;
pub use device::{Device, DeviceError, DeviceOptions, OpenDevice, WithBackend};
#[cfg(feature = "convert")]
pub use gguf::gguf_in_place;
pub use rank_devices::RankDevices;

pub use nestling_core::{
    ActivationMode, Budget, CancelToken, EngineError, ErrorClass, ExpertMap, ExpertPlanes, KvDtype,
    MemoryTooSmall, StreamStats,
};
pub use nestling_formats::Level;
pub use nestling_runtime::{
    AnswerFuture, Capabilities, Chat, Constraint, ConstraintCache, ConstraintContext,
    ConstraintError, ConstraintSource, Conversation, Driver, Engine, EngineOptions, Event,
    EventStream, ExpertTotals, FinishReason, FittedConversation, GenerateOptions, Generation,
    GenerationSummary, HiddenRow, HiddenRows, Input, MemoryPlan, Model, ModelOptions, ModelSource,
    OpenProgress, PageReads, PageStatus, PageStore, PageStoreOptions, PageStoreStatus,
    PlannedResidence, PrefixStatus, Prefixes, Prompt, Residence, SamplingOptions, ServiceStatus,
    Session, SnapshotContents, Starts, Stats, StepStatus, TokenEvent, Usage, Writes,
};
pub use nestling_text::{
    ContentPart, ConversationJson, ConversationJsonError, Message, MessageContent, Role,
    SamplerKind, SamplingParams, SpecialText, TemplateTime, TextError, TokenMask, ToolCall,
    ToolSchema, ToolStyle,
};

use std::path::Path;

use system::{MemoryState, SystemFiles};

/// Options of [`open_with`].
///
/// ```
/// use nestling::{Device, DeviceOptions, ModelOptions, OpenOptions};
///
/// let options = OpenOptions {
///     device: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
///     model: ModelOptions { context_length: Some(2048), ..ModelOptions::default() },
///     ..OpenOptions::default()
/// };
/// assert_eq!(options.engine.memory_budget, None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Options of the device.
    pub device: DeviceOptions,
    /// Options of the engine started for the model.
    ///
    /// Without [`EngineOptions::memory_budget`], the budget is the system's free memory less a margin
    /// ([`MemoryState::default_budget`]). `u64::MAX` means no limit.
    pub engine: EngineOptions,
    /// Options of the model.
    pub model: ModelOptions,
}

/// Opens a model with default options, on the best device that supports it and in a new engine.
///
/// The path is a `.nest` store, the directory of a Hugging Face checkpoint or, with the feature `convert`, a
/// GGUF file, which runs in place. Memory use is limited to the system's free memory less a margin, and a
/// larger store is streamed. Linux, Android, macOS, iOS, Windows and FreeBSD report their free memory; elsewhere
/// there is no limit.
///
/// Damage of a store is an error. A GGUF file contains no checksums: its parts are compared with their first read
/// while the model is open, and damage from before is not detected. The program `nestling` keeps these checksums
/// for later openings.
///
/// ```
/// use nestling::ErrorClass;
///
/// let error = nestling::open("missing.nest").err();
/// assert_eq!(error.map(|error| error.class()), Some(ErrorClass::Source));
/// ```
///
/// # Errors
/// Fails as [`OpenDevice::open_model`] does.
pub fn open(path: impl AsRef<Path>) -> Result<Model, EngineError> {
    open_with(path, &OpenOptions::default(), &mut |_| {}, &CancelToken::new())
}

/// Opens a model as [`open`] does, with options. `progress` is called after each layer, and `cancel` takes
/// effect between two layers.
///
/// ```
/// use nestling::{CancelToken, ModelOptions, OpenOptions};
///
/// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
/// let model = ModelOptions { context_length: Some(256), ..ModelOptions::default() };
/// let options = OpenOptions { model, ..OpenOptions::default() };
/// let mut parts = 0;
/// let mut progress = |done: nestling::OpenProgress| parts = done.parts_done;
/// let model = nestling::open_with(store, &options, &mut progress, &CancelToken::new())?;
/// assert_eq!(model.context_length(), 256);
/// assert!(parts > 0);
/// # Ok::<(), nestling::EngineError>(())
/// ```
///
/// # Errors
/// Fails as [`OpenDevice::open_model`] does.
pub fn open_with(
    path: impl AsRef<Path>,
    options: &OpenOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    open_on(&SystemFiles::default(), path.as_ref(), options, progress, cancel)
}

/// Opens a model with a memory budget read from `system`.
fn open_on(
    system: &SystemFiles,
    path: &Path,
    options: &OpenOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    let free = || MemoryState::read(system).map(|state| state.default_budget());
    let host = options.engine.memory_budget.or_else(free);
    let start = |device: &OpenDevice| {
        let memory_budget = device.memory_budget(host);
        Engine::new(EngineOptions { memory_budget, ..options.engine.clone() })
    };
    open_started(path, options, host, &start, progress, cancel)
}

/// Opens a model in an existing engine, so that several models share its threads and memory budget.
///
/// [`OpenOptions::engine`] is ignored.
///
/// ```no_run
/// use nestling::{CancelToken, Engine, EngineOptions, OpenOptions};
///
/// let options = EngineOptions { memory_budget: Some(8 << 30), ..EngineOptions::default() };
/// let engine = Engine::new(options)?;
/// let (options, cancel) = (OpenOptions::default(), CancelToken::new());
/// let small = nestling::open_in(&engine, "small.nest", &options, &mut |_| {}, &cancel)?;
/// let large = nestling::open_in(&engine, "large.nest", &options, &mut |_| {}, &cancel)?;
/// assert!(engine.budget().used_bytes() <= 8 << 30);
/// # Ok::<(), nestling::EngineError>(())
/// ```
///
/// # Errors
/// Fails as [`OpenDevice::open_model`] does.
pub fn open_in(
    engine: &Engine,
    path: impl AsRef<Path>,
    options: &OpenOptions,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    let host = engine.budget().total_bytes();
    open_started(path.as_ref(), options, host, &|_| Ok(engine.clone()), progress, cancel)
}

/// Opens a model on the first device that supports it, in the engine that `start` returns for that device.
fn open_started(
    path: &Path,
    options: &OpenOptions,
    host: Option<u64>,
    start: &dyn Fn(&OpenDevice) -> Result<Engine, EngineError>,
    progress: &mut dyn FnMut(OpenProgress),
    cancel: &CancelToken,
) -> Result<Model, EngineError> {
    let mut device = options.device.open()?;
    loop {
        device.keep_in_host(host);
        let engine = start(&device)?;
        let (source, model) = source_at(path, &device, &options.model)?;
        match device.open_model(&engine, source, &model, progress, cancel) {
            Err(error) => device = options.device.instead(&device, error)?,
            opened => return opened,
        }
    }
}

/// Opens the source at a path, and returns it with the model options for a device.
#[cfg(feature = "convert")]
fn source_at(
    path: &Path,
    device: &OpenDevice,
    options: &ModelOptions,
) -> Result<(ModelSource, ModelOptions), EngineError> {
    match gguf::is_gguf(path) {
        true => gguf::source_at(path, device, options),
        false => Ok((ModelSource::at(path)?, options.clone())),
    }
}

#[cfg(not(feature = "convert"))]
fn source_at(
    path: &Path,
    _: &OpenDevice,
    options: &ModelOptions,
) -> Result<(ModelSource, ModelOptions), EngineError> {
    Ok((ModelSource::at(path)?, options.clone()))
}

/// The example of the README, run on the bundled model.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The program of the page about embedding.
#[cfg(doctest)]
#[doc = include_str!("../docs/embed/rust.md")]
struct EmbedRust;

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the bundled store on a system that reports `available_kib` KiB of free memory.
    fn open_where(available_kib: u64, memory_budget: Option<u64>) -> Model {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("proc")).unwrap();
        let text = format!("MemTotal: 24684084 kB\nMemAvailable: {available_kib} kB\n");
        std::fs::write(root.path().join("proc/meminfo"), text).unwrap();
        let system = SystemFiles::below(root.path());
        let options = OpenOptions {
            device: DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() },
            engine: EngineOptions { memory_budget, threads: Some(1), ..EngineOptions::default() },
            ..OpenOptions::default()
        };
        let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
        open_on(&system, store.as_ref(), &options, &mut |_| {}, &CancelToken::new()).unwrap()
    }

    #[test]
    fn a_model_larger_than_what_is_free_is_streamed() {
        let residence = |model: &Model| model.memory_plan().unwrap().residence;
        let model = open_where(48 << 10, None);
        assert_eq!(model.engine().budget().total_bytes(), Some(24 << 20), "half of what is free");
        assert_eq!(residence(&model), PlannedResidence::Streamed);
        assert!(model.engine().budget().used_bytes() <= 24 << 20);
        assert_eq!(residence(&open_where(4 << 20, None)), PlannedResidence::Resident);
    }

    #[test]
    fn a_budget_that_is_given_comes_before_the_systems() {
        let model = open_where(48 << 10, Some(1 << 30));
        assert_eq!(model.engine().budget().total_bytes(), Some(1 << 30));
        assert_eq!(model.memory_plan().unwrap().residence, PlannedResidence::Resident);
        let unlimited = open_where(48 << 10, Some(u64::MAX));
        assert_eq!(unlimited.engine().budget().total_bytes(), None);
    }

    #[test]
    fn models_in_one_engine_share_its_budget() {
        let engine = Engine::new(EngineOptions {
            memory_budget: Some(1 << 30),
            threads: Some(1),
            ..EngineOptions::default()
        });
        let engine = engine.unwrap();
        let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
        let device = DeviceOptions { device: Device::Cpu, ..DeviceOptions::default() };
        let options = OpenOptions { device, ..OpenOptions::default() };
        let open = || open_in(&engine, store, &options, &mut |_| {}, &CancelToken::new());
        let first = open().unwrap();
        let used = engine.budget().used_bytes();
        assert!(used >= first.weight_bytes());
        let second = open().unwrap();
        assert!(engine.budget().used_bytes() >= used + second.weight_bytes());
        engine.budget().set_total_bytes(Some(engine.budget().used_bytes() + 1));
        assert!(open().is_err(), "there is no room for a third");
    }

    #[test]
    fn a_plain_open_has_the_budget_of_this_system() {
        let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
        let model = open(store).unwrap();
        let free = MemoryState::read(&SystemFiles::default());
        assert_eq!(model.engine().budget().total_bytes().is_some(), free.is_some());
    }
}

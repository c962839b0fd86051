//! Runs Mixture-of-Experts language models from one bit-nested store.
//!
//! This is the crate that applications depend on: it opens models on the best device that the
//! build has, and passes on what [`nestling_engine`] and [`nestling_formats`] offer.

mod device;

#[cfg(feature = "cuda")]
pub use nestling_cuda as cuda;
pub use nestling_engine as engine;
pub use nestling_formats as formats;
#[cfg(feature = "wgpu")]
pub use nestling_wgpu as wgpu;

pub use device::{Device, DeviceError, DeviceOptions, OpenDevice, WithBackend};

pub use nestling_engine::text::{Message, Role, ToolCall, ToolSchema};
pub use nestling_engine::{
    ActivationMode, Budget, CancelToken, Conversation, Driver, Engine, EngineError, EngineOptions,
    Event, FinishReason, Finished, Fitted, GenerateOptions, Generation, Input, KvDtype, MemoryPlan,
    MemoryTooSmall, Model, ModelOptions, ModelSource, OpenProgress, PlannedResidence, Residence,
    SamplingParams, Session, SnapshotContents, Stats, StreamStats, TokenEvent, Usage,
};
pub use nestling_formats::Level;

use std::path::Path;

/// Opens a model with all defaults, on the best device that takes it and an engine of its own: a
/// `.nest` store, or the folder of a Hugging Face checkpoint.
///
/// # Errors
/// As [`OpenDevice::open_model`].
pub fn open(path: impl AsRef<Path>) -> Result<Model, EngineError> {
    let devices = DeviceOptions::default();
    let mut device = devices.open()?;
    let options = ModelOptions::default();
    loop {
        let memory_bytes = device.memory_bytes(None);
        let engine = Engine::new(EngineOptions { memory_bytes, ..EngineOptions::default() })?;
        let source = ModelSource::at(path.as_ref())?;
        let cancel = CancelToken::new();
        match device.open_model(&engine, source, &options, &mut |_| {}, &cancel) {
            Err(error) => device = devices.instead(&device, error)?,
            opened => return opened,
        }
    }
}

/// The example of the README, run on the bundled model.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Opening of models.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use nestling::{Builder, CancelToken, KvDtype, ModelOptions};

use crate::engine::Engine;
use crate::error::{ListenerError, NestlingError};
use crate::options::{count, level};

/// Location of the experts' weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, uniffi::Enum)]
pub enum Residence {
    /// In memory if they fit the budget, otherwise streamed.
    #[default]
    Auto,
    /// In memory.
    Owned,
    /// In memory as far as the budget allows; others are read on demand.
    Streamed,
    /// As `Auto`, but the model opens before they are read.
    Lazy,
}

/// Element type of the KV cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, uniffi::Enum)]
pub enum KvType {
    /// 16-bit floats.
    #[default]
    F16,
    /// 32-bit floats.
    F32,
    /// 8-bit integers with a scale.
    Int8,
}

/// Options of an opening. Unset fields take the library's defaults.
#[derive(Clone, Debug, Default, uniffi::Record)]
pub struct OpenOptions {
    /// Memory budget in bytes. Without it, the budget is the system's free memory less a margin. The largest
    /// number means no limit.
    #[uniffi(default)]
    pub memory_budget: Option<u64>,
    /// Number of threads, at most 1024. Without it or with 0, there is one per core.
    #[uniffi(default)]
    pub threads: Option<u32>,
    /// Maximum number of tokens of a session, at most the trained one.
    #[uniffi(default)]
    pub context_length: Option<u32>,
    /// Number of tokens that the KV pages of all sessions hold.
    #[uniffi(default)]
    pub kv_tokens: Option<u32>,
    /// Element type of the KV cache; 16-bit floats without it.
    #[uniffi(default)]
    pub kv_type: Option<KvType>,
    /// Bits per weight to load: 2, 3, 4, 6 or 8.
    #[uniffi(default)]
    pub level: Option<u8>,
    /// Location of the experts' weights.
    #[uniffi(default)]
    pub residence: Option<Residence>,
    /// Budget of the weights in bytes.
    #[uniffi(default)]
    pub weight_budget: Option<u64>,
    /// Compute device, such as `cpu`. Without it, the best one of the build.
    #[uniffi(default)]
    pub device: Option<String>,
    /// Memory budget of the device in bytes.
    #[uniffi(default)]
    pub device_budget: Option<u64>,
}

/// Listener for the progress of an opening.
#[uniffi::export(callback_interface)]
pub trait OpenListener: Send + Sync {
    /// Receives the number of finished parts and of all parts, on a thread of the library.
    ///
    /// # Errors
    /// An error ends the opening.
    fn on_progress(&self, parts_done: u64, parts_total: u64) -> Result<(), ListenerError>;
}

impl OpenOptions {
    fn builder(self, path: &str, engine: Option<&Engine>) -> Result<Builder, NestlingError> {
        if engine.is_some() && (self.threads.is_some() || self.memory_budget.is_some()) {
            let text = "memory_budget and threads are options of the engine";
            return Err(NestlingError::Caller(text.into()));
        }
        let model = ModelOptions {
            level: level(self.level)?,
            weight_budget: self.weight_budget,
            context_length: self.context_length.map(count),
            kv_tokens: self.kv_tokens.map(count),
            kv_dtype: match self.kv_type {
                None | Some(KvType::F16) => KvDtype::F16,
                Some(KvType::F32) => KvDtype::F32,
                Some(KvType::Int8) => KvDtype::Int8,
            },
            residence: match self.residence {
                None | Some(Residence::Auto) => nestling::Residence::Auto,
                Some(Residence::Owned) => nestling::Residence::Owned,
                Some(Residence::Streamed) => nestling::Residence::Streamed,
                Some(Residence::Lazy) => nestling::Residence::Lazy,
            },
            ..ModelOptions::default()
        };
        let (threads, memory_budget) = (self.threads.map(count), self.memory_budget);
        let mut builder = Builder::new(path)
            .engine(|options| (options.threads, options.memory_budget) = (threads, memory_budget))
            .model(|options| *options = model);
        if let Some(device) = self.device {
            let device = device.parse();
            builder = builder.device(device.map_err(|error: nestling::DeviceError| {
                NestlingError::Caller(error.to_string())
            })?);
        }
        if let Some(bytes) = self.device_budget {
            builder = builder.device_budget(bytes);
        }
        Ok(match engine {
            Some(engine) => builder.in_engine(&engine.engine),
            None => builder,
        })
    }
}

/// First error of a listener.
type FirstError = Arc<Mutex<Option<ListenerError>>>;

struct ProgressReporter {
    listener: Box<dyn OpenListener>,
    cancel: CancelToken,
    error: FirstError,
}

impl ProgressReporter {
    fn report(&self, at: nestling::OpenProgress) {
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if error.is_some() {
            return;
        }
        *error = self.listener.on_progress(at.parts_done as u64, at.parts_total as u64).err();
        if error.is_some() {
            self.cancel.cancel();
        }
    }
}

impl fmt::Debug for ProgressReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressReporter").finish_non_exhaustive()
    }
}

/// Opens a model on a thread of its own. Dropping the future stops the opening between two layers.
pub(crate) async fn open(
    path: String,
    options: OpenOptions,
    engine: Option<Arc<Engine>>,
    listener: Option<Box<dyn OpenListener>>,
) -> Result<nestling::Model, NestlingError> {
    let mut builder = options.builder(&path, engine.as_deref())?;
    let error = FirstError::default();
    if let Some(listener) = listener {
        let cancel = CancelToken::new();
        let reporter =
            ProgressReporter { listener, cancel: cancel.clone(), error: Arc::clone(&error) };
        builder = builder.cancel(&cancel).progress(move |at| reporter.report(at));
    }
    let opened = builder.open_async().await;
    match error.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(error) => Err(error.into()),
        None => Ok(opened?),
    }
}

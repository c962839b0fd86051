//! Step-by-step opening of a model.

use std::fmt;
use std::path::{Path, PathBuf};

use nestling_core::background::Background;
use nestling_core::{CancelToken, EngineError};
use nestling_formats::Level;
use nestling_runtime::{Engine, EngineOptions, Model, ModelOptions, OpenProgress};

use crate::device::Device;
use crate::{OpenOptions, open_in, open_with};

/// Options for opening a model. Unset options have the same defaults as [`crate::open`].
///
/// The model gets a new engine unless [`Builder::in_engine`] sets one. Four budgets in bytes limit memory:
/// - The *memory* budget limits everything that the engine's models use.
/// - The *device* budget limits a GPU's memory.
/// - Within them, the *weight* budget chooses the levels of single matrices.
/// - The *expert* budget ([`Model::set_expert_budget`]) is the part of the rest that streamed experts may
///   use.
///
/// ```
/// use nestling::{Builder, Device};
///
/// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
/// let model = Builder::new(store)
///     .device(Device::Cpu)
///     .memory_budget(512 << 20)
///     .context_length(512)
///     .progress(|progress| println!("{progress:?}"))
///     .open()?;
/// assert_eq!(model.engine().budget().total_bytes(), Some(512 << 20));
/// # Ok::<(), nestling::EngineError>(())
/// ```
#[must_use = "nothing is opened before `open`"]
pub struct Builder {
    path: PathBuf,
    options: OpenOptions,
    engine: Option<Engine>,
    progress: Box<dyn FnMut(OpenProgress) + Send>,
    cancel: CancelToken,
}

impl Builder {
    /// Creates a builder for a model path, as accepted by [`crate::open`].
    ///
    /// ```no_run
    /// let model = nestling::Builder::new("qwen3.nest").context_length(4096).open()?;
    /// println!("{} on {}", model.context_length(), model.device_name());
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn new(path: impl AsRef<Path>) -> Self {
        Self {
            path: path.as_ref().to_owned(),
            options: OpenOptions::default(),
            engine: None,
            progress: Box::new(|_| {}),
            cancel: CancelToken::new(),
        }
    }

    /// Sets the compute device. The default is the best one available.
    ///
    /// ```no_run
    /// use nestling::{Builder, Device};
    ///
    /// let device: Device = "cpu".parse()?;
    /// let model = Builder::new("qwen3.nest").device(device).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn device(mut self, device: Device) -> Self {
        self.options.device.device = device;
        self
    }

    /// Sets the budget in bytes for weights, KV cache and scratch memory together
    /// ([`EngineOptions::memory_budget`]).
    ///
    /// The default is the memory that the system reports as free, less a margin. `u64::MAX` means no limit.
    ///
    /// ```no_run
    /// let model = nestling::Builder::new("qwen3.nest").memory_budget(12 << 30).open()?;
    /// if let Some(plan) = model.memory_plan() {
    ///     println!("{:?}: {} bytes", plan.residence, plan.total_bytes());
    /// }
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn memory_budget(mut self, bytes: u64) -> Self {
        self.options.engine.memory_budget = Some(bytes);
        self
    }

    /// Sets the budget in bytes for a GPU's memory ([`crate::DeviceOptions::device_budget`]).
    pub fn device_budget(mut self, bytes: u64) -> Self {
        self.options.device.device_budget = Some(bytes);
        self
    }

    /// Sets the budget in bytes for weights, which gives each matrix its own level
    /// ([`ModelOptions::weight_budget`]).
    pub fn weight_budget(mut self, bytes: u64) -> Self {
        self.options.model.weight_budget = Some(bytes);
        self
    }

    /// Sets the level of all weights. The default is the highest level of the model.
    ///
    /// ```no_run
    /// use nestling::{Builder, Level};
    ///
    /// let model = Builder::new("qwen3.nest").level(Level::L4).open()?;
    /// assert_eq!(model.limits().level_max, Some(Level::L4));
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn level(mut self, level: Level) -> Self {
        self.options.model.level = Some(level);
        self
    }

    /// Sets the maximum number of tokens per session, at most the trained context length. The default and 0 are
    /// the trained context length, at most 8192. [`Model::context_length`] returns the value in effect.
    pub fn context_length(mut self, tokens: usize) -> Self {
        self.options.model.context_length = Some(tokens);
        self
    }

    /// Sets the number of compute threads, at most 1024. The default and 0 are one per core.
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.engine.threads = Some(threads);
        self
    }

    /// Opens the model in an existing engine, whose models share its threads and memory budget.
    ///
    /// The builder's options for an engine's memory and threads are then ignored.
    ///
    /// ```no_run
    /// use nestling::{Builder, Engine, EngineOptions};
    ///
    /// let engine = Engine::new(EngineOptions::default())?;
    /// let small = Builder::new("small.nest").in_engine(&engine).open()?;
    /// let large = Builder::new("large.nest").in_engine(&engine).open()?;
    /// println!("{} bytes", engine.budget().used_bytes());
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn in_engine(mut self, engine: &Engine) -> Self {
        self.engine = Some(engine.clone());
        self
    }

    /// Changes any other option of the engine.
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// let gap = Duration::from_millis(50);
    /// let builder = nestling::Builder::new("qwen3.nest").engine(|options| options.gap_target = gap);
    /// let model = builder.open()?;
    /// assert_eq!(model.engine().options().gap_target, gap);
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn engine(mut self, change: impl FnOnce(&mut EngineOptions)) -> Self {
        change(&mut self.options.engine);
        self
    }

    /// Changes any other option of the model.
    ///
    /// ```no_run
    /// use nestling::{Builder, Residence};
    ///
    /// let builder = Builder::new("qwen3.nest").model(|options| options.residence = Residence::Lazy);
    /// let model = builder.open()?;
    /// # Ok::<(), nestling::EngineError>(())
    /// ```
    pub fn model(mut self, change: impl FnOnce(&mut ModelOptions)) -> Self {
        change(&mut self.options.model);
        self
    }

    /// Sets a callback that is called after each layer, on the thread that opens the model.
    pub fn progress(mut self, progress: impl FnMut(OpenProgress) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Cancels the opening between two layers once `cancel` is triggered. Later cancellation does not affect
    /// the model.
    ///
    /// ```
    /// use nestling::{Builder, CancelToken, EngineError};
    ///
    /// # let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
    /// let cancel = CancelToken::new();
    /// cancel.cancel();
    /// let opened = Builder::new(store).cancel(&cancel).open();
    /// assert!(matches!(opened, Err(EngineError::Cancelled)));
    /// ```
    pub fn cancel(mut self, cancel: &CancelToken) -> Self {
        self.cancel = cancel.child();
        self
    }

    /// Opens the model.
    ///
    /// # Errors
    /// Fails as [`crate::open_with`] does.
    pub fn open(self) -> Result<Model, EngineError> {
        let Self { path, options, engine, mut progress, cancel } = self;
        match engine {
            Some(engine) => open_in(&engine, path, &options, &mut progress, &cancel),
            None => open_with(path, &options, &mut progress, &cancel),
        }
    }

    /// Works as [`Builder::open`] without blocking, on a separate thread and without requiring an async
    /// runtime.
    ///
    /// Dropping the future stops the opening between two layers. On platforms without threads, its first poll
    /// does the work.
    ///
    /// ```no_run
    /// use nestling::{Builder, EngineError, GenerateOptions};
    ///
    /// async fn story(path: &str) -> Result<String, EngineError> {
    ///     let model = Builder::new(path).open_async().await?;
    ///     let options = GenerateOptions { max_tokens: Some(100), ..GenerateOptions::default() };
    ///     let generation = model.session().generate_async("Once upon a time", &options).await?;
    ///     Ok(generation.await?.0)
    /// }
    /// ```
    ///
    /// # Errors
    /// Fails as [`crate::open_with`] does, or with [`EngineError::Thread`].
    pub async fn open_async(mut self) -> Result<Model, EngineError> {
        let cancel = self.cancel.child();
        self.cancel = cancel.clone();
        let _dropped = CancelOnDrop(cancel);
        Background::start("the opening of a model", move || self.open())?.await?
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = f.debug_struct("Builder");
        all.field("path", &self.path).field("options", &self.options).finish_non_exhaustive()
    }
}

/// Cancels the work of a dropped future.
struct CancelOnDrop(CancelToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestling_core::driver::block_on;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Waker};

    fn builder() -> Builder {
        let store = concat!(env!("CARGO_MANIFEST_DIR"), "/models/nestling-storyteller.nest");
        Builder::new(store).device(Device::Cpu).threads(1)
    }

    #[test]
    fn what_is_said_is_what_is_opened() {
        let heard = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&heard);
        let built = builder()
            .memory_budget(1 << 30)
            .context_length(512)
            .level(Level::L2)
            .model(|options| options.kv_tokens = Some(1024))
            .progress(move |_| {
                counted.fetch_add(1, Ordering::Relaxed);
            });
        let model = block_on(built.open_async()).unwrap();
        assert_eq!(model.engine().budget().total_bytes(), Some(1 << 30));
        assert_eq!(model.engine().options().threads, Some(1));
        assert_eq!((model.context_length(), model.limits().level_max), (512, Some(Level::L2)));
        assert_eq!(model.free_pages(), 1024 / 64);
        assert!(heard.load(Ordering::Relaxed) > 0);
    }

    #[test]
    fn an_option_that_is_too_large_is_refused_by_name() {
        let error = builder().context_length(1_000_000).open().unwrap_err();
        assert_eq!(error.class(), nestling_core::ErrorClass::Caller);
        assert_eq!(error.to_string(), "context_length: 1000000 exceeds the limit of 1024");
        let error = builder().threads(usize::MAX).open().unwrap_err();
        assert_eq!(error.class(), nestling_core::ErrorClass::Caller);
        assert!(error.to_string().contains("threads: 18446744073709551615 exceeds"), "{error}");
        assert_eq!(builder().context_length(0).open().unwrap().context_length(), 1024);
    }

    #[test]
    fn an_opening_that_is_cancelled_or_dropped_stops() {
        let cancel = CancelToken::new();
        cancel.cancel();
        assert!(matches!(builder().cancel(&cancel).open(), Err(EngineError::Cancelled)));
        let cancel = CancelToken::new();
        let waits = cancel.clone();
        // The first layer blocks until the future is dropped.
        let (gone, told) = std::sync::mpsc::channel::<()>();
        let (end, ended) = std::sync::mpsc::channel();
        let progress = move |_| {
            let _ = told.recv();
            let _ = end.send(());
        };
        let mut opening = Box::pin(builder().cancel(&waits).progress(progress).open_async());
        let polled = opening.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
        drop(opening);
        drop(gone);
        // The channel closes before the second layer, or soon after it.
        let heard = ended.iter().count();
        assert!(heard <= 2, "{heard} layers after the drop");
        assert!(!cancel.is_cancelled(), "the caller's own token is left alone");
    }
}

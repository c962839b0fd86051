//! Further workers, each of which holds a share of a model and computes with this one.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use nestling::engine::group::Group;
use nestling::formats::store::{Storage, Store};
use nestling::ranks::open_on_workers;
use nestling::{CancelToken, Driver, Engine, EngineError, EngineOptions, ModelSource};
use web_time::Duration;

use crate::blocks::BlockFile;
use crate::error::TabError;
use crate::options::TabOptions;

/// Duration after which a worker that reports no operation is lost.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Further workers of a tab. They wait until a model is opened.
pub trait Workers: Send {
    /// Returns the number of workers, with the calling one.
    fn count(&self) -> usize;

    /// Makes each further worker call [`follow`] with the first `bytes` bytes of the store and a new group. Returns the
    /// group of the calling worker, which is rank 0.
    ///
    /// # Errors
    /// Fails if the workers cannot be called.
    fn start(&mut self, bytes: u64) -> Result<Arc<dyn Group>, TabError>;
}

/// First bytes of a file, read by a worker that does not change it.
struct SharedFile {
    name: String,
    length: u64,
    file: Mutex<Box<dyn BlockFile>>,
}

impl Storage for SharedFile {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.read_at(offset, out).map_err(io::Error::other)
    }
}

/// Returns the options of an engine that computes in the calling worker alone.
pub fn engine_options(memory_budget: Option<u64>) -> EngineOptions {
    let (threads, driver) = (Some(1), Driver::Caller);
    EngineOptions { threads, driver, memory_budget, ..EngineOptions::default() }
}

/// Holds this worker's share of a model, until rank 0 closes it. The store is the first `length` bytes of `file`, which
/// rank 0 has verified and named `name`.
///
/// # Errors
/// Fails if the share cannot be opened or a rank was lost. Rank 0 then has an error, too.
pub fn follow(
    file: Box<dyn BlockFile>,
    name: String,
    length: u64,
    options: &TabOptions,
    group: Arc<dyn Group>,
) -> Result<(), TabError> {
    let file = SharedFile { name, length, file: Mutex::new(file) };
    let open = || -> Result<(Engine, Arc<Store>), TabError> {
        let store = Store::from_storage(Arc::new(file), false)?;
        Ok((Engine::new(engine_options(None))?, Arc::new(store)))
    };
    // A failure ends the group when it is dropped.
    let (engine, store) = open()?;
    let options = options.model_options();
    let (source, cancel) = (ModelSource::Store(store), CancelToken::new());
    let model = open_on_workers(&engine, source, &options, group, &mut |_| {}, &cancel)?;
    match model {
        None => Ok(()),
        Some(_) => Err(EngineError::EngineClosed.into()),
    }
}

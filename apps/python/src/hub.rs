//! Models of the Hugging Face Hub.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;

use nestling::formats::Level;
use nestling_hub::{
    HubError, HubOptions, Limits, Notice, Observer, Reference, StoreCache, Task, TaskProgress,
};
use pyo3::prelude::*;

use crate::call::call;
use crate::error::Failure;
use crate::progress::{ByteCounters, Progress};
use crate::wait::{SLICE, look};

/// Hub endpoint and local folders, set by the Python package from the environment.
#[pyclass(frozen, module = "nestling._core")]
#[derive(Clone, Debug)]
pub(crate) struct HubPaths {
    endpoint: String,
    downloads: PathBuf,
    cache: PathBuf,
    token: Option<String>,
    offline: bool,
}

#[pymethods]
impl HubPaths {
    #[new]
    fn new(
        endpoint: String,
        downloads: PathBuf,
        cache: PathBuf,
        token: Option<String>,
        offline: bool,
    ) -> Self {
        Self { endpoint, downloads, cache, token, offline }
    }
}

/// Calibration names of the CLI: for converted checkpoints and for GGUF files.
const CALIBRATIONS: [&str; 2] = ["prose1", "none"];

impl HubPaths {
    fn options(&self) -> HubOptions {
        HubOptions {
            endpoint: self.endpoint.clone(),
            downloads: self.downloads.clone(),
            stores: StoreCache {
                folder: self.cache.join("stores"),
                locks: self.cache.join("locks"),
                calibration: CALIBRATIONS[0].into(),
                gguf_calibration: CALIBRATIONS[1].into(),
            },
            headers: self.cache.join("headers"),
            token: self.token.clone(),
            limits: Limits::default(),
            offline: self.offline,
            // Default: unlimited if the free memory is unknown.
            room: free().unwrap_or(u64::MAX),
            in_place: true,
            by_ranges: false,
        }
    }
}

fn free() -> Option<u64> {
    use nestling::system::{MemoryState, SystemFiles};

    MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget())
}

/// Downloads a model from the Hub and returns its path. `progress` receives byte counts. An interrupt returns
/// at once, and the next call resumes the download.
#[pyfunction]
#[pyo3(signature = (name, revision, places, level=None, progress=None))]
pub(crate) fn fetch(
    py: Python<'_>,
    name: &str,
    revision: &str,
    places: &HubPaths,
    level: Option<u8>,
    progress: Option<Py<PyAny>>,
) -> PyResult<PathBuf> {
    call(py, || {
        let reference = Reference::parse(name, revision)?;
        let level = level.and_then(Level::from_bits);
        let options = places.options();
        let mut progress = Progress::new(progress);
        let hears = DownloadObserver(progress.counters());
        let (tell, answer) = mpsc::channel();
        let work = move || {
            let obtained = nestling_hub::obtain(&reference, level, &options, &hears);
            // The receiver is gone after an interrupt.
            let _ = tell.send(obtained);
        };
        let started = thread::Builder::new().name("nestling-fetch".into()).spawn(work);
        started.map_err(|error| Failure::no_room(format!("a thread: {error}")))?;
        let obtained = loop {
            match answer.recv_timeout(SLICE) {
                Ok(obtained) => break obtained?,
                Err(RecvTimeoutError::Timeout) => look(&mut |py| progress.tell(py))?,
                Err(RecvTimeoutError::Disconnected) => return Err(Failure::ends()),
            }
        };
        look(&mut |py| progress.tell(py))?;
        Ok(if obtained.is_converted() { obtained.store } else { obtained.checkpoint })
    })
}

/// Observer that reports downloads.
struct DownloadObserver(Arc<ByteCounters>);

impl Observer for DownloadObserver {
    fn notice(&self, _: &Notice<'_>) {}

    fn begin(&self, task: Task, total: u64, done: u64) -> Box<dyn TaskProgress> {
        let told = (task == Task::Download).then(|| Arc::clone(&self.0));
        if let Some(told) = &told {
            told.set(done, total);
        }
        Box::new(DownloadProgress(told))
    }
}

/// Progress of one task; `None` unless it is a download.
struct DownloadProgress(Option<Arc<ByteCounters>>);

impl TaskProgress for DownloadProgress {
    fn set(&mut self, done: u64) {
        if let Some(told) = &self.0 {
            told.set_done(done);
        }
    }

    fn set_of(&mut self, done: u64, total: u64) {
        if let Some(told) = &self.0 {
            told.set(done, total);
        }
    }
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        let text = error.to_string();
        match error {
            HubError::Usage(_) => Self::caller(text),
            _ => Self::source(text),
        }
    }
}

//! Log records of the engine, for Python's `logging`.
//!
//! The engine's threads never wait for the interpreter lock or for a handler. They add records to a bounded
//! queue, from which a thread of the Python package takes them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};

use pyo3::prelude::*;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{DefaultVisitor, Writer};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::Registry;

use crate::error::Failure;

/// Maximum number of records that wait for the Python thread. Further ones are counted and dropped.
const RECORDS_MAX: usize = 1024;

/// Maximum number of bytes of a record's text.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// Queue of this process. A forked child replaces it, since the parent's may have been locked at fork().
static QUEUE: RwLock<Option<Arc<SharedQueue>>> = RwLock::new(None);

/// Minimum level of a record, in the numbers of Python's `logging`.
static LEVEL: AtomicU8 = AtomicU8::new(u8::MAX);

/// Level, seconds since 1970, name of the thread, module and text.
type LogRecord = (u8, f64, Option<String>, &'static str, String);

#[derive(Debug, Default)]
struct QueueState {
    records: VecDeque<LogRecord>,
    dropped: u64,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, record: LogRecord) {
        let mut state = self.lock();
        if state.is_closed {
            return;
        }
        if state.records.len() < RECORDS_MAX {
            state.records.push_back(record);
            self.changed.notify_one();
        } else {
            state.dropped += 1;
        }
    }

    /// Waits for records and removes them, with the number of dropped ones. Returns `None` once the queue is
    /// closed and empty.
    fn take(&self) -> Option<(Vec<LogRecord>, u64)> {
        let is_idle = |state: &mut QueueState| state.records.is_empty() && !state.is_closed;
        let waited = self.changed.wait_while(self.lock(), is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        if state.records.is_empty() {
            return None;
        }
        Some((state.records.drain(..).collect(), std::mem::take(&mut state.dropped)))
    }
}

/// Queue of log records. The newest queue receives the records of this process.
#[pyclass(frozen, module = "nestling._core")]
#[derive(Debug)]
pub(crate) struct LogQueue {
    shared: Arc<SharedQueue>,
}

#[pymethods]
impl LogQueue {
    #[new]
    fn new() -> Self {
        let shared = Arc::new(SharedQueue::default());
        // Default: the lock was held at fork(), so the records of this child are dropped.
        if let Ok(mut queue) = QUEUE.try_write() {
            *queue = Some(Arc::clone(&shared));
        }
        Self { shared }
    }

    /// Waits for records and returns them with the number of dropped ones, or `None` once closed and empty.
    fn take(&self, py: Python<'_>) -> Option<(Vec<LogRecord>, u64)> {
        py.detach(|| self.shared.take())
    }

    /// Refuses further records and ends `take`.
    fn close(&self) {
        self.shared.lock().is_closed = true;
        self.shared.changed.notify_all();
    }
}

/// Sets the minimum level of records, in the numbers of `logging`. Levels above 50 switch the log off.
#[pyfunction]
pub(crate) fn set_log_level(py: Python<'_>, level: u8) -> PyResult<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    LEVEL.store(level, Ordering::Relaxed);
    let install = || {
        let subscriber = Registry::default().with(Records);
        tracing::subscriber::set_global_default(subscriber).is_ok()
    };
    if !INSTALLED.get_or_init(install) {
        let failure = Failure::caller("a subscriber of log records is installed already");
        return Err(failure.raise(py));
    }
    // A disabled record costs one comparison afterwards.
    tracing::callsite::rebuild_interest_cache();
    Ok(())
}

fn number(level: Level) -> u8 {
    match level {
        Level::TRACE => 5,
        Level::DEBUG => 10,
        Level::INFO => 20,
        Level::WARN => 30,
        Level::ERROR => 40,
    }
}

/// Layer that adds records of Nestling's crates to the queue.
struct Records;

impl<S: Subscriber> Layer<S> for Records {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        number(*metadata.level()) >= LEVEL.load(Ordering::Relaxed)
            && metadata.target().starts_with("nestling")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        let least = LEVEL.load(Ordering::Relaxed);
        let levels = [Level::TRACE, Level::DEBUG, Level::INFO, Level::WARN, Level::ERROR];
        let enabled = levels.into_iter().find(|level| number(*level) >= least);
        Some(enabled.map_or(LevelFilter::OFF, LevelFilter::from_level))
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        // Default: without a queue, or while it is replaced, records are dropped.
        let Some(queue) = QUEUE.try_read().ok().and_then(|queue| queue.clone()) else { return };
        let mut text = String::new();
        event.record(&mut DefaultVisitor::new(Writer::new(&mut text), true));
        text.truncate(text.floor_char_boundary(TEXT_BYTES_MAX));
        // Default: a clock before 1970.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let thread = std::thread::current().name().map(str::to_owned);
        let metadata = event.metadata();
        let level = number(*metadata.level());
        queue.add((level, now.as_secs_f64(), thread, metadata.target(), text));
    }
}

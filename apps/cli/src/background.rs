//! Converts a GGUF file into a store during a chat, on one low-priority thread.

use crate::args::CalibrationArgs;
use crate::console::Console;
use crate::hub;
use nestling::CancelToken;
use nestling::engine::convert::{
    ConvertError, ConvertOptions, ConvertPhase, SourceBlocks, convert, estimate_store,
};
use nestling::import::Checkpoint;
use nestling_hub::{HubError, StoreCache, is_gguf, room};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Returns the store that an earlier background conversion made from a GGUF file, if there is one.
pub fn made_of(path: &Path) -> Option<PathBuf> {
    let cache = hub::store_cache(&CalibrationArgs::default()).ok()?;
    // Checking for any store first is cheap; identifying the file takes much longer.
    if !is_gguf(path) || !cache.has_exact(path) {
        return None;
    }
    let made = cache.exact_of_gguf(path).ok()?;
    made.is_converted().then_some(made.store)
}

/// Progress of a conversion, shared with its thread.
#[derive(Default)]
struct ConversionProgress {
    phase: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
    /// Final message of the conversion, until it has been shown.
    ended: Mutex<Option<String>>,
}

const WAITING: u8 = 0;
const READING: u8 = 1;
const WRITING: u8 = 2;
const ENDED: u8 = 3;

/// A running conversion. Dropping it stops the conversion; the next one resumes at the same place.
pub struct Background {
    state: Arc<ConversionProgress>,
    cancel: CancelToken,
    thread: Option<JoinHandle<()>>,
    console: Console,
}

impl Background {
    /// Starts to convert a file. Prints a warning and returns `None` if the thread cannot be started.
    pub fn begin(path: &Path, console: &Console) -> Option<Self> {
        let (state, cancel) = (Arc::new(ConversionProgress::default()), CancelToken::new());
        let (path, told, stop) = (path.to_owned(), Arc::clone(&state), cancel.clone());
        let work = move || {
            lower_priority();
            let ended = match make(&path, &told, &stop) {
                Ok(words) => words,
                Err(EarlyEnd::Cancelled) => None,
                Err(EarlyEnd::Failed(reason)) => Some(format!("no store is made: {reason}")),
            };
            *told.ended.lock().unwrap_or_else(PoisonError::into_inner) = ended;
            told.phase.store(ENDED, Ordering::Relaxed);
        };
        match std::thread::Builder::new().name("store".into()).spawn(work) {
            Ok(thread) => {
                let console = console.clone();
                Some(Self { state, cancel, thread: Some(thread), console })
            }
            Err(error) => {
                console.warn(format_args!("no store is made in the background: {error}"));
                None
            }
        }
    }

    /// Returns a short progress text. The final message is returned only once.
    pub fn status(&self) -> Option<String> {
        let (done, total) =
            (self.state.done.load(Ordering::Relaxed), self.state.total.load(Ordering::Relaxed));
        let share = 100 * done / total.max(1);
        match self.state.phase.load(Ordering::Relaxed) {
            WAITING => Some("Store: waits".into()),
            READING => Some(format!("Store: read {share} %")),
            WRITING => Some(format!("Store: {share} %")),
            _ => self.state.ended.lock().unwrap_or_else(PoisonError::into_inner).take(),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.cancel.cancel();
        // The conversion checks the token at least once per million weights.
        let _ = self.thread.take().map(JoinHandle::join);
        let ended = self.state.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            self.console.note(format_args!("{ended}"));
        }
    }
}

/// Reason why a conversion stopped early.
enum EarlyEnd {
    Cancelled,
    Failed(String),
}

impl EarlyEnd {
    fn of(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<HubError> for EarlyEnd {
    fn from(error: HubError) -> Self {
        Self::of(error)
    }
}

/// Converts the file unless the store exists or another process is converting it. Returns the final message.
fn make(
    path: &Path,
    state: &ConversionProgress,
    cancel: &CancelToken,
) -> Result<Option<String>, EarlyEnd> {
    let failed = |failure: crate::failure::Failure| EarlyEnd::Failed(failure.message);
    let cache: StoreCache = hub::store_cache(&CalibrationArgs::default()).map_err(failed)?;
    let made = cache.exact_of_gguf(path)?;
    if made.is_converted() {
        return Ok(Some("Store: made, and used at the next start".into()));
    }
    if let Some(folder) = made.store.parent() {
        std::fs::create_dir_all(folder).map_err(EarlyEnd::of)?;
    }
    let mut work = || -> Result<(), EarlyEnd> {
        let checkpoint = Checkpoint::open(path).map_err(EarlyEnd::of)?;
        let mut options = ConvertOptions::default();
        options.threads = 1;
        options.source_blocks = SourceBlocks::Exact;
        let planned = estimate_store(&checkpoint, &options).map_err(EarlyEnd::of)?;
        room::check(&made.store, planned.length())?;
        let mut progress = |at: nestling::engine::convert::ConvertProgress| {
            let phase = if at.phase == ConvertPhase::Hashing { READING } else { WRITING };
            state.done.store(at.done_bytes, Ordering::Relaxed);
            state.total.store(at.total_bytes, Ordering::Relaxed);
            state.phase.store(phase, Ordering::Relaxed);
        };
        match convert(&checkpoint, &made.store, &options, cancel, &mut progress) {
            Ok(_) => Ok(()),
            Err(ConvertError::Cancelled) => Err(EarlyEnd::Cancelled),
            Err(error) => Err(EarlyEnd::of(error)),
        }
    };
    match cache.convert_if_free(&made, &mut work)? {
        true => Ok(Some("Store: made, and used at the next start".into())),
        false => Ok(Some("another process makes the store".into())),
    }
}

/// Lowers the CPU priority of this thread. Linux derives the disk priority from the same number unless one
/// was set explicitly. On other systems the number applies to the whole process, so nothing is changed.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // If the priority cannot be lowered, the conversion competes with the chat, which is acceptable.
        let _ = rustix::process::nice(19);
    }
}

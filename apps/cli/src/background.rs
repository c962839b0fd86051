//! A store that is made of a GGUF file while one chats: by one thread that everything else goes before.

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

/// The store of a file's own bits that was made in the background, if it is there.
pub fn made_of(path: &Path) -> Option<PathBuf> {
    let cache = hub::store_cache(&CalibrationArgs::default()).ok()?;
    // To tell which file it is takes longer than to see that no store is there.
    if !is_gguf(path) || !cache.has_exact(path) {
        return None;
    }
    let made = cache.exact_of_gguf(path).ok()?;
    made.is_converted().then_some(made.store)
}

/// How far a conversion is, for whoever asks.
#[derive(Default)]
struct State {
    phase: AtomicU8,
    done: AtomicU64,
    total: AtomicU64,
    /// How it ended, where that is to be said.
    ended: Mutex<Option<String>>,
}

const WAITING: u8 = 0;
const READING: u8 = 1;
const WRITING: u8 = 2;
const ENDED: u8 = 3;

/// A conversion under way; it stops when this is dropped, and the next one goes on from there.
pub struct Background {
    state: Arc<State>,
    cancel: CancelToken,
    thread: Option<JoinHandle<()>>,
    console: Console,
}

impl Background {
    /// Begins to make a store of a file, or says why not.
    pub fn begin(path: &Path, console: &Console) -> Option<Self> {
        let (state, cancel) = (Arc::new(State::default()), CancelToken::new());
        let (path, told, stop) = (path.to_owned(), Arc::clone(&state), cancel.clone());
        let work = move || {
            lower_priority();
            let ended = match make(&path, &told, &stop) {
                Ok(words) => words,
                Err(Stopped::Cancelled) => None,
                Err(Stopped::Failed(reason)) => Some(format!("no store is made: {reason}")),
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

    /// Where it is, in a few words; how it ended is said once.
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
        // It looks at the token before every million weights.
        let _ = self.thread.take().map(JoinHandle::join);
        let ended = self.state.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ended) = ended {
            self.console.note(format_args!("{ended}"));
        }
    }
}

/// Why no store was made.
enum Stopped {
    Cancelled,
    Failed(String),
}

impl Stopped {
    fn of(error: impl fmt::Display) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<HubError> for Stopped {
    fn from(error: HubError) -> Self {
        Self::of(error)
    }
}

/// Makes the store, unless it is there or another process makes it; what is to be said of it.
fn make(path: &Path, state: &State, cancel: &CancelToken) -> Result<Option<String>, Stopped> {
    let failed = |failure: crate::failure::Failure| Stopped::Failed(failure.message);
    let cache: StoreCache = hub::store_cache(&CalibrationArgs::default()).map_err(failed)?;
    let made = cache.exact_of_gguf(path)?;
    if made.is_converted() {
        return Ok(Some("Store: made, and used at the next start".into()));
    }
    if let Some(folder) = made.store.parent() {
        std::fs::create_dir_all(folder).map_err(Stopped::of)?;
    }
    let mut work = || -> Result<(), Stopped> {
        let checkpoint = Checkpoint::open(path).map_err(Stopped::of)?;
        let mut options = ConvertOptions::default();
        options.threads = 1;
        options.source_blocks = SourceBlocks::Exact;
        let planned = estimate_store(&checkpoint, &options).map_err(Stopped::of)?;
        room::check(&made.store, planned.length())?;
        let mut progress = |at: nestling::engine::convert::ConvertProgress| {
            let phase = if at.phase == ConvertPhase::Hashing { READING } else { WRITING };
            state.done.store(at.done_bytes, Ordering::Relaxed);
            state.total.store(at.total_bytes, Ordering::Relaxed);
            state.phase.store(phase, Ordering::Relaxed);
        };
        match convert(&checkpoint, &made.store, &options, cancel, &mut progress) {
            Ok(_) => Ok(()),
            Err(ConvertError::Cancelled) => Err(Stopped::Cancelled),
            Err(error) => Err(Stopped::of(error)),
        }
    };
    match cache.convert_if_free(&made, &mut work)? {
        true => Ok(Some("Store: made, and used at the next start".into())),
        false => Ok(Some("another process makes the store".into())),
    }
}

/// Lets everything else go first: processor time, and with it the disk's, which Linux shares by the
/// same number where nothing else was asked for. Elsewhere the number is the whole process's.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    {
        // A thread whose priority stays is slower company, and no error.
        let _ = rustix::process::nice(19);
    }
}

//! Fetches the later sections of a store on the web during a chat.

use crate::bytes::ByteSize;
use crate::failure::Failure;
use crate::hub;
use nestling::formats::Level;
use nestling_hub::{NoObserver, WebStore};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A store whose level rises while its sections arrive. Dropping it stops the fetching; what has arrived is
/// kept.
pub struct RisingStore {
    copy: Arc<WebStore>,
    shared: Arc<RiseState>,
}

#[derive(Default)]
struct RiseState {
    is_stopped: AtomicBool,
    progress: Mutex<RiseProgress>,
}

#[derive(Default)]
struct RiseProgress {
    /// Highest level that is complete.
    level: Option<Level>,
    /// Path of the complete store, once [`RisingStore::settle`] has renamed it.
    store: Option<PathBuf>,
    failure: Option<String>,
}

impl RiseState {
    fn lock(&self) -> MutexGuard<'_, RiseProgress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RisingStore {
    /// Starts to fetch the rest of a copy. Returns `None` for a store that is complete.
    pub fn begin(path: &Path) -> Result<Option<Self>, Failure> {
        if !WebStore::is_copy(path) {
            return Ok(None);
        }
        let copy = WebStore::open(path, &hub::access()?)?;
        let shared = Arc::new(RiseState::default());
        let (fetched, told) = (Arc::clone(&copy), Arc::clone(&shared));
        let spawned = std::thread::Builder::new().name("sections".into()).spawn(move || {
            if let Err(failure) = fetch(&fetched, &told) {
                told.lock().failure = Some(failure.message);
            }
        });
        let failed = |error| Failure::new(format!("the rest of the store is not fetched: {error}"));
        spawned.map_err(failed)?;
        Ok(Some(Self { copy, shared }))
    }

    /// Returns the highest level that is complete, if it is above `level`.
    pub fn level_above(&self, level: Option<Level>) -> Option<Level> {
        self.shared.lock().level.filter(|risen| level.is_none_or(|level| *risen > level))
    }

    /// Returns the path of the store, which gets its final name once all of it is here.
    ///
    /// The renaming is done here and not by the thread that fetches, which would rename a store that is about
    /// to be opened.
    pub fn settle(&self) -> PathBuf {
        let mut progress = self.shared.lock();
        if progress.store.is_none() {
            match self.copy.finish() {
                Ok(store) => progress.store = store,
                Err(error) => progress.failure = Some(error.to_string()),
            }
        }
        // Default: the copy, until it is complete.
        progress.store.clone().unwrap_or_else(|| self.copy.path().to_owned())
    }

    /// Returns a short progress text, or the failure, which is returned only once.
    pub fn status(&self) -> Option<String> {
        let failure = self.shared.lock().failure.take();
        if failure.is_some() {
            return failure;
        }
        let sections = self.copy.section_levels().len();
        match self.copy.missing_bytes(sections) {
            0 => None,
            missing => Some(format!("{} of the store are still to come", ByteSize(missing))),
        }
    }
}

fn fetch(copy: &WebStore, shared: &RiseState) -> Result<(), Failure> {
    let is_stopped = || shared.is_stopped.load(Ordering::Relaxed);
    for (number, level) in copy.section_levels().into_iter().enumerate() {
        copy.bring(number + 1, &NoObserver, &is_stopped)?;
        if is_stopped() {
            return Ok(());
        }
        shared.lock().level = level;
    }
    Ok(())
}

impl Drop for RisingStore {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        // The thread may wait for the network; it is not waited for.
        drop(self.copy.keep());
        self.settle();
    }
}

//! Pages of keys and values, and recurrent states, outside of memory: what was computed for a beginning is read
//! back where computing it again would take longer, also by another process later.
//!
//! Each is a file of its own under a name that says everything that it depends on, with a checksum over all of it.
//! What is damaged, missing or cut is not there, and is computed. Writing is done behind the steps by a thread of the
//! store; what it cannot keep up with is dropped, and what finds no room takes that of what was unused for longest. A
//! disk that fails pauses the writing, nothing else.

mod files;
mod index;
mod record;
mod shared;
mod speed;

use std::path::PathBuf;
use std::sync::Arc;

use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::sync::thread::{self, JoinHandle};
use nestling_core::sync::{Mutex, whole};

use files::FolderFiles;
pub use files::{PageFile, PageFiles};
pub use record::PageName;
pub(crate) use record::StoredKind;
use shared::{Counts, SharedStore};

/// The longest wait for what is being written, in seconds.
const FLUSH_SECONDS_MAX: f64 = 30.0;

/// Where pages are kept on disk, and how many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageStoreOptions {
    /// A folder for nothing else, made if it is not there. What it holds can be turned back into prompts:
    /// anyone who may read it learns them, and anyone who may write it can change answers.
    pub directory: PathBuf,
    /// Bytes that its pages may take; those unused for longest are removed.
    pub bytes_max: u64,
    /// When pages are read.
    pub reads: PageReads,
}

/// When pages that are on disk are read in place of being computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageReads {
    /// Where that takes less time, by what reads and steps took so far; always before both were measured.
    #[default]
    WhenFaster,
    /// Always.
    Always,
}

/// Keeps pages on disk for the models that were opened with it ([`crate::ModelOptions::page_store`]). Clones are the
/// same store.
///
/// Several models, and engines, of a process share one store and its budget. Of several stores over one directory, also
/// of other processes, the first one writes and the others read, until it is closed.
#[derive(Clone)]
pub struct PageStore {
    inner: Arc<StoreHandle>,
}

/// The store, and the thread that writes.
struct StoreHandle {
    shared: Arc<SharedStore>,
    reads: PageReads,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What a page store holds and did. Recurrent states count as pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStoreStatus {
    /// Pages on disk.
    pub pages: usize,
    /// Bytes that they take.
    pub bytes: u64,
    /// Pages that wait to be written.
    pub queued: usize,
    /// Pages that were read in place of being computed.
    pub hits: u64,
    /// Pages that were written.
    pub writes: u64,
    /// Pages that were not written: too many waited, their memory was wanted for others, or nothing is written.
    pub dropped: u64,
    /// Pages that were not what had been written, and were removed.
    pub damaged: u64,
    /// Reads and writes that the system refused.
    pub failed: u64,
    /// Whether pages are written: not while another store has the directory, nor for a while after a write failed.
    pub is_writing: bool,
}

impl PageStoreStatus {
    pub(crate) fn add(&mut self, other: &Self) {
        self.pages += other.pages;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.queued += other.queued;
        self.hits += other.hits;
        self.writes += other.writes;
        self.dropped += other.dropped;
        self.damaged += other.damaged;
        self.failed += other.failed;
        self.is_writing |= other.is_writing;
    }
}

impl PageStore {
    /// Opens a directory.
    ///
    /// # Errors
    /// [`EngineError::PageStore`] where it cannot be made or read; [`EngineError::Thread`] where the platform gives no
    /// thread.
    pub fn open(options: PageStoreOptions) -> Result<Self, EngineError> {
        let PageStoreOptions { directory, bytes_max, reads } = options;
        let failed = |source| EngineError::PageStore { directory: directory.clone(), source };
        let files = FolderFiles::open(directory.clone()).map_err(failed)?;
        let shared = SharedStore::open(Box::new(files), bytes_max).map_err(failed)?;
        Self::start(shared, reads)
    }

    /// A store over a place of another kind.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn over(
        files: Box<dyn PageFiles>,
        bytes_max: u64,
        reads: PageReads,
    ) -> Result<Self, EngineError> {
        let failed = |source| EngineError::PageStore { directory: PathBuf::new(), source };
        Self::start(SharedStore::open(files, bytes_max).map_err(failed)?, reads)
    }

    fn start(shared: SharedStore, reads: PageReads) -> Result<Self, EngineError> {
        let shared = Arc::new(shared);
        let own = Arc::clone(&shared);
        let builder = thread::Builder::new().name("nestling-pages".into());
        let handle = builder.spawn(move || own.write_behind()).map_err(EngineError::Thread)?;
        let inner = StoreHandle { shared, reads, thread: Mutex::new(Some(handle)) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What it holds and did. It waits for nothing.
    pub fn status(&self) -> PageStoreStatus {
        let state = self.inner.shared.lock();
        let Counts { hits, writes, dropped, damaged, failed } = state.counts;
        PageStoreStatus {
            pages: state.index.pages(),
            bytes: state.index.bytes(),
            queued: state.queue.waiting(),
            hits,
            writes,
            dropped,
            damaged,
            failed,
            is_writing: state.is_owner && !state.pause.is_on(),
        }
    }

    /// Waits until everything that waits to be written is, at most half a minute; false if it is not then. An engine
    /// does it when it is dropped.
    pub fn flush(&self) -> bool {
        self.inner.shared.flush(FLUSH_SECONDS_MAX)
    }

    /// Whether a page is there, as far as is known without reading it.
    pub(crate) fn holds(&self, name: &PageName) -> bool {
        let shared = &self.inner.shared;
        let state = shared.lock();
        let (is_known, is_owner) = (state.index.contains(name), state.is_owner);
        drop(state);
        // Somebody else may have written it meanwhile.
        is_known || (!is_owner && shared.files.contains(name))
    }

    /// Whether to read so many bytes that could be computed in so many seconds.
    pub(crate) fn pays(&self, bytes: u64, compute_seconds: Option<f64>) -> bool {
        let shared = &self.inner.shared;
        match (self.inner.reads, compute_seconds) {
            (PageReads::Always, _) | (_, None) => true,
            (PageReads::WhenFaster, Some(seconds)) => shared.lock().speed.pays(bytes, seconds),
        }
    }

    /// The contents of a page, which has so many bytes; none where it is not there in whole, which costs no more than
    /// computing it.
    pub(crate) fn read(
        &self,
        kind: StoredKind,
        name: &PageName,
        bytes: usize,
    ) -> Option<StoredPage> {
        let shared = &self.inner.shared;
        let record_bytes = record::record_bytes(bytes)?;
        let started = Moment::now();
        let record = match shared.files.read(name, record_bytes) {
            Ok(record) => record,
            Err(error) => {
                shared.note_unread(name, &error);
                return None;
            }
        };
        if record::contents(&record, kind, name, bytes).is_none() {
            shared.note_damaged(name);
            return None;
        }
        let seconds = Moment::now().seconds_since(started);
        let mut state = shared.lock();
        state.speed.measured(record_bytes as u64, seconds);
        if !state.is_owner {
            // The writer has written it since this store was opened.
            state.index.insert(*name, record_bytes as u64);
        }
        drop(state);
        Some(StoredPage { record })
    }

    /// Pages that were read are in use: the first ones matter most, since others are worth nothing without them.
    pub(crate) fn used(&self, names: &[PageName]) {
        let shared = &self.inner.shared;
        let mut state = shared.lock();
        state.counts.hits += names.len() as u64;
        for name in names.iter().rev() {
            state.index.touch(name);
        }
        drop(state);
        names.iter().rev().for_each(|name| shared.files.touch(name));
    }

    /// Writes a page behind the caller's back. `contents` gives its bytes when its turn comes, on the thread that
    /// writes; none where they are gone by then.
    pub(crate) fn offer(
        &self,
        kind: StoredKind,
        name: PageName,
        contents: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) {
        self.inner.shared.offer(kind, name, Box::new(contents));
    }

    /// A page is not to be read any more.
    pub(crate) fn remove(&self, name: PageName) {
        self.inner.shared.remove(name);
    }

    /// Whether two handles are of the same store.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl std::fmt::Debug for PageStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PageStore({:?})", self.inner.shared.files)
    }
}

impl PartialEq for PageStore {
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}

impl Drop for StoreHandle {
    /// Nothing waits to be written any more: what waits has the model, which has the store.
    fn drop(&mut self) {
        self.shared.close();
        let handle = whole(self.thread.lock()).take();
        // The last page may have held the last model.
        let own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        if let Some(handle) = handle.filter(|handle| !own(handle)) {
            // What its panic was about has been told where it was caught.
            drop(handle.join());
        }
    }
}

/// A page that was read, and is what was written.
#[derive(Debug)]
pub(crate) struct StoredPage {
    record: Vec<u8>,
}

impl StoredPage {
    /// Its bytes.
    pub fn contents(&self) -> &[u8] {
        record::unframed(&self.record)
    }
}

//! Page store: KV pages and recurrent states on disk, keyed by shared prefixes.
//!
//! Stored prefixes are read back if that is faster than recomputing them, also by a later process. Each page
//! is a file with a checksum; its name hashes everything it depends on. Damaged or missing pages count as
//! misses and are recomputed. A thread of the store writes in the background. It drops pages that it cannot
//! keep up with, and evicts the least recently used ones beyond the budget. A disk failure pauses only writes.

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

/// Maximum seconds that a flush waits for pending writes.
const FLUSH_SECONDS_MAX: f64 = 30.0;

/// Directory and size of a page store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageStoreOptions {
    /// Directory used only for the store, created if it is missing. Pages can be turned back into prompts. A
    /// user who can read the directory learns them, and a user who can write to it can change outputs.
    pub directory: PathBuf,
    /// Maximum size of the pages in bytes. The least recently used pages are evicted.
    pub bytes_max: u64,
    /// Policy for reading pages.
    pub reads: PageReads,
}

/// Policy for reading pages from disk instead of recomputing them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageReads {
    /// Read if it is faster according to measured reads and steps. Always read before both were measured.
    #[default]
    WhenFaster,
    /// Always read.
    Always,
}

/// A page store for the models opened with it ([`crate::ModelOptions::page_store`]). Clones refer to the same
/// store.
///
/// The models and engines of a process can share one store and its budget. If several stores use one
/// directory, also in other processes, the first one writes until it is closed, and the others only read.
#[derive(Clone)]
pub struct PageStore {
    inner: Arc<StoreHandle>,
}

struct StoreHandle {
    shared: Arc<SharedStore>,
    reads: PageReads,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Contents and activity of a page store. Recurrent states count as pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PageStoreStatus {
    /// Pages on disk.
    pub pages: usize,
    /// Size of the pages in bytes.
    pub bytes: u64,
    /// Pages waiting to be written.
    pub queued: usize,
    /// Pages read instead of recomputed.
    pub hits: u64,
    /// Pages written.
    pub writes: u64,
    /// Pages not written, because the queue was full, their memory was reused, or writing is disabled.
    pub dropped: u64,
    /// Damaged pages, which were removed.
    pub damaged: u64,
    /// Failed reads and writes.
    pub failed: u64,
    /// False while another store owns the directory, and for a while after a failed write.
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
    /// Opens a store in a directory.
    ///
    /// ```
    /// use nestling_runtime::{ModelOptions, PageReads, PageStore, PageStoreOptions};
    ///
    /// # let folder = tempfile::tempdir()?;
    /// let (directory, reads) = (folder.path().join("pages"), PageReads::WhenFaster);
    /// let store = PageStore::open(PageStoreOptions { directory, bytes_max: 1 << 30, reads })?;
    /// assert_eq!(store.status().pages, 0);
    /// let options = ModelOptions { page_store: Some(store), ..ModelOptions::default() };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::PageStore`] if the directory cannot be created or read, or with
    /// [`EngineError::Thread`] if the writer thread cannot be spawned.
    pub fn open(options: PageStoreOptions) -> Result<Self, EngineError> {
        let PageStoreOptions { directory, bytes_max, reads } = options;
        let failed = |source| EngineError::PageStore { directory: directory.clone(), source };
        let files = FolderFiles::open(directory.clone()).map_err(failed)?;
        let shared = SharedStore::open(Box::new(files), bytes_max).map_err(failed)?;
        Self::start(shared, reads)
    }

    /// Opens a store over another kind of storage.
    ///
    /// # Errors
    /// Fails as [`Self::open`] does.
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

    /// Returns the status. Never waits for reads or writes.
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

    /// Waits up to 30 seconds until all pending pages are written. Returns false on timeout.
    ///
    /// An engine flushes its stores when it is dropped.
    pub fn flush(&self) -> bool {
        self.inner.shared.flush(FLUSH_SECONDS_MAX)
    }

    /// Returns true if a page exists, as far as is known without reading it.
    pub(crate) fn holds(&self, name: &PageName) -> bool {
        let shared = &self.inner.shared;
        let state = shared.lock();
        let (is_known, is_owner) = (state.index.contains(name), state.is_owner);
        drop(state);
        // The writer of another store may have added it since.
        is_known || (!is_owner && shared.files.contains(name))
    }

    /// Returns true if reading `bytes` bytes is preferable to computing for `compute_seconds`.
    pub(crate) fn pays(&self, bytes: u64, compute_seconds: Option<f64>) -> bool {
        let shared = &self.inner.shared;
        match (self.inner.reads, compute_seconds) {
            (PageReads::Always, _) | (_, None) => true,
            (PageReads::WhenFaster, Some(seconds)) => shared.lock().speed.pays(bytes, seconds),
        }
    }

    /// Reads a page with `bytes` bytes of contents. Returns `None` if it is missing or damaged; it is then
    /// recomputed.
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
            // The writer of another store has added it since this one was opened.
            state.index.insert(*name, record_bytes as u64);
        }
        drop(state);
        Some(StoredPage { record })
    }

    /// Marks pages as used, the first one as the most recently: the others are useless without it.
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

    /// Queues a page for writing. The writer thread calls `contents`, which returns `None` if they are gone.
    pub(crate) fn offer(
        &self,
        kind: StoredKind,
        name: PageName,
        contents: impl FnOnce() -> Option<Vec<u8>> + Send + 'static,
    ) {
        self.inner.shared.offer(kind, name, Box::new(contents));
    }

    /// Removes a page, so that it is never read again.
    pub(crate) fn remove(&self, name: PageName) {
        self.inner.shared.remove(name);
    }

    /// Removes pages from the index, so that they are written when they are offered again.
    pub(crate) fn forget(&self, names: &[PageName]) {
        let mut state = self.inner.shared.lock();
        names.iter().for_each(|name| state.index.remove(name));
    }

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
    /// Drops the store when nothing is queued: queued contents hold the model, which holds the store.
    fn drop(&mut self) {
        self.shared.close();
        let handle = whole(self.thread.lock()).take();
        // The last page may have held the last model, so this may run on the writer thread itself.
        let own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        if let Some(handle) = handle.filter(|handle| !own(handle)) {
            // The panic was reported where it was caught.
            drop(handle.join());
        }
    }
}

/// A page read from disk and verified.
#[derive(Debug)]
pub(crate) struct StoredPage {
    record: Vec<u8>,
}

impl StoredPage {
    /// Returns the contents.
    pub fn contents(&self) -> &[u8] {
        record::unframed(&self.record)
    }
}

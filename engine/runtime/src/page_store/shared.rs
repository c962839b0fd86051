//! State shared by the callers of a page store and its writer thread.
//!
//! The thread writes offered pages and evicts the least recently used ones.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_core::clock::Moment;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

use super::files::PageFiles;
use super::index::StoredIndex;
use super::record::{PageName, StoredKind, frame, record_bytes};
use super::speed::ReadSpeed;

/// Maximum number of queued pages. Their contents stay in the pools until written, and may be reused before.
const WAITING_MAX: usize = 4096;

/// Seconds without writes after the first failure, and their maximum after repeated failures.
const PAUSE_SECONDS: f64 = 1.0;
const PAUSE_SECONDS_MAX: f64 = 300.0;

/// Function that returns the contents of a page, or `None` if they are gone.
type Contents = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;

/// State shared by callers and the writer thread.
#[derive(Debug)]
pub(super) struct SharedStore {
    pub files: Box<dyn PageFiles>,
    bytes_max: u64,
    state: Mutex<StoreState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct StoreState {
    pub index: StoredIndex,
    pub queue: Queue,
    pub counts: Counts,
    pub speed: ReadSpeed,
    /// Set if this store writes. Other stores of the same storage only read.
    pub is_owner: bool,
    /// Suspension of writes after a failure.
    pub pause: Pause,
    is_closed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub hits: u64,
    pub writes: u64,
    pub dropped: u64,
    pub damaged: u64,
    pub failed: u64,
}

#[derive(Default)]
pub(super) struct Queue {
    writes: VecDeque<Write>,
    /// Names of `writes`, and of the page being written.
    names: HashSet<PageName>,
    /// Pages removed from the index whose files are still to be removed.
    removals: Vec<PageName>,
    is_working: bool,
}

struct Write {
    kind: StoredKind,
    name: PageName,
    contents: Contents,
}

enum Job {
    Write(Write),
    Remove(Vec<PageName>),
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} writes)", self.writes.len())
    }
}

impl Queue {
    /// Returns the number of pages queued or being written.
    pub fn waiting(&self) -> usize {
        self.names.len()
    }

    fn is_done(&self) -> bool {
        self.writes.is_empty() && self.removals.is_empty() && !self.is_working
    }

    fn take(&mut self) -> Option<Job> {
        if !self.removals.is_empty() {
            return Some(Job::Remove(std::mem::take(&mut self.removals)));
        }
        self.writes.pop_front().map(Job::Write)
    }
}

/// A suspension of writes, which doubles after each failure without a successful write in between.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// Start and duration in seconds.
    since: Option<(Moment, f64)>,
}

impl Pause {
    pub fn is_on(&self) -> bool {
        self.since.is_some_and(|(at, seconds)| Moment::now().seconds_since(at) < seconds)
    }

    /// Starts a suspension and returns its duration in seconds.
    fn extend(&mut self) -> f64 {
        let last = self.since.map(|(_, seconds)| 2.0 * seconds);
        // Default: the first failure in a row.
        let seconds = last.unwrap_or(PAUSE_SECONDS).min(PAUSE_SECONDS_MAX);
        self.since = Some((Moment::now(), seconds));
        seconds
    }
}

impl SharedStore {
    /// # Errors
    /// Returns an I/O error of the system.
    pub fn open(files: Box<dyn PageFiles>, bytes_max: u64) -> io::Result<Self> {
        let index = StoredIndex::of_files(files.list()?);
        let state = Mutex::new(StoreState { index, ..StoreState::default() });
        let store = Self { files, bytes_max, state, changed: Condvar::new() };
        store.claim()?;
        Ok(store)
    }

    /// Hold the lock briefly, and never during reads or writes.
    pub fn lock(&self) -> MutexGuard<'_, StoreState> {
        whole(self.state.lock())
    }

    /// Handles a failed read: removes the page from the index, and its file if it is damaged.
    pub fn note_unread(&self, name: &PageName, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::InvalidData => return self.note_damaged(name),
            // The writer of another store removed it.
            io::ErrorKind::NotFound => {}
            _ => {
                tracing::warn!(%error, "a stored page could not be read");
                self.lock().counts.failed += 1;
            }
        }
        self.lock().index.remove(name);
    }

    pub fn note_damaged(&self, name: &PageName) {
        tracing::warn!(%name, "a stored page is damaged");
        self.lock().counts.damaged += 1;
        self.remove(*name);
    }

    /// Queues a page unless it is stored, queued already, or the queue is full.
    pub fn offer(&self, kind: StoredKind, name: PageName, contents: Contents) {
        let mut state = self.lock();
        if state.index.touch(&name) || state.queue.names.contains(&name) {
            return;
        }
        if state.pause.is_on() || state.is_closed || state.queue.writes.len() >= WAITING_MAX {
            state.counts.dropped += 1;
            return;
        }
        state.queue.names.insert(name);
        state.queue.writes.push_back(Write { kind, name, contents });
        drop(state);
        self.changed.notify_all();
    }

    /// Removes a page from the index, and queues the removal of its file.
    pub fn remove(&self, name: PageName) {
        let mut state = self.lock();
        state.index.remove(&name);
        if state.is_owner {
            state.queue.removals.push(name);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Tries to become the writer. On success, reloads the index, which an earlier writer may have changed.
    pub fn claim(&self) -> io::Result<bool> {
        if self.lock().is_owner {
            return Ok(true);
        }
        if !self.files.claim()? {
            return Ok(false);
        }
        let index = StoredIndex::of_files(self.files.list()?);
        let mut state = self.lock();
        (state.index, state.is_owner) = (index, true);
        drop(state);
        self.make_room(0)?;
        Ok(true)
    }

    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Waits until the queue is empty. Returns false on timeout.
    pub fn flush(&self, seconds_max: f64) -> bool {
        let started = Moment::now();
        let mut state = self.lock();
        while !state.queue.is_done() {
            let left = seconds_max - Moment::now().seconds_since(started);
            if left <= 0.0 {
                return false;
            }
            let left = std::time::Duration::from_secs_f64(left);
            state = whole(self.changed.wait_timeout(state, left)).0;
        }
        true
    }

    /// Runs the writer thread until the store is closed.
    pub fn write_behind(&self) {
        loop {
            let mut state = self.lock();
            let job = loop {
                if let Some(job) = state.queue.take() {
                    break job;
                }
                if state.is_closed {
                    return;
                }
                state = whole(self.changed.wait(state));
            };
            state.queue.is_working = true;
            drop(state);
            self.work(job);
            self.lock().queue.is_working = false;
            self.changed.notify_all();
        }
    }

    fn work(&self, job: Job) {
        match job {
            Job::Remove(names) => {
                for name in names {
                    if let Err(error) = self.files.remove(&name) {
                        self.fail(&name, &error);
                    }
                }
            }
            Job::Write(Write { kind, name, contents }) => {
                // The contents come from a device: a panic there must not end the thread.
                let written = catch_unwind(AssertUnwindSafe(|| self.write(kind, &name, contents)));
                let mut state = self.lock();
                state.queue.names.remove(&name);
                match written {
                    Ok(Ok(true)) => {
                        state.counts.writes += 1;
                        state.pause = Pause::default();
                    }
                    Ok(Ok(false)) | Err(_) => state.counts.dropped += 1,
                    Ok(Err(error)) => {
                        state.counts.dropped += 1;
                        drop(state);
                        self.fail(&name, &error);
                    }
                }
            }
        }
    }

    /// Writes a page. Returns false if there is nothing to write or the budget is too small.
    fn write(&self, kind: StoredKind, name: &PageName, contents: Contents) -> io::Result<bool> {
        if self.lock().pause.is_on() || !self.claim()? || self.lock().index.contains(name) {
            return Ok(false);
        }
        // Default: pages reused before their turn are recomputed when needed.
        let Some(contents) = contents() else { return Ok(false) };
        // Default: no file can have that many bytes.
        let Some(bytes) = record_bytes(contents.len()) else { return Ok(false) };
        if bytes as u64 > self.bytes_max {
            return Ok(false);
        }
        self.make_room(bytes as u64)?;
        let frame = frame(kind, name, &contents);
        self.files.write(name, &[&frame.header, &contents, &frame.hash])?;
        self.lock().index.insert(*name, bytes as u64);
        Ok(true)
    }

    /// Evicts the least recently used pages until `bytes` more bytes fit the budget.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        loop {
            let oldest = self.lock().index.pop_oldest(bytes, self.bytes_max);
            match oldest {
                Some(name) => match self.files.remove(&name) {
                    // Evicts another page instead.
                    Err(error) if is_of_name(&error) => self.fail(&name, &error),
                    removed => removed?,
                },
                None => return Ok(()),
            }
        }
    }

    /// Records a failed write or removal.
    ///
    /// If only this name is unusable, for example because a directory has it, other pages are still written.
    /// Otherwise the storage is full, missing or broken: writing is suspended for a while.
    fn fail(&self, name: &PageName, error: &io::Error) {
        let mut state = self.lock();
        state.counts.failed += 1;
        if is_of_name(error) {
            drop(state);
            tracing::warn!(%error, %name, "a page is not written to disk");
            return;
        }
        let seconds = state.pause.extend();
        state.queue.removals.clear();
        drop(state);
        tracing::warn!(%error, "no pages are written to disk for {seconds} s");
    }
}

/// Returns true if an error concerns one name and not the whole storage.
fn is_of_name(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::IsADirectory | Kind::AlreadyExists | Kind::DirectoryNotEmpty | Kind::InvalidFilename
    )
}

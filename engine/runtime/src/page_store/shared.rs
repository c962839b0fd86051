//! What callers of a page store and its thread share; the thread writes what is offered and removes what is unused
//! for longest.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_core::clock::Moment;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

use super::files::PageFiles;
use super::index::StoredIndex;
use super::record::{PageName, StoredKind, frame, record_bytes};
use super::speed::ReadSpeed;

/// Pages that may wait to be written: their contents wait in the pools, where they may be taken for others.
const WAITING_MAX: usize = 4096;

/// Seconds without writes after the first failure, and after many in a row.
const PAUSE_SECONDS: f64 = 1.0;
const PAUSE_SECONDS_MAX: f64 = 300.0;

/// Gives the bytes of a page; none where they are gone.
type Contents = Box<dyn FnOnce() -> Option<Vec<u8>> + Send>;

/// What callers and the thread share.
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
    /// Whether this store writes; others of the same place read.
    pub is_owner: bool,
    /// Writes are suspended for a while after the place failed.
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

/// What the thread has to do.
#[derive(Default)]
pub(super) struct Queue {
    writes: VecDeque<Write>,
    /// Names of `writes`, and of the page that is being written.
    names: HashSet<PageName>,
    /// Removed from the index, and to be removed from the place.
    removals: Vec<PageName>,
    is_working: bool,
}

struct Write {
    kind: StoredKind,
    name: PageName,
    contents: Contents,
}

/// What the thread does next.
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
    /// Pages that wait to be written.
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

/// A suspension of writes, twice as long after each failure without a write between.
#[derive(Debug, Default)]
pub(super) struct Pause {
    /// When it began, and its seconds.
    since: Option<(Moment, f64)>,
}

impl Pause {
    pub fn is_on(&self) -> bool {
        self.since.is_some_and(|(at, seconds)| Moment::now().seconds_since(at) < seconds)
    }

    /// Begins a suspension and returns its seconds.
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
    /// Of the system.
    pub fn open(files: Box<dyn PageFiles>, bytes_max: u64) -> io::Result<Self> {
        let index = StoredIndex::of_files(files.list()?);
        let state = Mutex::new(StoreState { index, ..StoreState::default() });
        let store = Self { files, bytes_max, state, changed: Condvar::new() };
        store.claim()?;
        Ok(store)
    }

    /// Held for moments, never while something is read or written.
    pub fn lock(&self) -> MutexGuard<'_, StoreState> {
        whole(self.state.lock())
    }

    /// Something could not be read.
    pub fn note_unread(&self, name: &PageName, error: &io::Error) {
        match error.kind() {
            io::ErrorKind::InvalidData => return self.note_damaged(name),
            // The writer removed it.
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

    /// Queues a page unless it is there, is on its way or too many wait.
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

    /// Takes a page out of the index; its file follows.
    pub fn remove(&self, name: PageName) {
        let mut state = self.lock();
        state.index.remove(&name);
        if state.is_owner {
            state.queue.removals.push(name);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Tries to become the one who writes; what is there may have changed before.
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

    /// Waits until nothing is left to do; false if that took too long.
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

    /// Works until the store is closed.
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
                // The contents come from a device; what goes wrong there is not the end of the thread.
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

    /// False where there is nothing to write, or no room that it may take.
    fn write(&self, kind: StoredKind, name: &PageName, contents: Contents) -> io::Result<bool> {
        if self.lock().pause.is_on() || !self.claim()? || self.lock().index.contains(name) {
            return Ok(false);
        }
        // Default: whose memory was taken for others is computed again when it is wanted.
        let Some(contents) = contents() else { return Ok(false) };
        // Default: no file has so many bytes.
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

    /// Removes what was unused for longest until so many bytes more are within the budget.
    fn make_room(&self, bytes: u64) -> io::Result<()> {
        loop {
            let oldest = self.lock().index.pop_oldest(bytes, self.bytes_max);
            match oldest {
                Some(name) => match self.files.remove(&name) {
                    // Another page makes room in its place.
                    Err(error) if is_of_name(&error) => self.fail(&name, &error),
                    removed => removed?,
                },
                None => return Ok(()),
            }
        }
    }

    /// Notes a failure. If only this name is unusable, such as for a folder in its place, other pages are written as before.
    /// Otherwise the place is full, gone or broken: its pages are still read, and writing is suspended for a while.
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

/// Whether an error concerns one name and not the whole place.
fn is_of_name(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::IsADirectory | Kind::AlreadyExists | Kind::DirectoryNotEmpty | Kind::InvalidFilename
    )
}

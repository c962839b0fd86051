//! Requests for extents, on the threads of callers and on threads of their own.
//!
//! A request streams several extents. Each is checked, written and available as soon as its bytes have arrived, so that
//! a read waits only for the extents before its own.

use crate::client::RequestError;
use crate::copy_files::CopyFiles;
use crate::error::{Explanation, HubError, Result};
use crate::fetch_state::{CONNECTIONS_MAX, FetchState, ReadFailure, RunLimits, Urgency, end_of};
use crate::ranges::Ranges;
use nestling_formats::store::{Extent, Store, StoreError};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of fetched bytes after which they are made durable. A crash loses at most this much.
const UNSAVED_BYTES_MAX: u64 = 64 << 20;

/// Cost of a request in bytes before it was measured.
const REQUEST_COST_BYTES: u64 = 16 << 10;

/// Time that the end of a copy waits for its threads. A silent server may block them for longer.
const CLOSING_TIME: Duration = Duration::from_secs(2);

/// Fetches extents of a remote store into its copy.
pub struct Fetcher {
    pub files: Arc<CopyFiles>,
    /// The store over the copy, for its index and its checksums.
    pub checked: Store,
    ranges: Ranges,
    file_ends: Vec<u64>,
    state: Mutex<FetchState>,
    changed: Condvar,
}

impl Fetcher {
    pub fn new(files: Arc<CopyFiles>, checked: Store, ranges: Ranges) -> Result<Self> {
        let arrived = files.arrived(checked.index().extents())?;
        let file_ends = files.files.iter().map(|file| file.start + file.sparse.length).collect();
        let (state, changed) = (FetchState::new(arrived).into(), Condvar::new());
        Ok(Self { files, checked, ranges, file_ends, state, changed })
    }

    pub fn lock(&self) -> MutexGuard<'_, FetchState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn extents(&self) -> &[Extent] {
        self.checked.index().extents()
    }

    fn limits(&self) -> RunLimits<'_> {
        // Default: an assumption until the first request.
        let cost = self.ranges.request_cost_bytes().unwrap_or(REQUEST_COST_BYTES);
        RunLimits { extents: self.extents(), file_ends: &self.file_ends, request_cost_bytes: cost }
    }

    pub fn not_written(&self, error: io::Error) -> HubError {
        HubError::file("write", self.files.path(), error)
    }

    /// Makes arrived extents durable.
    pub fn save(&self) -> io::Result<()> {
        self.files.save(|| {
            let mut state = self.lock();
            state.unsaved_bytes = 0;
            state.arrived.clone()
        })
    }

    /// Fetches the next free extents among `extents` on this thread, up to `bytes_max` bytes, unless reads wait. Waits
    /// while other threads fetch. Returns the number of fetched bytes, or `None` if all extents have arrived.
    pub fn fetch_next(&self, extents: Range<usize>, bytes_max: u64) -> Result<Option<u64>> {
        let mut state = self.lock();
        loop {
            if extents.clone().all(|number| state.arrived.contains(number)) {
                return Ok(None);
            }
            let may_start = state.waiting.is_empty();
            let claimed =
                may_start.then(|| state.claim_next(extents.clone(), bytes_max, self.limits()));
            if let Some(run) = claimed.flatten() {
                drop(state);
                let offset = self.extents()[run.start].offset;
                let fetched = self.fetch_claimed(run);
                return fetched.map(Some).map_err(|error| self.files.explain(offset, error));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notes reads that will follow. Urgent ones are requested at once.
    pub fn announce(self: &Arc<Self>, extents: Range<usize>, urgency: Urgency) {
        let mut state = self.lock();
        let mut is_new = false;
        for number in extents {
            is_new |= state.want(number, urgency);
        }
        if is_new && urgency == Urgency::Urgent {
            drop(self.start(state));
        }
    }

    /// Waits until extents have arrived, and requests those that nobody fetches.
    pub fn wait_for(self: &Arc<Self>, extents: Range<usize>) -> io::Result<()> {
        let mut state = self.lock();
        for number in extents.clone() {
            // An error without a waiting read is that of an earlier read.
            if !state.waiting.contains_key(&number) {
                state.failed.remove(&number);
            }
            *state.waiting.entry(number).or_insert(0) += 1;
        }
        let result = loop {
            let failed =
                extents.clone().find_map(|number| Some((number, state.failed.remove(&number)?)));
            if let Some((number, failure)) = failed {
                break Err(match failure {
                    ReadFailure::Changed => {
                        let offset = self.extents()[number].offset;
                        self.files.unread(offset, RequestError::Changed)
                    }
                    ReadFailure::Explained(told) => io::Error::other(HubError::Failed(told)),
                });
            }
            let mut is_whole = true;
            for number in extents.clone() {
                if !state.arrived.contains(number) {
                    is_whole = false;
                    // Announced reads keep their urgency.
                    let known = state.wanted.get(&number).copied();
                    // Default: a read that was not announced is urgent.
                    state.want(number, known.unwrap_or(Urgency::Urgent));
                }
            }
            if is_whole {
                break Ok(());
            }
            state = self.start(state);
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        };
        for number in extents {
            if let Some(count) = state.waiting.get_mut(&number) {
                *count -= 1;
                if *count == 0 {
                    state.waiting.remove(&number);
                }
            }
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Starts a thread for wanted extents if a connection is free.
    fn start<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, FetchState>,
    ) -> MutexGuard<'a, FetchState> {
        if state.wanted.is_empty() || state.fetchers >= CONNECTIONS_MAX || state.is_closing {
            return state;
        }
        state.fetchers += 1;
        let fetcher = Arc::clone(self);
        let thread = std::thread::Builder::new().name("extents".into());
        if thread.spawn(move || fetcher.fetch_wanted()).is_ok() {
            return state;
        }
        // The system has no thread to spare, so this one is used.
        drop(state);
        self.fetch_wanted();
        self.lock()
    }

    /// Fetches wanted extents until there are none.
    fn fetch_wanted(&self) {
        loop {
            let mut state = self.lock();
            let run = (!state.is_closing).then(|| state.claim_wanted(self.limits())).flatten();
            let Some(run) = run else {
                state.fetchers -= 1;
                drop(state);
                self.changed.notify_all();
                return;
            };
            drop(state);
            if let Err(trouble) = self.fetch_claimed(run.clone()) {
                self.fail(run, trouble);
            }
        }
    }

    /// Passes an error to the reads that wait for extents of a request.
    fn fail(&self, run: Range<usize>, trouble: RequestError) {
        let offset = self.extents()[run.start].offset;
        let failure = match trouble {
            RequestError::Changed => ReadFailure::Changed,
            trouble => ReadFailure::Explained(explanation(&self.files.explain(offset, trouble))),
        };
        let mut state = self.lock();
        for number in run {
            if !state.arrived.contains(number) && state.waiting.contains_key(&number) {
                state.failed.insert(number, failure.clone());
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Fetches claimed extents, and keeps them in the copy. Returns their number of bytes.
    fn fetch_claimed(&self, run: Range<usize>) -> std::result::Result<u64, RequestError> {
        let fetched = self.stream_twice(run.clone());
        let mut state = self.lock();
        let mut bytes = 0;
        for number in run {
            state.in_flight.remove(&number);
            if state.arrived.contains(number) {
                bytes += self.extents()[number].length;
            }
        }
        let is_full = state.unsaved_bytes > UNSAVED_BYTES_MAX;
        drop(state);
        self.changed.notify_all();
        fetched?;
        if is_full {
            self.save().map_err(|error| RequestError::Failed(self.not_written(error)))?;
        }
        Ok(bytes)
    }

    /// Requests consecutive extents, and then those that arrived damaged once more.
    fn stream_twice(&self, run: Range<usize>) -> std::result::Result<(), RequestError> {
        let damaged = self.stream(run)?;
        for (number, _) in damaged {
            if let Some((_, error)) = self.stream(number..number + 1)?.pop() {
                return Err(RequestError::Failed(error.into()));
            }
        }
        Ok(())
    }

    /// Requests consecutive extents of one file. Returns the damaged ones.
    fn stream(
        &self,
        run: Range<usize>,
    ) -> std::result::Result<Vec<(usize, StoreError)>, RequestError> {
        let (Some(first), Some(last)) =
            (self.extents().get(run.start), self.extents().get(run.end - 1))
        else {
            return Ok(Vec::new());
        };
        let file = &self.files.files[self.files.file_of(first.offset)];
        let range = first.offset - file.start..end_of(last) - file.start;
        let (at, bytes) = (first.offset, Vec::new());
        let mut arrival = Arrival { fetcher: self, left: run, at, bytes, damaged: Vec::new() };
        self.ranges.stream(&file.remote, range, &mut |chunk| arrival.push(chunk))?;
        Ok(arrival.damaged)
    }

    /// Fetches an extent without keeping it.
    pub fn fetch_alone(&self, number: usize) -> io::Result<Vec<u8>> {
        let extent = &self.extents()[number];
        let file = &self.files.files[self.files.file_of(extent.offset)];
        let range = extent.offset - file.start..end_of(extent) - file.start;
        let unread = |trouble| self.files.unread(extent.offset, trouble);
        let bytes = self.ranges.read(&file.remote, range.clone()).map_err(unread)?;
        if self.checked.check(extent, &bytes).is_ok() {
            return Ok(bytes);
        }
        let bytes = self.ranges.read(&file.remote, range).map_err(unread)?;
        self.checked.check(extent, &bytes).map_err(io::Error::other)?;
        Ok(bytes)
    }

    /// Ends the fetching, and waits for the threads for a while.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        let is_busy = |state: &mut FetchState| state.fetchers > 0;
        // What is still in flight after that time is fetched again by the next open copy.
        drop(self.changed.wait_timeout_while(state, CLOSING_TIME, is_busy));
    }
}

/// Extents that a response brings.
struct Arrival<'a> {
    fetcher: &'a Fetcher,
    /// Numbers of the extents that have not arrived.
    left: Range<usize>,
    /// Offset of `bytes` in the store.
    at: u64,
    /// Bytes of the first extent that is left, and the padding before it.
    bytes: Vec<u8>,
    damaged: Vec<(usize, StoreError)>,
}

impl Arrival<'_> {
    /// Takes the next bytes of the response. Complete extents are checked and written.
    fn push(&mut self, chunk: &[u8]) -> Result<()> {
        let Fetcher { files, checked, .. } = self.fetcher;
        self.bytes.extend_from_slice(chunk);
        while let Some(extent) = self.fetcher.extents().get(self.left.start) {
            let from = (extent.offset - self.at) as usize;
            let to = from + extent.length as usize;
            if self.left.is_empty() || self.bytes.len() < to {
                break;
            }
            // Padding is zero.
            self.bytes[..from].fill(0);
            let number = self.left.start;
            match checked.check(extent, &self.bytes[from..to]) {
                Ok(()) => {
                    let written = files.write_at(self.at, &self.bytes[..to]);
                    written.map_err(|error| self.fetcher.not_written(error))?;
                    self.fetcher.lock().arrive(number, extent.length);
                    self.fetcher.changed.notify_all();
                }
                Err(error) => self.damaged.push((number, error)),
            }
            self.bytes.drain(..to);
            (self.at, self.left.start) = (self.at + to as u64, number + 1);
        }
        match self.fetcher.lock().is_closing {
            true => Err(HubError::new("the store was closed")),
            false => Ok(()),
        }
    }
}

/// Returns message and advice of an error.
fn explanation(error: &HubError) -> Explanation {
    Explanation { message: error.to_string(), advice: error.advice().map(str::to_owned) }
}

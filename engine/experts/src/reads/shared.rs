//! State shared by callers and readers: queued, running and completed reads.

use std::collections::VecDeque;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
#[cfg(not(target_family = "wasm"))]
use std::time::Duration;

#[cfg(target_os = "linux")]
use nestling_formats::Plane;
#[cfg(target_os = "linux")]
use nestling_formats::store::GroupId;
use nestling_formats::store::{Extent, Store, StoreError};

#[cfg(target_os = "linux")]
use super::buffers::buffer_bytes;
use super::buffers::{ArrivedPlane, BufferPool};
use super::options::Checks;
#[cfg(target_os = "linux")]
use super::plain::PlainFiles;
#[cfg(target_os = "linux")]
use super::wake_event::WakeEvent;
use super::{Background, ReadClass, ReadCounters, ReadDone, ReadOptions, ReadRequest, ReadTiming};
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

pub(super) struct SharedReads {
    store: Arc<Store>,
    checks: Checks,
    pub pool: Arc<BufferPool>,
    /// The store's files, for reads that bypass its storage.
    #[cfg(target_os = "linux")]
    pub files: Option<PlainFiles>,
    pub depth: usize,
    #[cfg(not(target_family = "wasm"))]
    pub timeout: Option<Duration>,
    pub opened: Moment,
    state: Mutex<ReadState>,
    /// Signals that a read may start, or the end.
    pub work: Condvar,
    /// Signals the first outstanding read after an idle time, or the end.
    pub watch: Condvar,
    retries: AtomicU64,
    staged: AtomicU64,
    staging_bytes: AtomicU64,
    /// Maximum bytes of buffers for the sources of derived extents.
    pub source_bytes: AtomicU64,
    #[cfg(target_os = "linux")]
    wake: OnceLock<WakeEvent>,
}

#[derive(Default)]
pub(super) struct ReadState {
    pub queue: Queue,
    pub running: Vec<QueuedRead>,
    /// Reads whose bytes have arrived and are being verified.
    checking: Vec<QueuedRead>,
    done: VecDeque<ReadDone>,
    wakers: Vec<Waker>,
    counters: ReadCounters,
    /// Start of the current busy period.
    busy_since: u64,
    pub closing: bool,
    /// True while a watcher checks for stalls periodically and needs no wake-up.
    pub watching: bool,
    /// True if the event must be signalled when a read can start.
    pub wants_wake: bool,
    /// Maximum number of reads in flight for idle ones to start; 0 stands for half of the depth.
    idle_depth: usize,
    background: Background,
}

impl SharedReads {
    pub fn new(store: Arc<Store>, options: &ReadOptions, checks: Checks) -> Self {
        Self {
            #[cfg(target_os = "linux")]
            files: PlainFiles::open(&store, options.direct),
            store,
            checks,
            pool: Arc::new(BufferPool::new(options.pool_bytes)),
            depth: options.depth.max(1),
            #[cfg(not(target_family = "wasm"))]
            timeout: options.timeout,
            opened: Moment::now(),
            state: Mutex::default(),
            work: Condvar::new(),
            watch: Condvar::new(),
            retries: AtomicU64::new(0),
            staged: AtomicU64::new(0),
            staging_bytes: AtomicU64::new(0),
            source_bytes: AtomicU64::new(options.pool_bytes),
            #[cfg(target_os = "linux")]
            wake: OnceLock::new(),
        }
    }

    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Returns the maximum buffer size for a plane of an expert.
    #[cfg(target_os = "linux")]
    pub fn longest_read(&self) -> usize {
        let groups = self.store.index().groups().iter();
        let experts = groups.filter(|group| matches!(group.id, GroupId::Expert(_)));
        let planes =
            experts.flat_map(|group| Plane::ALL.map(|plane| self.store.extent(group, plane)));
        let longest = planes.flatten().map(|extent| buffer_bytes(extent.length)).max();
        // Default: a store without experts has no planes to read.
        longest.and_then(|longest| usize::try_from(longest).ok()).unwrap_or(0)
    }

    pub fn check(&self, extent: &Extent, bytes: &[u8]) -> Result<(), StoreError> {
        match self.checks {
            Checks::Done => self.store.check(extent, bytes),
            Checks::Ignored => {
                // Byte ranges are no extents, so their checksums never match. Hashing takes the same time.
                if !self.store.is_derived() {
                    let _ = self.store.check(extent, bytes);
                }
                Ok(())
            }
        }
    }

    /// Returns the number of threads that read. Some verify planes, or build those of a derived store, while
    /// `depth` others read.
    pub fn reader_threads(&self) -> usize {
        self.depth + self.depth.div_ceil(2)
    }

    /// Returns whether every reader thread may have a buffer of `bytes` bytes for a source.
    pub fn has_source_room(&self, bytes: usize) -> bool {
        let all = (bytes as u64).saturating_mul(self.reader_threads() as u64);
        all <= self.source_bytes.load(Ordering::Relaxed)
    }

    pub fn lock(&self) -> MutexGuard<'_, ReadState> {
        whole(self.state.lock())
    }

    pub fn now_ns(&self) -> u64 {
        Moment::now().nanoseconds_since(self.opened)
    }

    pub fn submit(&self, request: ReadRequest) {
        let now = self.now_ns();
        self.announce(&request.extent, request.class);
        let mut state = self.lock();
        state.queue.push(request, now);
        if !state.watching {
            self.watch.notify_one();
        }
        self.wake_readers(state);
    }

    /// Announces a read to the storage, which may join it with others.
    fn announce(&self, extent: &Extent, class: ReadClass) {
        let is_urgent = class == ReadClass::Urgent;
        self.store.storage().announce(extent.offset, extent.length, is_urgent);
    }

    fn wake_readers(&self, mut state: MutexGuard<'_, ReadState>) {
        let wants_wake = std::mem::take(&mut state.wants_wake);
        drop(state);
        if wants_wake {
            self.signal_wake();
        }
        self.work.notify_one();
    }

    /// Signals the end to all readers.
    #[cfg(not(target_family = "wasm"))]
    pub fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        state.queue.clear();
        drop(state);
        self.work.notify_all();
        self.watch.notify_all();
        self.signal_wake();
    }

    #[cfg(target_os = "linux")]
    pub fn set_wake_event(&self, wake: WakeEvent) -> &WakeEvent {
        self.wake.get_or_init(|| wake)
    }

    fn signal_wake(&self) {
        #[cfg(target_os = "linux")]
        if let Some(wake) = self.wake.get() {
            wake.ring();
        }
    }

    pub fn promote(&self, tag: u64) {
        let mut state = self.lock();
        let promoted = state.queue.promote(tag);
        if let Some(job) = state.queue.urgent.back().filter(|_| promoted) {
            self.announce(&job.extent, job.class);
        }
        if let Some(job) = state.running.iter_mut().find(|job| job.tag == tag) {
            job.class = ReadClass::Urgent;
        }
        if promoted {
            self.wake_readers(state);
        }
    }

    pub fn set_idle_depth(&self, most: usize) {
        let mut state = self.lock();
        let grows = most > state.idle_depth;
        state.idle_depth = most;
        if grows {
            self.wake_readers(state);
        }
    }

    pub fn set_background(&self, background: Background) {
        let mut state = self.lock();
        let begins = state.background == Background::Waits && background == Background::Runs;
        state.background = background;
        if begins && !state.queue.background.is_empty() {
            self.wake_readers(state);
        }
    }

    pub fn hasten(&self, tag: u64) {
        self.lock().queue.hasten(tag);
    }

    pub fn withdraw(&self, tag: u64) -> bool {
        self.lock().queue.withdraw(tag)
    }

    pub fn try_next(&self) -> Option<ReadDone> {
        self.lock().done.pop_front()
    }

    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<ReadDone> {
        let mut state = self.lock();
        if let Some(done) = state.done.pop_front() {
            return Poll::Ready(done);
        }
        let waker = context.waker();
        if !state.wakers.iter().any(|known| known.will_wake(waker)) {
            state.wakers.push(waker.clone());
        }
        Poll::Pending
    }

    pub fn counters(&self) -> ReadCounters {
        let now = self.now_ns();
        let state = self.lock();
        let mut counters = state.counters;
        if !state.running.is_empty() {
            counters.busy_ns += now.saturating_sub(state.busy_since);
        }
        counters.retries = self.retries.load(Ordering::Relaxed);
        counters.staged = self.staged.load(Ordering::Relaxed);
        counters
    }

    pub fn outstanding(&self) -> usize {
        let state = self.lock();
        state.queue.len() + state.running.len() + state.checking.len() + state.done.len()
    }

    pub fn outstanding_foreground(&self) -> usize {
        let state = self.lock();
        let queued = state.queue.urgent.len() + state.queue.idle.len();
        queued + state.running.len() + state.checking.len() + state.done.len()
    }

    pub fn count_retry(&self) {
        self.retries.fetch_add(1, Ordering::Relaxed);
    }

    #[cfg(target_os = "linux")]
    pub fn set_staging_bytes(&self, bytes: u64) {
        self.staging_bytes.store(bytes, Ordering::Relaxed);
    }

    pub fn staging_bytes(&self) -> u64 {
        self.staging_bytes.load(Ordering::Relaxed)
    }

    #[cfg(target_os = "linux")]
    pub fn count_staged(&self) {
        self.staged.fetch_add(1, Ordering::Relaxed);
    }

    /// Starts a read for the caller, unless a completed one is waiting.
    pub fn start_inline(&self) -> Option<QueuedRead> {
        let mut state = self.lock();
        if state.done.is_empty() { self.start(&mut state) } else { None }
    }

    /// Starts the next read, if one may start.
    pub fn start(&self, state: &mut ReadState) -> Option<QueuedRead> {
        if state.closing || state.running.len() >= self.depth {
            return None;
        }
        let urgent = state.running.iter().any(|job| job.class == ReadClass::Urgent);
        let full = match state.idle_depth {
            // Keeps capacity for an urgent read to start immediately.
            0 => state.running.len() >= self.depth.div_ceil(2),
            most => state.running.len() >= most,
        };
        let idle = match (urgent || full, state.background) {
            (true, _) => IdleReads::Wait,
            (false, Background::Waits) => IdleReads::May,
            (false, Background::Runs) => IdleReads::AndBackground,
        };
        let mut job = state.queue.pop(idle)?;
        job.started_ns = self.now_ns();
        if state.running.is_empty() {
            state.busy_since = job.started_ns;
        }
        state.running.push(job.clone());
        Some(job)
    }

    /// Completes a read. The result of an abandoned read is dropped.
    pub fn finish(&self, job: &QueuedRead, result: Result<ArrivedPlane, EngineError>) {
        let now = self.now_ns();
        let mut state = self.lock();
        let checked = state.checking.iter().position(|known| known.ticket == job.ticket);
        if let Some(place) = checked {
            state.checking.swap_remove(place);
        }
        if checked.is_some() || state.stop(job.ticket, now) {
            state.end(job, result, now);
            wake(state);
        }
    }

    /// Notes that a read's bytes have arrived, so that another may start. Returns false if the read was
    /// abandoned.
    pub fn landed(&self, job: &QueuedRead) -> bool {
        let now = self.now_ns();
        let mut state = self.lock();
        let known = state.stop(job.ticket, now);
        if known {
            state.checking.push(job.clone());
            self.work.notify_one();
        }
        known
    }

    /// Returns the started reads that are not complete.
    #[cfg(target_os = "linux")]
    pub fn unfinished(&self) -> Vec<QueuedRead> {
        let state = self.lock();
        state.running.iter().chain(&state.checking).cloned().collect()
    }

    /// Completes removed reads with an error.
    #[cfg(not(target_family = "wasm"))]
    pub fn give_up(&self, jobs: &[QueuedRead], error: impl Fn(&QueuedRead) -> EngineError) {
        let now = self.now_ns();
        let mut state = self.lock();
        for job in jobs {
            state.end(job, Err(error(job)), now);
        }
        wake(state);
    }
}

/// Releases the lock and wakes all waiters, which may call back immediately.
fn wake(mut state: MutexGuard<'_, ReadState>) {
    let wakers = std::mem::take(&mut state.wakers);
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
}

impl ReadState {
    /// Stops a running read and returns whether it was running.
    fn stop(&mut self, ticket: u64, now_ns: u64) -> bool {
        let Some(place) = self.running.iter().position(|job| job.ticket == ticket) else {
            return false;
        };
        self.running.remove(place);
        if self.running.is_empty() {
            self.counters.busy_ns += now_ns.saturating_sub(self.busy_since);
        }
        true
    }

    fn end(
        &mut self,
        job: &QueuedRead,
        result: Result<ArrivedPlane, EngineError>,
        finished_ns: u64,
    ) {
        let (queued_ns, started_ns) = (job.queued_ns, job.started_ns);
        let timing = ReadTiming { queued_ns, started_ns, finished_ns };
        self.counters.reads += 1;
        match &result {
            Ok(_) => self.counters.bytes += job.extent.length,
            Err(_) => self.counters.errors += 1,
        }
        self.done.push_back(ReadDone { tag: job.tag, class: job.class, result, timing });
    }

    /// Takes out stalled reads: running longer than the limit or, if no reader is left, waiting longer than
    /// the limit.
    #[cfg(not(target_family = "wasm"))]
    pub fn take_stalled(
        &mut self,
        now_ns: u64,
        limit_ns: u64,
        no_more_readers: bool,
    ) -> Vec<QueuedRead> {
        let since = now_ns.saturating_sub(limit_ns);
        let mut stalled = Vec::new();
        stalled.extend(self.running.iter().filter(|job| job.started_ns < since).cloned());
        for job in &stalled {
            self.stop(job.ticket, now_ns);
        }
        if no_more_readers && self.running.is_empty() {
            stalled.append(&mut self.queue.take_older(since));
        }
        stalled
    }
}

#[cfg(not(target_family = "wasm"))]
pub(super) fn stall(shared: &SharedReads, job: &QueuedRead, timeout: Duration) -> EngineError {
    EngineError::ReadStalled {
        file: shared.store().name().to_owned(),
        offset: job.extent.offset,
        length: job.extent.length,
        seconds: timeout.as_secs_f64(),
    }
}

#[derive(Clone, Debug)]
pub(super) struct QueuedRead {
    /// Number that is unique within a [`super::Reads`].
    pub ticket: u64,
    pub tag: u64,
    pub extent: Extent,
    pub class: ReadClass,
    pub queued_ns: u64,
    pub started_ns: u64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    urgent: VecDeque<QueuedRead>,
    idle: VecDeque<QueuedRead>,
    background: VecDeque<QueuedRead>,
    tickets: u64,
}

impl Queue {
    pub fn push(&mut self, request: ReadRequest, queued_ns: u64) {
        let ReadRequest { tag, extent, class } = request;
        self.tickets += 1;
        let job = QueuedRead { ticket: self.tickets, tag, extent, class, queued_ns, started_ns: 0 };
        match class {
            ReadClass::Urgent => self.urgent.push_back(job),
            ReadClass::Idle => self.idle.push_back(job),
            ReadClass::Background => self.background.push_back(job),
        }
    }

    pub fn pop(&mut self, idle: IdleReads) -> Option<QueuedRead> {
        self.urgent.pop_front().or_else(|| match idle {
            IdleReads::Wait => None,
            IdleReads::May => self.idle.pop_front(),
            IdleReads::AndBackground => {
                self.idle.pop_front().or_else(|| self.background.pop_front())
            }
        })
    }

    /// Makes a request urgent. Returns whether it was queued as idle or background.
    pub fn promote(&mut self, tag: u64) -> bool {
        let job = take(&mut self.idle, tag).or_else(|| take(&mut self.background, tag));
        let Some(mut job) = job else { return false };
        job.class = ReadClass::Urgent;
        self.urgent.push_back(job);
        true
    }

    pub fn hasten(&mut self, tag: u64) {
        if let Some(mut job) = take(&mut self.background, tag) {
            job.class = ReadClass::Idle;
            self.idle.push_back(job);
        }
    }

    /// Removes a request. Returns whether it was queued.
    pub fn withdraw(&mut self, tag: u64) -> bool {
        let mut queues = [&mut self.urgent, &mut self.idle, &mut self.background].into_iter();
        queues.any(|queue| take(queue, tag).is_some())
    }

    /// Takes out all requests queued before `queued_ns`.
    #[cfg(not(target_family = "wasm"))]
    pub fn take_older(&mut self, queued_ns: u64) -> Vec<QueuedRead> {
        let mut taken = Vec::new();
        for queue in [&mut self.urgent, &mut self.idle, &mut self.background] {
            for job in std::mem::take(queue) {
                let old = job.queued_ns < queued_ns;
                if old { taken.push(job) } else { queue.push_back(job) }
            }
        }
        taken
    }

    #[cfg(not(target_family = "wasm"))]
    pub fn clear(&mut self) {
        self.urgent.clear();
        self.idle.clear();
        self.background.clear();
    }

    pub fn len(&self) -> usize {
        self.urgent.len() + self.idle.len() + self.background.len()
    }
}

/// Which non-urgent reads may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleReads {
    Wait,
    May,
    /// Idle reads, then background reads.
    AndBackground,
}

fn take(queue: &mut VecDeque<QueuedRead>, tag: u64) -> Option<QueuedRead> {
    let place = queue.iter().position(|job| job.tag == tag)?;
    queue.remove(place)
}

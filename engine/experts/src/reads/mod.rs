//! Reads of planes that run beside computing.
//!
//! [`Reads`] takes requests for extents of one store, reads them in an order that callers choose,
//! compares every one with its checksum, and hands out the bytes in buffers that it uses again. A
//! request that fails is an error of its own tag and of nothing else.

#[cfg(target_os = "linux")]
mod bell;
mod buffers;
#[cfg(test)]
mod by_hand;
mod fetch;
mod measure;
mod options;
#[cfg(target_os = "linux")]
mod plain;
#[cfg(not(target_family = "wasm"))]
mod reader;
#[cfg(target_os = "linux")]
mod ring;
mod shared;
#[cfg(target_os = "linux")]
mod slab;
#[cfg(target_os = "linux")]
mod staging;
#[cfg(test)]
mod tests;
#[cfg(not(target_family = "wasm"))]
mod threads;
#[cfg(not(target_family = "wasm"))]
mod workers;

use std::sync::Arc;
use std::task::{Context, Poll};

use nestling_formats::store::{Extent, Store};

pub use buffers::{ArrivedPlane, buffer_bytes};
#[cfg(test)]
pub(crate) use by_hand::DiskByHand;
pub use measure::{
    MeasureOptions, Measured, ReadChoice, choose, measure, plane_sizes, plane_sizes_of_index,
};
pub use options::{ReadMethod, ReadOptions};
#[cfg(not(target_family = "wasm"))]
pub(crate) use threads::Threads;

use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use options::Checks;
use shared::Shared;

/// One extent to be read.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// The caller's name for it, which no other request has that has not come back.
    pub tag: u64,
    /// What to read, of the store that the [`Reads`] was opened with.
    pub extent: Extent,
    /// How soon.
    pub class: ReadClass,
}

/// How soon a read is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadClass {
    /// A step waits for it, or will.
    Urgent,
    /// It may be useful later: started only while no urgent read waits or runs.
    Idle,
    /// Nobody knows when it will be wanted: started after the idle ones, and not while [`Background::Waits`].
    Background,
}

/// Whether background reads start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Background {
    /// As soon as nothing else is to be read.
    #[default]
    Runs,
    /// Not now: somebody needs the processor or the disk.
    Waits,
}

/// How much of the depth idle reads may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IdleDepth {
    /// Half of it.
    #[default]
    Half,
    /// All of it.
    Full,
}

/// A read that has ended.
#[derive(Debug)]
pub struct ReadDone {
    /// Tag of the request.
    pub tag: u64,
    /// How soon it was wanted at last.
    pub class: ReadClass,
    /// The bytes, which have the extent's checksum.
    pub result: Result<ArrivedPlane, EngineError>,
    /// When what happened.
    pub timing: ReadTiming,
}

/// Moments of a read, in nanoseconds since the [`Reads`] was opened. All 0 where there is no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTiming {
    /// When it was submitted.
    pub queued_ns: u64,
    /// When it was handed to the system.
    pub started_ns: u64,
    /// When its bytes were there and checked.
    pub finished_ns: u64,
}

/// What has been read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Reads that have ended, well or not.
    pub reads: u64,
    /// Bytes of the extents that arrived well.
    pub bytes: u64,
    /// Nanoseconds in which at least one read was under way.
    pub busy_ns: u64,
    /// Reads that ended with an error.
    pub errors: u64,
    /// Reads that landed in memory registered with an io_uring.
    pub staged: u64,
    /// Reads that were interrupted, cut short or refused, and tried again.
    pub retries: u64,
}

/// Reads extents of one store.
///
/// Dropping it waits for the reads that are under way, but no longer than a few seconds: one that
/// hangs in the system is left behind with its buffer.
pub struct Reads {
    shared: Arc<Shared>,
    method: ReadMethod,
    /// Kept to be dropped.
    #[cfg(not(target_family = "wasm"))]
    _workers: Option<workers::Workers>,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reads({}, {:?})", self.shared.store().name(), self.method())
    }
}

impl Reads {
    /// Makes ready to read from a store.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn open(store: Arc<Store>, options: &ReadOptions) -> Result<Self, EngineError> {
        Self::start(store, options, Checks::Done)
    }

    /// One that reads any place of the store, extent or not.
    fn unchecked(store: Arc<Store>, options: &ReadOptions) -> Result<Self, EngineError> {
        Self::start(store, options, Checks::LeftOut)
    }

    fn start(
        store: Arc<Store>,
        options: &ReadOptions,
        checks: Checks,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared::new(store, options, checks));
        #[cfg(not(target_family = "wasm"))]
        if options.method != ReadMethod::Inline {
            let method = match options.method {
                ReadMethod::Auto => ReadMethod::IoUring,
                method => method,
            };
            let workers = workers::Workers::start(&shared, method)?;
            return Ok(Self { method: workers.method(), shared, _workers: Some(workers) });
        }
        Ok(Self {
            method: ReadMethod::Inline,
            shared,
            #[cfg(not(target_family = "wasm"))]
            _workers: None,
        })
    }

    /// Asks for a read. Within a class, reads start in the order in which they were submitted.
    pub fn submit(&self, request: ReadRequest) {
        self.shared.submit(request);
    }

    /// Makes an idle or background read urgent, behind the urgent ones that wait; nothing happens if it
    /// has ended or is urgent.
    pub fn promote(&self, tag: u64) {
        self.shared.promote(tag);
    }

    /// Says whether background reads start from now on.
    pub fn set_background(&self, background: Background) {
        self.shared.set_background(background);
    }

    /// Makes a background read an idle one; nothing happens if it has begun or is no background read.
    pub fn hasten(&self, tag: u64) {
        self.shared.hasten(tag);
    }

    /// How many reads may be under way when an idle one starts: half of the depth unless more of them
    /// are known to be of use, since an urgent one waits for those that have started.
    pub fn set_idle_depth(&self, idle: IdleDepth) {
        self.shared.set_idle_depth(match idle {
            IdleDepth::Half => 0,
            IdleDepth::Full => self.shared.depth,
        });
    }

    /// Takes a request back. True: it had not started and never will, and no [`ReadDone`] will come;
    /// otherwise one will, or has.
    pub fn withdraw(&self, tag: u64) -> bool {
        self.shared.withdraw(tag)
    }

    /// A read that has ended, if there is one. Where there are no threads, this reads one.
    pub fn try_next(&self) -> Option<ReadDone> {
        self.read_inline();
        self.shared.try_next()
    }

    /// A read that has ended, now or later. While nothing was asked for, nothing will come.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<ReadDone> {
        self.read_inline();
        self.shared.poll_next(context)
    }

    /// What has been read so far.
    pub fn counters(&self) -> ReadCounters {
        self.shared.counters()
    }

    /// The moment that times are counted from.
    pub(crate) fn opened(&self) -> Moment {
        self.shared.opened
    }

    /// How it reads: never [`ReadMethod::Auto`].
    pub fn method(&self) -> ReadMethod {
        self.method
    }

    /// Whether all reads go past the page cache.
    pub fn is_direct(&self) -> bool {
        #[cfg(target_os = "linux")]
        let files = self.shared.files.as_ref().is_some_and(plain::PlainFiles::is_direct);
        #[cfg(not(target_os = "linux"))]
        let files = false;
        files || self.shared.store().storage().passes_page_cache()
    }

    /// Requests that have not come back: those that wait and those that are read.
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding()
    }

    /// Requests that have not come back, without those of the background that have not begun.
    pub fn wanted(&self) -> usize {
        self.shared.wanted()
    }

    /// Bytes of memory of all buffers: those that planes lie in, and those kept for the next ones.
    /// The sum never passes the most that planes, with those under way, have taken at once.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.shared.pool.bytes()
    }

    /// Sets how many bytes of unused buffers may be kept.
    pub fn set_pool_bytes(&self, bytes: u64) {
        self.shared.pool.set_limit(bytes);
    }

    /// Bytes that planes and unused buffers may take together, with memory registered with a ring; as
    /// many unused buffers are kept as planes leave.
    pub fn set_memory_bytes(&self, bytes: u64) {
        self.shared.pool.set_total(bytes.saturating_sub(self.shared.staging_bytes()));
    }

    /// Gives all unused buffers back to the system.
    pub fn trim(&self) {
        self.shared.pool.trim();
    }

    /// Reads one extent now if nobody else would and none has come.
    fn read_inline(&self) {
        if self.method == ReadMethod::Inline
            && let Some(job) = self.shared.start_inline()
        {
            let result = fetch::fetch(&self.shared, &job);
            self.shared.finish(&job, result);
        }
    }
}

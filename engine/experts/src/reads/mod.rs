//! Plane reads that run in parallel with computation.
//!
//! [`Reads`] accepts requests for extents of one store and reads them in an order that callers control. It
//! verifies checksums and returns the bytes in reusable buffers. A failed request only affects its own tag.

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
mod thread_staging;
#[cfg(not(target_family = "wasm"))]
mod threads;
#[cfg(target_os = "linux")]
mod wake_event;
#[cfg(not(target_family = "wasm"))]
mod workers;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use nestling_formats::store::{Extent, Store};

pub use buffers::{ArrivedPlane, buffer_bytes};
#[cfg(test)]
pub(crate) use by_hand::DiskByHand;
pub use measure::{
    MeasureOptions, ReadChoice, ReadSpeed, choose, measure, plane_sizes, plane_sizes_of_index,
};
pub use options::{ReadMethod, ReadOptions};
#[cfg(not(target_family = "wasm"))]
pub(crate) use threads::Threads;

use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use options::Checks;
use shared::SharedReads;

/// A request to read one extent.
#[derive(Clone, Debug)]
pub struct ReadRequest {
    /// Caller's identifier, unique among outstanding requests.
    pub tag: u64,
    /// Extent to read, in the store of the [`Reads`].
    pub extent: Extent,
    /// Urgency of the read.
    pub class: ReadClass,
}

/// Urgency of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReadClass {
    /// A step waits for the read, or will.
    Urgent,
    /// The read may be useful later. It starts only while no urgent read is waiting or running.
    Idle,
    /// The time of use is unknown. The read starts after idle ones, and not while [`Background::Waits`].
    Background,
}

/// Whether background reads start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Background {
    /// Start when there is nothing else to read.
    #[default]
    Runs,
    /// Suspended, because the CPU or the disk is needed.
    Waits,
}

/// Share of the depth available to idle reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum IdleDepth {
    /// Half of the depth.
    #[default]
    Half,
    /// The full depth.
    Full,
}

/// A completed read.
#[derive(Debug)]
pub struct ReadDone {
    /// Tag of the request.
    pub tag: u64,
    /// Urgency of the read at its end.
    pub class: ReadClass,
    /// Verified bytes of the extent, or the error.
    pub result: Result<ArrivedPlane, EngineError>,
    /// Times of the read.
    pub timing: ReadTiming,
}

/// Times of a read in nanoseconds since the [`Reads`] was opened. All 0 without a clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTiming {
    /// Submission time.
    pub queued_ns: u64,
    /// Start time, when the read was given to the system.
    pub started_ns: u64,
    /// End time, after verification.
    pub finished_ns: u64,
}

/// Counters of a [`Reads`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadCounters {
    /// Completed reads, including failed ones.
    pub reads: u64,
    /// Bytes of successfully read extents.
    pub bytes: u64,
    /// Nanoseconds with at least one read in flight.
    pub busy_ns: u64,
    /// Failed reads.
    pub errors: u64,
    /// Reads that landed in staging memory and were copied from there.
    pub staged: u64,
    /// Retries after reads that were interrupted, short or refused.
    pub retries: u64,
}

/// Asynchronous reader of one store's extents.
///
/// Drop waits for reads in flight, but only a few seconds: a read that hangs in the system is leaked with its
/// buffer.
pub struct Reads {
    shared: Arc<SharedReads>,
    method: ReadMethod,
    /// Worker threads, joined on drop.
    #[cfg(not(target_family = "wasm"))]
    _workers: Option<workers::Workers>,
}

impl std::fmt::Debug for Reads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reads({}, {:?})", self.shared.store().name(), self.method())
    }
}

impl Reads {
    /// Opens a store for reading.
    ///
    /// # Errors
    /// [`EngineError::Thread`].
    pub fn open(store: Arc<Store>, options: &ReadOptions) -> Result<Self, EngineError> {
        Self::start(store, options, Checks::Done)
    }

    /// Opens a store for reading any byte range. Checksums are computed and ignored.
    fn unchecked(store: Arc<Store>, options: &ReadOptions) -> Result<Self, EngineError> {
        Self::start(store, options, Checks::Ignored)
    }

    fn start(
        store: Arc<Store>,
        options: &ReadOptions,
        checks: Checks,
    ) -> Result<Self, EngineError> {
        let shared = Arc::new(SharedReads::new(store, options, checks));
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

    /// Submits a read. Within a class, reads start in submission order.
    pub fn submit(&self, request: ReadRequest) {
        self.shared.submit(request);
    }

    /// Makes an idle or background read urgent, after the waiting urgent ones. Has no effect if it has
    /// completed or is urgent.
    pub fn promote(&self, tag: u64) {
        self.shared.promote(tag);
    }

    /// Sets whether background reads start.
    pub fn set_background(&self, background: Background) {
        self.shared.set_background(background);
    }

    /// Makes a background read idle. Has no effect if it has started or is not a background read.
    pub fn hasten(&self, tag: u64) {
        self.shared.hasten(tag);
    }

    /// Sets the number of reads in flight up to which an idle one starts. The default is half of the depth,
    /// because urgent reads wait for reads that have started. More pays off only if most idle reads are
    /// useful.
    pub fn set_idle_depth(&self, idle: IdleDepth) {
        self.shared.set_idle_depth(match idle {
            IdleDepth::Half => 0,
            IdleDepth::Full => self.shared.depth,
        });
    }

    /// Withdraws a request. Returns true if it had not started: then no [`ReadDone`] follows. Otherwise one
    /// follows or was already returned.
    pub fn withdraw(&self, tag: u64) -> bool {
        self.shared.withdraw(tag)
    }

    /// Returns a completed read, if any. Without threads, performs one read.
    pub fn try_next(&self) -> Option<ReadDone> {
        self.read_inline();
        self.shared.try_next()
    }

    /// Polls for a completed read. Stays pending while nothing is requested.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<ReadDone> {
        self.read_inline();
        self.shared.poll_next(context)
    }

    /// Returns the read counters.
    pub fn counters(&self) -> ReadCounters {
        self.shared.counters()
    }

    /// Returns the origin of read times.
    pub(crate) fn opened(&self) -> Moment {
        self.shared.opened
    }

    /// Returns the actual read method, never [`ReadMethod::Auto`].
    pub fn method(&self) -> ReadMethod {
        self.method
    }

    /// Returns whether all reads bypass the page cache.
    pub fn is_direct(&self) -> bool {
        #[cfg(target_os = "linux")]
        let files = self.shared.files.as_ref().is_some_and(plain::PlainFiles::is_direct);
        #[cfg(not(target_os = "linux"))]
        let files = false;
        files || self.shared.store().storage().passes_page_cache()
    }

    /// Returns the number of requests that are waiting or in flight, or whose results were not taken.
    pub fn outstanding(&self) -> usize {
        self.shared.outstanding()
    }

    /// Works like [`Reads::outstanding`], without background requests that have not started.
    pub fn outstanding_foreground(&self) -> usize {
        self.shared.outstanding_foreground()
    }

    /// Returns the bytes of buffers that hold planes, and of buffers kept for reuse. Their sum never exceeds
    /// the peak of planes and reads in flight.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.shared.pool.bytes()
    }

    /// Sets the maximum bytes of unused buffers.
    pub fn set_pool_bytes(&self, bytes: u64) {
        self.shared.pool.set_limit(bytes);
    }

    /// Sets the maximum bytes of planes, unused buffers and memory registered with a ring. Unused buffers may
    /// take the part not taken by planes. `spare` bytes of it are never taken by planes: there, sources of
    /// derived planes are read.
    pub fn set_memory_bytes(&self, bytes: u64, spare: u64) {
        self.shared.source_bytes.store(spare, Ordering::Relaxed);
        self.shared.pool.set_total(bytes.saturating_sub(self.shared.staging_bytes()));
    }

    /// Releases all unused buffers to the system.
    pub fn trim(&self) {
        self.shared.pool.trim();
    }

    /// Performs one read inline, if the method is inline and no result is waiting.
    fn read_inline(&self) {
        if self.method == ReadMethod::Inline
            && let Some(job) = self.shared.start_inline()
        {
            let result = fetch::fetch(&self.shared, &job);
            self.shared.finish(&job, result);
        }
    }
}

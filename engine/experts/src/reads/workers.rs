//! Reader threads and the watcher that replaces stalled ones.

use std::sync::Arc;
use std::time::Duration;

use super::ReadMethod;
#[cfg(target_os = "linux")]
use super::plain::PlainFiles;
use super::reader::read_until_closed;
use super::shared::{SharedReads, stall};
use super::thread_staging::ThreadStaging;
use super::threads::Threads;
use nestling_core::error::EngineError;
use nestling_core::sync::whole;

/// Maximum number of replacement threads for stalled reads, per unit of depth.
const REPLACEMENTS_MAX: usize = 2;

/// Threads of one [`super::Reads`].
pub(super) struct Workers {
    shared: Arc<SharedReads>,
    threads: Arc<Threads>,
    method: ReadMethod,
}

impl Workers {
    /// Starts threads for a method, or for [`ReadMethod::Threads`] if the system refuses the method.
    pub fn start(shared: &Arc<SharedReads>, method: ReadMethod) -> Result<Self, EngineError> {
        #[cfg(target_os = "linux")]
        return Self::start_with(shared, method, super::ring::start);
        #[cfg(not(target_os = "linux"))]
        Self::start_with(shared, method, |_, _| Ok(false))
    }

    /// Works like [`Workers::start`]. `start_ring` returns whether the system supports a ring.
    fn start_with(
        shared: &Arc<SharedReads>,
        method: ReadMethod,
        start_ring: fn(&Arc<SharedReads>, &Threads) -> Result<bool, EngineError>,
    ) -> Result<Self, EngineError> {
        let threads = Arc::new(Threads::default());
        let mut workers = Self { shared: Arc::clone(shared), threads, method };
        if method == ReadMethod::IoUring && start_ring(shared, &workers.threads)? {
            return Ok(workers);
        }
        workers.method = ReadMethod::Threads;
        for staging in staging_areas(shared) {
            spawn_reader(&workers.threads, shared, staging)?;
        }
        if let Some(timeout) = shared.timeout {
            let (shared, threads) = (Arc::clone(shared), Arc::clone(&workers.threads));
            let watch = move || watch_until_closed(&shared, &threads, timeout);
            workers.threads.spawn("nestling-watch", watch)?;
        }
        Ok(workers)
    }

    pub fn method(&self) -> ReadMethod {
        self.method
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.shared.close();
        self.threads.join();
    }
}

/// Returns the staging areas of all reader threads, and counts their memory.
fn staging_areas(shared: &SharedReads) -> Vec<ThreadStaging> {
    let threads = shared.reader_threads();
    #[cfg(target_os = "linux")]
    {
        let is_direct = shared.files.as_ref().is_some_and(PlainFiles::is_direct);
        let length = if is_direct { shared.longest_read() } else { 0 };
        let areas = ThreadStaging::areas(length, threads);
        let bytes: usize = areas.iter().map(|area| area.bytes().len()).sum();
        shared.set_staging_bytes(bytes as u64);
        areas
    }
    #[cfg(not(target_os = "linux"))]
    ThreadStaging::areas(0, threads)
}

fn spawn_reader(
    threads: &Threads,
    shared: &Arc<SharedReads>,
    staging: ThreadStaging,
) -> Result<(), EngineError> {
    let shared = Arc::clone(shared);
    threads.spawn("nestling-read", move || read_until_closed(&shared, staging))
}

/// Abandons stalled reads and replaces their threads, until the queue is closed.
fn watch_until_closed(shared: &Arc<SharedReads>, threads: &Threads, timeout: Duration) {
    let limit_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let period = (timeout / 4).max(Duration::from_millis(1));
    let mut replacements = shared.depth.saturating_mul(REPLACEMENTS_MAX);
    let mut state = shared.lock();
    while !state.closing {
        state.watching = state.queue.len() + state.running.len() > 0;
        if !state.watching {
            state = whole(shared.watch.wait(state));
            continue;
        }
        let waited = shared.watch.wait_timeout(state, period);
        state = whole(waited).0;
        let stalled = state.take_stalled(shared.now_ns(), limit_ns, replacements == 0);
        if stalled.is_empty() {
            continue;
        }
        drop(state);
        shared.give_up(&stalled, |job| stall(shared, job, timeout));
        let replaced = stalled.len().min(replacements);
        replacements -= replaced;
        for _ in 0..replaced {
            // If no thread can be started, reads continue on the others.
            let _ = spawn_reader(threads, shared, ThreadStaging::default());
        }
        state = shared.lock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nestling_formats::store::Store;

    use super::{ReadMethod, SharedReads, Workers};
    use crate::reads::options::{Checks, ReadOptions};
    use crate::reads::tests::{all_arrive, bundled_extents, shared};
    use crate::reads::{ReadClass, ReadRequest};

    #[test]
    fn threads_read_where_the_system_refuses_a_ring() {
        let shared = Arc::new(shared(&ReadOptions::default()));
        let workers = Workers::start_with(&shared, ReadMethod::IoUring, |_, _| Ok(false)).unwrap();
        assert_eq!(workers.method(), ReadMethod::Threads);
        all_arrive(&shared, &bundled_extents(shared.store(), 6));
        // Areas are used where the file system reads past the page cache.
        let staged = if shared.staging_bytes() > 0 { 6 } else { 0 };
        assert_eq!(shared.counters().staged, staged);
    }

    #[test]
    fn damage_in_a_staging_area_is_found() {
        let bundled =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
        let mut bytes = std::fs::read(bundled).unwrap();
        let extents = bundled_extents(&Store::open(bundled).unwrap(), 2);
        bytes[extents[1].offset as usize] ^= 1;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("damaged.nest");
        std::fs::write(&path, bytes).unwrap();
        let store = Arc::new(Store::open(&path).unwrap());
        let shared = Arc::new(SharedReads::new(store, &ReadOptions::default(), Checks::Done));
        let _workers = Workers::start(&shared, ReadMethod::Threads).unwrap();
        for (tag, extent) in (0..).zip(extents) {
            shared.submit(ReadRequest { tag, extent, class: ReadClass::Urgent });
        }
        let next = || std::iter::repeat_with(|| shared.try_next()).find_map(|done| done).unwrap();
        let mut done = [next(), next()];
        done.sort_by_key(|done| done.tag);
        assert!(done[0].result.is_ok() && done[1].result.is_err());
    }
}

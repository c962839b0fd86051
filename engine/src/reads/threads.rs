//! Threads that read, and one that looks after them.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::ReadMethod;
use super::fetch::fetch;
use super::shared::{Shared, stall};
use crate::error::EngineError;

/// How long dropping waits for reads that are under way.
const GRACE: Duration = Duration::from_secs(2);

/// Most threads that replace those whose read hangs, for each of the depth.
const REPLACEMENTS_MAX: usize = 2;

/// Those that run.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    handles: Mutex<Vec<JoinHandle<()>>>,
}

impl Threads {
    pub fn spawn(
        &self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), EngineError> {
        let thread = thread::Builder::new().name(name.to_owned());
        let handle = thread.spawn(run).map_err(EngineError::Thread)?;
        self.handles.lock().unwrap_or_else(PoisonError::into_inner).push(handle);
        Ok(())
    }

    fn spawn_reader(&self, shared: &Arc<Shared>) -> Result<(), EngineError> {
        let shared = Arc::clone(shared);
        self.spawn("nestling-read", move || read_until_closed(&shared))
    }

    /// Joins all that end in time; the rest keep what they use alive until they end.
    pub fn join(&self) {
        let deadline = Instant::now() + GRACE;
        let mut pause = Duration::from_micros(50);
        let handles =
            std::mem::take(&mut *self.handles.lock().unwrap_or_else(PoisonError::into_inner));
        for handle in handles {
            while !handle.is_finished() && Instant::now() < deadline {
                thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(10));
            }
            if handle.is_finished() {
                // A reader has nothing to say; what panics within one is a result of its read.
                let _ = handle.join();
            }
        }
    }
}

/// Threads of one [`super::Reads`].
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Arc<Threads>,
    method: ReadMethod,
}

impl Workers {
    /// Starts threads for a method, or for [`ReadMethod::Threads`] where that is refused.
    pub fn start(shared: &Arc<Shared>, method: ReadMethod) -> Result<Self, EngineError> {
        #[cfg(target_os = "linux")]
        return Self::start_with(shared, method, super::ring::start);
        #[cfg(not(target_os = "linux"))]
        Self::start_with(shared, method, |_, _| Ok(false))
    }

    /// The same; `start_ring` says whether the system gave a ring.
    fn start_with(
        shared: &Arc<Shared>,
        method: ReadMethod,
        start_ring: fn(&Arc<Shared>, &Threads) -> Result<bool, EngineError>,
    ) -> Result<Self, EngineError> {
        let threads = Arc::new(Threads::default());
        let mut workers = Self { shared: Arc::clone(shared), threads, method };
        if method == ReadMethod::IoUring && start_ring(shared, &workers.threads)? {
            return Ok(workers);
        }
        workers.method = ReadMethod::Threads;
        for _ in 0..shared.depth {
            workers.threads.spawn_reader(shared)?;
        }
        if let Some(timeout) = shared.timeout {
            let (shared, threads) = (Arc::clone(shared), Arc::clone(&workers.threads));
            let watch = move || watch_until_closed(&shared, &threads, timeout);
            workers.threads.spawn("nestling-watch", watch)?;
        }
        Ok(workers)
    }

    /// What they read by.
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

/// Reads one job after another.
pub(super) fn read_until_closed(shared: &Shared) {
    let mut state = shared.lock();
    while !state.closing {
        let Some(job) = shared.start(&mut state) else {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        if state.queue.len() > 0 {
            shared.work.notify_one();
        }
        drop(state);
        let result = fetch(shared, &job);
        shared.finish(&job, result);
        state = shared.lock();
    }
}

/// Gives up reads that take too long, and replaces their threads.
fn watch_until_closed(shared: &Arc<Shared>, threads: &Threads, timeout: Duration) {
    let limit_ns = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
    let period = (timeout / 4).max(Duration::from_millis(1));
    let mut replacements = shared.depth.saturating_mul(REPLACEMENTS_MAX);
    let mut state = shared.lock();
    while !state.closing {
        state.watching = state.queue.len() + state.running.len() > 0;
        if !state.watching {
            state = shared.watch.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        let waited = shared.watch.wait_timeout(state, period);
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        let stalled = state.take_stalled(shared.now_ns(), limit_ns, replacements == 0);
        if stalled.is_empty() {
            continue;
        }
        drop(state);
        shared.give_up(&stalled, |job| stall(shared, job, timeout));
        let replaced = stalled.len().min(replacements);
        replacements -= replaced;
        for _ in 0..replaced {
            // Without a thread more, reads go on with those that are left.
            let _ = threads.spawn_reader(shared);
        }
        state = shared.lock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ReadMethod, Workers};
    use crate::reads::options::ReadOptions;
    use crate::reads::tests::{all_arrive, bundled_extents, shared};

    #[test]
    fn threads_read_where_the_system_refuses_a_ring() {
        let shared = Arc::new(shared(&ReadOptions::default()));
        let workers = Workers::start_with(&shared, ReadMethod::IoUring, |_, _| Ok(false)).unwrap();
        assert_eq!(workers.method(), ReadMethod::Threads);
        all_arrive(&shared, &bundled_extents(shared.store(), 6));
    }
}

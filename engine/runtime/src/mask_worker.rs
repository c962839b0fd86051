//! Threads that compute masks while the model computes the step.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use nestling_core::sync::thread::{self, JoinHandle};
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};

use crate::constraint::{Constraint, ConstraintError};
use nestling_text::TokenMask;

/// Maximum number of threads. A mask takes a fraction of a millisecond; all masks of a large step take several.
const THREADS_MAX: usize = 4;

pub(crate) struct MaskResult {
    pub constraint: Box<dyn Constraint>,
    pub mask: TokenMask,
    /// True if the output may end here, or the error of the constraint.
    pub may_end: Result<bool, ConstraintError>,
}

struct Job {
    constraint: Box<dyn Constraint>,
    mask: TokenMask,
    done: SyncSender<MaskResult>,
}

impl Job {
    /// Computes the mask. Constraints are foreign code, so a panic is an error of this constraint alone.
    fn run(self) {
        let Self { mut constraint, mut mask, done } = self;
        mask.forbid_all();
        let computed = catch_unwind(AssertUnwindSafe(|| {
            constraint.mask(&mut mask)?;
            constraint.may_end()
        }));
        let may_end = computed.unwrap_or(Err(ConstraintError::Panicked));
        // The receiver is gone if the generation has ended.
        drop(done.send(MaskResult { constraint, mask, may_end }));
    }
}

/// Computes masks for all generations of an engine, on threads started on demand.
#[derive(Debug, Default)]
pub(crate) struct MaskWorker {
    shared: Arc<MaskQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct MaskQueue {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Threads that wait for a job.
    idle: usize,
    closed: bool,
}

impl std::fmt::Debug for MaskQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({} jobs)", self.lock().jobs.len())
    }
}

impl MaskQueue {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        whole(self.queue.lock())
    }

    fn run(&self) {
        let mut queue = self.lock();
        loop {
            if let Some(job) = queue.jobs.pop_front() {
                drop(queue);
                job.run();
                queue = self.lock();
            } else if queue.closed {
                return;
            } else {
                queue.idle += 1;
                queue = whole(self.changed.wait(queue));
                queue.idle -= 1;
            }
        }
    }
}

impl MaskWorker {
    /// Starts computing a mask. Computes it on the caller's thread if no thread can be spawned.
    pub fn compute(
        &self,
        constraint: Box<dyn Constraint>,
        mask: TokenMask,
    ) -> Receiver<MaskResult> {
        let (done, masked) = sync_channel(1);
        let job = Job { constraint, mask, done };
        if !self.has_threads() {
            job.run();
            return masked;
        }
        let mut queue = self.shared.lock();
        queue.jobs.push_back(job);
        let waiting = queue.jobs.len() > queue.idle;
        drop(queue);
        self.shared.changed.notify_one();
        if waiting {
            self.add_thread();
        }
        masked
    }

    /// Returns true if at least one thread runs, and starts the first one if necessary.
    fn has_threads(&self) -> bool {
        let is_empty = whole(self.threads.lock()).is_empty();
        if is_empty && !cfg!(target_family = "wasm") {
            self.add_thread();
        }
        !whole(self.threads.lock()).is_empty()
    }

    fn add_thread(&self) {
        let mut threads = whole(self.threads.lock());
        if threads.len() >= THREADS_MAX {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let builder = thread::Builder::new().name("nestling-masks".into());
        match builder.spawn(move || shared.run()) {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::debug!(%error, "no thread for masks"),
        }
    }
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        for thread in whole(self.threads.lock()).drain(..) {
            // A panic of a job was reported already.
            drop(thread.join());
        }
    }
}

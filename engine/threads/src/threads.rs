//! A persistent thread pool for work that is split into parts in advance.
//!
//! The caller decides the division into parts from the shapes alone, and a part's result does not depend on
//! the thread that runs it. The number of threads therefore never changes a result. After each job, workers
//! spin for a short time, since the next job follows within microseconds during a step; then they yield, then
//! they park. docs/perf/026 compares the cost of a fork and join with alternatives.
#![expect(unsafe_code, reason = "lends a closure to threads that outlive it; see `Lent`")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

use nestling_core::sync::whole;

use crate::affinity::ThreadPlacement;

/// Number of spins of a waiting thread, a few microseconds.
const SPINS: u32 = 100;

/// Number of yields after spinning, so that a part whose thread has no core gets one. After them, the thread
/// parks.
const YIELDS: u32 = 100;

type Job = dyn Fn(usize) + Sync;

/// A closure lent to the workers for the duration of one [`ThreadPool::run`].
#[derive(Clone, Copy)]
struct BorrowedJob(*const Job);

// SAFETY: the closure is `Sync`, so shared calls from any thread are sound; `run` returns only after every
// worker is done with the pointer.
unsafe impl Send for BorrowedJob {}

/// State shared by workers and caller.
struct PoolState {
    /// Job counter; a change signals that `job` is new.
    epoch: AtomicUsize,
    job: Mutex<Option<(BorrowedJob, usize)>>,
    next_part: AtomicUsize,
    /// Number of workers that have not finished the current job.
    busy: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
    caller: Mutex<Option<Thread>>,
}

struct Worker {
    handle: JoinHandle<()>,
    parked: Arc<AtomicBool>,
}

/// Threads that run the parts of one job at a time. With one thread, everything runs inline.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<Worker>,
    /// Held during a job, so that jobs of several callers run one at a time.
    running: Mutex<()>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadPool").field("threads", &self.threads()).finish()
    }
}

impl ThreadPool {
    /// Creates a pool of `threads` threads, including the caller of [`Self::run`].
    ///
    /// If threads cannot be started, as on wasm, the pool has fewer.
    pub fn new(threads: usize) -> Self {
        Self::placed(threads, ThreadPlacement::Free)
    }

    /// Does the same as [`Self::new`], and places each thread that it starts. The first place is left to the
    /// caller.
    pub fn placed(threads: usize, placement: ThreadPlacement) -> Self {
        let shared = Arc::new(PoolState {
            epoch: AtomicUsize::new(0),
            job: Mutex::new(None),
            next_part: AtomicUsize::new(0),
            busy: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            caller: Mutex::new(None),
        });
        let workers = (1..threads).map_while(|index| spawn(index, placement, &shared)).collect();
        Self { shared, workers, running: Mutex::new(()) }
    }

    /// Returns the number of threads that work on a job, including the caller.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(0)`, …, `job(parts - 1)`, each once, and returns when all are done.
    ///
    /// A part must not call `run` of the same pool.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use nestling_threads::threads::ThreadPool;
    ///
    /// let sum = AtomicUsize::new(0);
    /// ThreadPool::new(2).run(10, &|part| {
    ///     sum.fetch_add(part, Ordering::Relaxed);
    /// });
    /// assert_eq!(sum.into_inner(), 45);
    /// ```
    ///
    /// # Panics
    /// Panics if a part panicked, after all parts are done or abandoned.
    pub fn run(&self, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() || parts <= 1 {
            (0..parts).for_each(job);
            return;
        }
        let running = whole(self.running.lock());
        let shared = &*self.shared;
        // SAFETY: only the lifetime is changed; `finish` below waits until no worker uses it.
        let lent = BorrowedJob(unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const Job>(job)
        });
        *lock(&shared.caller) = Some(std::thread::current());
        *lock(&shared.job) = Some((lent, parts));
        shared.next_part.store(0, Ordering::Relaxed);
        shared.busy.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.parked.load(Ordering::SeqCst) {
                worker.handle.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| take_parts(shared, parts, job)));
        wait(|| shared.busy.load(Ordering::Acquire) == 0);
        *lock(&shared.job) = None;
        let panicked = shared.panicked.swap(false, Ordering::AcqRel);
        drop(running);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        if panicked {
            resume_unwind(Box::new("a part of a job panicked on another thread"));
        }
    }
}

/// A pointer to items of which each part uses a different one.
struct Items<T>(*mut T);

// SAFETY: `for_each_mut` gives each item to a single part, and items may move between threads.
unsafe impl<T: Send> Sync for Items<T> {}

impl ThreadPool {
    /// Calls `job(index, item)` for each item once, and returns when all are done.
    ///
    /// ```
    /// use nestling_threads::threads::ThreadPool;
    ///
    /// let mut squares = [0; 8];
    /// ThreadPool::new(2).for_each_mut(&mut squares, &|index, square| *square = index * index);
    /// assert_eq!(squares[7], 49);
    /// ```
    ///
    /// # Panics
    /// Panics like [`Self::run`].
    pub fn for_each_mut<T: Send>(&self, items: &mut [T], job: &(dyn Fn(usize, &mut T) + Sync)) {
        let (count, items) = (items.len(), Items(items.as_mut_ptr()));
        let items = &items;
        self.run(count, &|index| {
            // SAFETY: `index` is below the length, and `run` uses each once, so that no other
            // reference to the item exists.
            let item = unsafe { &mut *items.0.add(index) };
            job(index, item);
        });
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.handle.thread().unpark();
            // A worker catches the panics of its parts, so joining it cannot fail.
            let _ = worker.handle.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    whole(mutex.lock())
}

/// Spins or yields once. Returns whether it is time to park.
fn pause(looks: &mut u32) -> bool {
    if *looks >= SPINS + YIELDS {
        return true;
    }
    if *looks < SPINS {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
    *looks += 1;
    false
}

/// Spins, yields, then parks, until `done` returns true. Spurious wake-ups are handled.
fn wait(done: impl Fn() -> bool) {
    let mut looks = 0;
    while !done() {
        if pause(&mut looks) {
            std::thread::park();
        }
    }
}

fn take_parts(shared: &PoolState, parts: usize, job: &(dyn Fn(usize) + Sync)) {
    loop {
        let part = shared.next_part.fetch_add(1, Ordering::Relaxed);
        if part >= parts {
            return;
        }
        job(part);
    }
}

fn spawn(index: usize, placement: ThreadPlacement, shared: &Arc<PoolState>) -> Option<Worker> {
    let parked = Arc::new(AtomicBool::new(false));
    let (shared, flag) = (Arc::clone(shared), Arc::clone(&parked));
    let builder = std::thread::Builder::new().name(format!("nestling-{index}"));
    let handle = builder.spawn(move || {
        placement.place(index);
        work(&shared, &flag);
    });
    let handle = handle.ok()?;
    Some(Worker { handle, parked })
}

fn work(shared: &PoolState, parked: &AtomicBool) {
    let mut seen = 0;
    while next_epoch(shared, parked, &mut seen) {
        if let Some((lent, parts)) = *lock(&shared.job) {
            let run = || {
                // SAFETY: `busy` counts this worker, so `ThreadPool::run` has not returned and the
                // closure is alive.
                let job = unsafe { &*lent.0 };
                take_parts(shared, parts, job);
            };
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                shared.panicked.store(true, Ordering::Release);
                shared.next_part.store(parts, Ordering::Relaxed);
            }
        }
        let caller = lock(&shared.caller).clone();
        if shared.busy.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

/// Waits for a job that this worker has not seen. Returns `false` if the pool is being dropped.
fn next_epoch(shared: &PoolState, parked: &AtomicBool, seen: &mut usize) -> bool {
    let mut looks = 0;
    loop {
        if shared.stop.load(Ordering::SeqCst) {
            return false;
        }
        let epoch = shared.epoch.load(Ordering::SeqCst);
        if epoch != *seen {
            parked.store(false, Ordering::Relaxed);
            *seen = epoch;
            return true;
        }
        if pause(&mut looks) && parked.swap(true, Ordering::SeqCst) {
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests;

//! Notification of Python event loops about new events.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle, Thread};

use pyo3::prelude::*;

use crate::call::Owner;
use crate::error::Failure;

/// Notifier threads that may still run. `stop_notifiers` joins them before the interpreter is finalized. A
/// thread that requests the interpreter lock after that would be terminated inside Rust code, which aborts
/// the process.
static THREADS: Mutex<Threads> = Mutex::new(Threads { is_stopped: false, running: Vec::new() });

#[derive(Debug)]
struct Threads {
    is_stopped: bool,
    running: Vec<NotifierThread>,
}

#[derive(Debug)]
struct NotifierThread {
    owner: Owner,
    shared: Arc<NotifierState>,
    thread: JoinHandle<()>,
}

/// Stops all notifier threads and joins them. Registered with `atexit`.
#[pyfunction]
pub(crate) fn stop_notifiers(py: Python<'_>) {
    // Default: in a forked child the lock may be held by a thread that does not exist there, and nothing can
    // be joined.
    let Ok(mut threads) = THREADS.try_lock() else { return };
    threads.is_stopped = true;
    let running = std::mem::take(&mut threads.running);
    drop(threads);
    py.detach(|| {
        for NotifierThread { owner, shared, thread } in running {
            if !owner.is_this_process() {
                std::mem::forget(thread);
                continue;
            }
            shared.ended.store(true, Ordering::Release);
            thread.thread().unpark();
            // A panic of a callback thread can be ignored at exit.
            let _ = thread.join();
        }
    });
}

/// A thread that calls Python callbacks, so that the engine's threads never wait for the interpreter lock.
/// The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<NotifierState>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct NotifierState {
    callback: Mutex<Option<Py<PyAny>>>,
    woken: AtomicBool,
    ended: AtomicBool,
}

impl Notifier {
    /// # Errors
    /// Returns an error if the thread cannot be created.
    pub(crate) fn start() -> Result<Self, Failure> {
        let shared = Arc::new(NotifierState::default());
        let seen = Arc::clone(&shared);
        let work = move || {
            while !seen.ended.load(Ordering::Acquire) {
                thread::park();
                if seen.ended.load(Ordering::Acquire) {
                    return;
                }
                if seen.woken.swap(false, Ordering::AcqRel) {
                    seen.call();
                }
            }
        };
        let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
        if threads.is_stopped {
            return Err(Failure::ends());
        }
        let started = thread::Builder::new().name("nestling-notify".into()).spawn(work);
        let started = started.map_err(|error| Failure::caller(format!("a thread: {error}")))?;
        let thread = started.thread().clone();
        let (ended, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut threads.running)
            .into_iter()
            .partition(|one| one.owner.is_this_process() && one.thread.is_finished());
        threads.running = kept;
        drop(ended);
        let running = NotifierThread {
            owner: Owner::current(),
            shared: Arc::clone(&shared),
            thread: started,
        };
        threads.running.push(running);
        Ok(Self { shared, thread })
    }

    /// Returns a waker that calls `callback` once on the thread. It replaces the previous callback.
    pub(crate) fn waker(&self, callback: Py<PyAny>) -> Waker {
        *self.shared.callback.lock().unwrap_or_else(PoisonError::into_inner) = Some(callback);
        let (shared, thread) = (Arc::clone(&self.shared), self.thread.clone());
        Waker::from(Arc::new(Notify { shared, thread }))
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

impl NotifierState {
    fn call(&self) {
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(callback) = callback else { return }; // Default: it was called already.
        // A closed event loop and a finalized interpreter have no waiters, so errors are ignored.
        let _ = Python::try_attach(|py| callback.call0(py).map(drop));
    }
}

struct Notify {
    shared: Arc<NotifierState>,
    thread: Thread,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.shared.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

//! Telling an event loop of Python that an event is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::thread::{self, Thread};

use pyo3::prelude::*;

use crate::error::Failure;

/// A thread that calls back into Python, so that those of the engine never wait for the interpreter. It ends with this.
#[derive(Debug)]
pub(crate) struct Notifier {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    callback: Mutex<Option<Py<PyAny>>>,
    woken: AtomicBool,
    ended: AtomicBool,
}

impl Notifier {
    /// # Errors
    /// The system has no further thread.
    pub(crate) fn start() -> Result<Self, Failure> {
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let work = move || {
            while !seen.ended.load(Ordering::Acquire) {
                thread::park();
                if seen.woken.swap(false, Ordering::AcqRel) {
                    seen.call();
                }
            }
        };
        let started = thread::Builder::new().name("nestling-notify".into()).spawn(work);
        let thread = started.map_err(|error| Failure::caller(format!("a thread: {error}")))?;
        Ok(Self { shared, thread: thread.thread().clone() })
    }

    /// What wakes the thread; `callback` is called once then, in place of the one before it.
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

impl Shared {
    fn call(&self) {
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(callback) = callback else { return }; // Default: it was called already.
        // An event loop that was closed meanwhile has nobody who waits, and so has an interpreter that ends.
        let _ = Python::try_attach(|py| callback.call0(py).map(drop));
    }
}

struct Notify {
    shared: Arc<Shared>,
    thread: Thread,
}

impl Wake for Notify {
    fn wake(self: Arc<Self>) {
        self.shared.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

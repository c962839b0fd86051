//! Progress reports to a Python callback, on the thread that waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::prelude::*;

#[derive(Debug, Default)]
pub(crate) struct ByteCounters {
    done: AtomicU64,
    total: AtomicU64,
}

impl ByteCounters {
    pub(crate) fn set(&self, done: u64, total: u64) {
        self.total.store(total, Ordering::Release);
        self.done.store(done, Ordering::Release);
    }

    pub(crate) fn set_done(&self, done: u64) {
        self.done.store(done, Ordering::Release);
    }
}

pub(crate) struct Progress {
    told: Arc<ByteCounters>,
    callback: Option<Py<PyAny>>,
    last: (u64, u64),
}

impl Progress {
    pub(crate) fn new(callback: Option<Py<PyAny>>) -> Self {
        Self { told: Arc::default(), callback, last: (0, 0) }
    }

    pub(crate) fn counters(&self) -> Arc<ByteCounters> {
        Arc::clone(&self.told)
    }

    /// Calls the callback if the counters changed.
    pub(crate) fn tell(&mut self, py: Python<'_>) -> PyResult<()> {
        let (done, total) =
            (self.told.done.load(Ordering::Acquire), self.told.total.load(Ordering::Acquire));
        match &self.callback {
            Some(callback) if (done, total) != self.last => {
                self.last = (done, total);
                callback.call1(py, (done, total)).map(drop)
            }
            _ => Ok(()),
        }
    }
}

//! Waiting for the engine while checking for signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::error::Failure;

/// Interval between checks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

struct Unpark {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Polls until the result is ready. Returns `None` after `timeout`. Checks for signals and calls `meanwhile`
/// every 50 ms; an exception raised there ends the wait. Called without the interpreter lock.
pub(crate) fn wait<T>(
    timeout: Option<Duration>,
    meanwhile: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>, Failure> {
    // Default: a deadline beyond the range of the clock means no timeout.
    let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let unpark = Arc::new(Unpark { thread: thread::current(), woken: AtomicBool::new(false) });
    let waker = Waker::from(Arc::clone(&unpark));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&mut context) {
            return Ok(Some(value));
        }
        let mut slice = Instant::now() + SLICE;
        while !unpark.woken.swap(false, Ordering::Acquire) {
            let now = Instant::now();
            if until.is_some_and(|until| until <= now) {
                return Ok(None);
            }
            if slice <= now {
                look(meanwhile)?;
                slice = Instant::now() + SLICE;
                continue;
            }
            let end = until.map_or(slice, |until| until.min(slice));
            thread::park_timeout(end.saturating_duration_since(now));
        }
    }
}

/// Checks for signals and calls `meanwhile`.
pub(crate) fn look(meanwhile: &mut dyn FnMut(Python<'_>) -> PyResult<()>) -> Result<(), Failure> {
    let looked = Python::try_attach(|py| {
        py.check_signals()?;
        meanwhile(py)
    });
    Ok(looked.ok_or_else(Failure::ends)??)
}

/// Runs a future to completion.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let mut future = std::pin::pin!(future);
    let done = wait(None, &mut |_| Ok(()), |context| future.as_mut().poll(context))?;
    done.ok_or_else(Failure::ends)
}

//! Waiting for the engine, with an ear for signals.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::error::Failure;

/// How long nobody looks for signals.
pub(crate) const SLICE: Duration = Duration::from_millis(50);

/// Wakes a thread that waits.
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

/// Waits until `poll` is ready, at most for `timeout`; none where it was not in time. Every 50 ms it looks for signals
/// and calls `meanwhile`, and what these raise ends it. Called without the interpreter.
pub(crate) fn wait<T>(
    timeout: Option<Duration>,
    meanwhile: &mut dyn FnMut(Python<'_>) -> PyResult<()>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Result<Option<T>, Failure> {
    // Default: a time that no clock can tell is for ever.
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

/// Looks for signals, and calls what is to be called meanwhile.
pub(crate) fn look(meanwhile: &mut dyn FnMut(Python<'_>) -> PyResult<()>) -> Result<(), Failure> {
    let looked = Python::try_attach(|py| {
        py.check_signals()?;
        meanwhile(py)
    });
    Ok(looked.ok_or_else(Failure::ends)??)
}

/// Waits for a future to its end.
pub(crate) fn wait_for<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let mut future = std::pin::pin!(future);
    let done = wait(None, &mut |_| Ok(()), |context| future.as_mut().poll(context))?;
    done.ok_or_else(Failure::ends)
}

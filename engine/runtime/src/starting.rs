//! Background start of generations, so that asynchronous callers never block.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use nestling_core::background::Background;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// A generation being started on an engine thread, which renders messages and encodes text.
///
/// Polling never blocks. Dropping it cancels the start.
#[derive(Debug)]
pub(crate) struct PendingStart<T> {
    work: Background<Result<T, EngineError>>,
    cancel: CancelToken,
    has_started: bool,
}

impl<T: Send + 'static> PendingStart<T> {
    /// Runs `start` on a thread. At most `most` starts run at a time.
    ///
    /// # Errors
    /// Fails with [`EngineError::Busy`] if `most` starts are running, or with [`EngineError::Thread`] if no
    /// thread can be spawned.
    pub fn new(
        starting: &Arc<AtomicUsize>,
        most: usize,
        start: impl FnOnce(&CancelToken) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<Self, EngineError> {
        let place = StartPermit::take(starting, most)?;
        let cancel = CancelToken::new();
        let told = cancel.clone();
        let work = Background::start("the start of a generation", move || {
            let _place = place;
            start(&told)
        })?;
        Ok(Self { work, cancel, has_started: false })
    }
}

impl<T: Send + 'static> Future for PendingStart<T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let started = std::task::ready!(Pin::new(&mut self.work).poll(context));
        self.has_started = true;
        Poll::Ready(started.flatten())
    }
}

impl<T> Drop for PendingStart<T> {
    fn drop(&mut self) {
        if !self.has_started {
            self.cancel.cancel();
        }
    }
}

/// A slot in the count of running starts, released on drop.
struct StartPermit(Arc<AtomicUsize>);

impl StartPermit {
    fn take(starting: &Arc<AtomicUsize>, most: usize) -> Result<Self, EngineError> {
        let waiting = starting.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(starting));
        if waiting >= most {
            return Err(EngineError::Busy { waiting, pages_wanted: 0, pages_free: 0 });
        }
        Ok(place)
    }
}

impl Drop for StartPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

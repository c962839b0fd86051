//! Generations that are started elsewhere, so that whoever asks for them never waits.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use nestling_core::background::Background;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// Something that is about to start on a thread of the engine: messages are rendered and texts become tokens there.
///
/// Polling it never waits. Dropping it cancels what it starts.
#[derive(Debug)]
pub(crate) struct Starting<T> {
    work: Background<Result<T, EngineError>>,
    cancel: CancelToken,
    has_started: bool,
}

impl<T: Send + 'static> Starting<T> {
    /// Does `start` on a thread, one of at most `most`.
    ///
    /// # Errors
    /// [`EngineError::Busy`]; [`EngineError::Thread`].
    pub fn new(
        starting: &Arc<AtomicUsize>,
        most: usize,
        start: impl FnOnce(&CancelToken) -> Result<T, EngineError> + Send + 'static,
    ) -> Result<Self, EngineError> {
        let place = Place::take(starting, most)?;
        let cancel = CancelToken::new();
        let told = cancel.clone();
        let work = Background::start("the start of a generation", move || {
            let _place = place;
            start(&told)
        })?;
        Ok(Self { work, cancel, has_started: false })
    }
}

impl<T: Send + 'static> Future for Starting<T> {
    type Output = Result<T, EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let started = std::task::ready!(Pin::new(&mut self.work).poll(context));
        self.has_started = true;
        Poll::Ready(started.flatten())
    }
}

impl<T> Drop for Starting<T> {
    fn drop(&mut self) {
        if !self.has_started {
            self.cancel.cancel();
        }
    }
}

/// A place among those that start.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(starting: &Arc<AtomicUsize>, most: usize) -> Result<Self, EngineError> {
        let waiting = starting.fetch_add(1, Ordering::Relaxed);
        let place = Self(Arc::clone(starting));
        if waiting >= most {
            return Err(EngineError::Busy { waiting, pages_wanted: 0, pages_free: 0 });
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

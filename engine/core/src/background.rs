//! Work on a separate thread, as a future for any async runtime.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::error::EngineError;
use crate::sync::{Mutex, thread, whole};

/// Result of work on a separate thread, as a future. It needs no runtime, and polling it never blocks.
///
/// The work runs to its end even if the future is dropped; the result is then discarded. Use a
/// [`crate::CancelToken`] for work that should stop.
#[derive(Debug)]
#[must_use = "the work continues, but its result is lost"]
pub struct Background<T> {
    shared: Arc<WorkCell<T>>,
}

#[derive(Debug)]
struct WorkCell<T> {
    what: &'static str,
    state: Mutex<WorkState<T>>,
}

#[derive(Debug)]
struct WorkState<T> {
    made: Option<T>,
    /// Set when the work has returned or panicked.
    ended: bool,
    waker: Option<Waker>,
}

impl<T: Send + 'static> Background<T> {
    /// Starts `work` on a thread; without thread support it runs inside this call. `what` names the work in
    /// errors.
    ///
    /// # Errors
    /// [`EngineError::Thread`] if the platform cannot start a thread.
    pub fn start(
        what: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Self, EngineError> {
        let state = Mutex::new(WorkState { made: None, ended: false, waker: None });
        let shared = Arc::new(WorkCell { what, state });
        let end = End(Arc::clone(&shared));
        let run = move || {
            let made = work();
            whole(end.0.state.lock()).made = Some(made);
            drop(end);
        };
        if cfg!(target_family = "wasm") {
            run();
        } else {
            let spawned = thread::Builder::new().name("nestling-background".into()).spawn(run);
            spawned.map_err(EngineError::Thread)?;
        }
        Ok(Self { shared })
    }
}

impl<T> Future for Background<T> {
    type Output = Result<T, EngineError>;

    /// [`EngineError::Panicked`] if the work panicked.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = whole(self.shared.state.lock());
        if !state.ended {
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let panicked = EngineError::Panicked { what: self.shared.what };
        Poll::Ready(state.made.take().ok_or(panicked))
    }
}

/// Guard that marks the work as ended, including after a panic.
struct End<T>(Arc<WorkCell<T>>);

impl<T> Drop for End<T> {
    fn drop(&mut self) {
        let mut state = whole(self.0.state.lock());
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        // Called outside the lock, because a waker is foreign code.
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Background;
    use crate::driver::block_on;
    use crate::error::EngineError;
    use std::time::Duration;

    #[test]
    fn what_a_thread_makes_arrives() {
        let slow = || {
            std::thread::sleep(Duration::from_millis(20));
            7
        };
        assert_eq!(block_on(Background::start("a number", slow).unwrap()).unwrap(), 7);
        let at_once = Background::start("a number", || 8).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(block_on(at_once).unwrap(), 8);
    }

    #[test]
    fn a_panic_is_an_error_that_names_the_work() {
        let work: fn() -> u32 = || panic!("as asked");
        let error = block_on(Background::start("a number", work).unwrap()).unwrap_err();
        assert!(matches!(error, EngineError::Panicked { what: "a number" }), "{error}");
    }
}

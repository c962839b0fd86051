//! Running generations.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream as _;
use nestling::{CancelToken, EngineError, Event, EventStream};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::arrays::Array;
use crate::call::{HandleCell, Owner, call};
use crate::error::Failure;
use crate::event;
use crate::gather::TokenRows;
use crate::notify::Notifier;
use crate::signal::Signal;
use crate::wait::{self, wait};

/// A running generation. Dropping it cancels it.
#[pyclass(frozen, module = "nestling._core")]
pub(crate) struct Generation {
    owner: Owner,
    cancel: CancelToken,
    state: HandleCell<StreamState>,
}

pub(crate) struct StreamState {
    events: EventStream,
    notifier: Option<Notifier>,
    ended: bool,
    /// Time of the last check for signals, for calls that read many events.
    looked: Instant,
}

/// Next event, or `None` if there is none yet.
type Next = Option<Result<Event, EngineError>>;

impl StreamState {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Next> {
        match self.ended {
            true => Poll::Ready(None),
            false => Pin::new(&mut self.events).poll_next(context),
        }
    }

    fn note(&mut self, next: Next) -> Result<Option<Event>, Failure> {
        self.ended = self.ended || !matches!(next, Some(Ok(_)));
        Ok(next.transpose()?)
    }

    /// Waits for the next event. Returns `None` after the last. A signal that interrupts the wait ends the
    /// generation.
    pub(crate) fn next(&mut self) -> Result<Option<Event>, Failure> {
        match self.wait(None)? {
            Some(next) => self.note(next),
            None => Err(Failure::ends()),
        }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<Next>, Failure> {
        let mut waited = wait(timeout, &mut |_| Ok(()), |context| self.poll(context));
        // Signals must also be noticed if events arrive so fast that `wait` never checks.
        if waited.is_ok() && self.looked.elapsed() >= wait::SLICE {
            self.looked = Instant::now();
            if let Err(raised) = wait::look(&mut |_| Ok(())) {
                waited = Err(raised);
            }
        }
        if waited.is_err() {
            self.events.cancel();
        }
        waited
    }
}

/// Returns False if there is no event yet, a tuple for an event, or None at the end.
fn to_python(py: Python<'_>, polled: Poll<Option<Event>>) -> PyResult<Py<PyAny>> {
    match polled {
        Poll::Pending => Ok(false.into_pyobject(py)?.to_owned().into_any().unbind()),
        Poll::Ready(None) => Ok(py.None()),
        Poll::Ready(Some(event)) => Ok(event::tuple(py, event)?.into_any().unbind()),
    }
}

impl Generation {
    pub(crate) fn new(generation: nestling::Generation) -> Self {
        let events = generation.into_stream();
        let cancel = events.cancel_token();
        let state = StreamState { events, notifier: None, ended: false, looked: Instant::now() };
        Self { owner: Owner::current(), cancel, state: HandleCell::new("generation", state) }
    }

    /// Reads events. A signal that interrupts the read cancels the generation.
    fn reading<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce() -> Result<T, Failure> + Send,
    ) -> PyResult<T> {
        let mut done = false;
        let read = call(py, || work().inspect(|_| done = true));
        if read.is_err() && done {
            self.cancel.cancel();
        }
        read
    }
}

#[pymethods]
impl Generation {
    /// Waits for the next event and returns it as a tuple, or None after the last.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let next = self.reading(py, || self.state.with(StreamState::next))?;
        next.map(|event| event::tuple(py, event)).transpose()
    }

    /// Returns the next event as a tuple, None after the last, or False after a timeout in seconds.
    fn poll(&self, py: Python<'_>, seconds: f64) -> PyResult<Py<PyAny>> {
        let timeout = Duration::try_from_secs_f64(seconds)
            .map_err(|error| Failure::caller(format!("timeout: {error}")).raise(py))?;
        let polled = self.reading(py, || {
            self.state.with(|state| match state.wait(Some(timeout))? {
                None => Ok(Poll::Pending),
                Some(next) => Ok(Poll::Ready(state.note(next)?)),
            })
        });
        to_python(py, polled?)
    }

    /// Polls like `poll(0)`. If the result is False, `callback` is called once on another thread when there
    /// is more.
    fn poll_or_call(&self, py: Python<'_>, callback: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let polled = self.reading(py, || {
            self.state.with(|state| {
                if state.notifier.is_none() {
                    state.notifier = Some(Notifier::start()?);
                }
                let Some(notifier) = &state.notifier else { return Err(Failure::ends()) };
                let waker = notifier.waker(callback);
                match state.poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => Ok(Poll::Pending),
                    Poll::Ready(next) => Ok(Poll::Ready(state.note(next)?)),
                }
            })
        });
        to_python(py, polled?)
    }

    /// Polls like `poll(0)`. If the result is False, `signal` reports `number` once there is more.
    fn poll_or_signal(&self, py: Python<'_>, signal: &Signal, number: u64) -> PyResult<Py<PyAny>> {
        let polled = self.reading(py, || {
            self.state.with(|state| {
                let waker = signal.waker(number);
                match state.poll(&mut Context::from_waker(&waker)) {
                    Poll::Pending => Ok(Poll::Pending),
                    Poll::Ready(next) => Ok(Poll::Ready(state.note(next)?)),
                }
            })
        });
        to_python(py, polled?)
    }

    /// Reads the remaining events into arrays: tokens and log-probabilities of prompt and output, and hidden
    /// rows. With a `width` above 0, the log-probabilities of the whole vocabulary are included.
    fn gather(&self, py: Python<'_>, width: usize) -> PyResult<Vec<Array>> {
        let gathered = self.reading(py, || {
            self.state.with(|state| {
                let mut gathered = TokenRows::new(width);
                while let Some(event) = state.next()? {
                    gathered.take(event)?;
                }
                Ok(gathered)
            })
        });
        Ok(gathered?.arrays())
    }

    /// Requests cancellation without waiting.
    fn cancel(&self) {
        if self.owner.is_this_process() {
            self.cancel.cancel();
        }
    }

    /// Cancels the generation and closes the handle.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.cancel();
        call(py, || self.state.close())
    }
}

//! Wake-ups of event loops through a file descriptor, without a thread that holds the interpreter lock.

#[cfg(unix)]
use std::io::{self, Read, Write};
#[cfg(unix)]
use std::os::{fd::AsRawFd, unix::net::UnixStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};

#[cfg(not(unix))]
use pyo3::exceptions::PyNotImplementedError;
use pyo3::prelude::*;

/// A socket that becomes readable when a generation has an event, for `loop.add_reader`. One event loop uses it
/// for all its answers, which numbers identify.
#[pyclass(frozen, module = "nestling._core")]
#[derive(Debug)]
pub(crate) struct Signal {
    shared: Arc<SignalState>,
}

#[derive(Debug)]
struct SignalState {
    /// Numbers of the answers that have events. The socket holds a byte while there are any.
    ready: Mutex<Vec<u64>>,
    #[cfg(unix)]
    read: UnixStream,
    #[cfg(unix)]
    write: UnixStream,
}

#[derive(Debug)]
struct ReadyAnswer {
    shared: Arc<SignalState>,
    number: u64,
}

impl Wake for ReadyAnswer {
    fn wake(self: Arc<Self>) {
        self.shared.add(self.number);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.add(self.number);
    }
}

impl SignalState {
    fn add(&self, number: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = ready.is_empty();
        if !ready.contains(&number) {
            ready.push(number);
        }
        drop(ready);
        #[cfg(unix)]
        if is_first {
            // One byte always fits: `take` empties the socket before the list.
            let _ = (&self.write).write(&[1]);
        }
        let _ = is_first;
    }

    fn take(&self) -> Vec<u64> {
        #[cfg(unix)]
        {
            let mut bytes = [0; 64];
            while matches!((&self.read).read(&mut bytes), Ok(64)) {}
        }
        std::mem::take(&mut *self.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Signal {
    /// Creates a waker that adds an answer's number to the list.
    pub(crate) fn waker(&self, number: u64) -> Waker {
        Waker::from(Arc::new(ReadyAnswer { shared: Arc::clone(&self.shared), number }))
    }

    #[cfg(unix)]
    fn open() -> io::Result<Self> {
        let (read, write) = UnixStream::pair()?;
        read.set_nonblocking(true)?;
        write.set_nonblocking(true)?;
        Ok(Self { shared: Arc::new(SignalState { ready: Mutex::default(), read, write }) })
    }
}

#[pymethods]
impl Signal {
    /// # Errors
    /// Raises `NotImplementedError` on systems whose event loops cannot wait for such sockets.
    #[new]
    fn new() -> PyResult<Self> {
        #[cfg(unix)]
        return Ok(Self::open()?);
        #[cfg(not(unix))]
        Err(PyNotImplementedError::new_err("sockets of this system cannot be awaited"))
    }

    /// Returns the file descriptor to wait for.
    fn fileno(&self) -> PyResult<i32> {
        #[cfg(unix)]
        return Ok(self.shared.read.as_raw_fd());
        #[cfg(not(unix))]
        Err(PyNotImplementedError::new_err("there is no file descriptor"))
    }

    /// Returns the numbers of the answers that have events, and resets the signal.
    fn take(&self) -> Vec<u64> {
        self.shared.take()
    }
}

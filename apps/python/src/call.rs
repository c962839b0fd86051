//! Calls into the engine, made without holding the interpreter lock.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::{Mutex, MutexGuard, TryLockError};

use pyo3::prelude::*;

use crate::error::Failure;

/// Runs `work` without the interpreter lock, so that other threads can run Python code. A panic becomes an
/// error.
pub(crate) fn call<T: Send>(
    py: Python<'_>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    let caught = || {
        catch_unwind(AssertUnwindSafe(work))
            .unwrap_or_else(|payload| Err(Failure::panicked(payload.as_ref())))
    };
    let value = py.detach(caught).map_err(|failure| failure.raise(py))?;
    // A pending signal is raised here, so that the result is dropped, rather than in the caller's code.
    py.check_signals()?;
    Ok(value)
}

/// Process that created a handle. The engine's threads do not exist in a child after fork().
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn current() -> Self {
        Self(process::id())
    }

    pub(crate) fn is_this_process(self) -> bool {
        self.0 == process::id()
    }

    /// Returns an error if the handle was created before fork().
    pub(crate) fn check(self, what: &str) -> Result<(), Failure> {
        match self.is_this_process() {
            true => Ok(()),
            false => Err(Failure::forked(what)),
        }
    }
}

/// Content of a handle until it is closed. Only one thread at a time may use it. Another thread gets an error
/// immediately, so that no thread waits for this lock while holding the interpreter lock.
#[derive(Debug)]
pub(crate) struct HandleCell<T: Send> {
    what: &'static str,
    owner: Owner,
    value: Mutex<Option<T>>,
}

impl<T: Send> HandleCell<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, owner: Owner::current(), value: Mutex::new(Some(value)) }
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<T>>, Failure> {
        self.owner.check(self.what)?;
        match self.value.try_lock() {
            Ok(value) => Ok(value),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Failure::in_use(self.what)),
        }
    }

    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match self.lock()?.as_mut() {
            Some(value) => work(value),
            None => Err(Failure::closed(self.what)),
        }
    }

    /// Drops the value. Returns an error if another thread is using it or it is closed already.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        let value = self.lock()?.take();
        drop(value);
        Ok(())
    }
}

impl<T: Send> Drop for HandleCell<T> {
    /// Drops the value without holding the interpreter lock, since drops may wait for threads of the engine.
    /// A forked child leaks the value: it has no such threads.
    fn drop(&mut self) {
        let value = match self.value.get_mut() {
            Ok(value) => value.take(),
            Err(poisoned) => poisoned.into_inner().take(),
        };
        if !self.owner.is_this_process() {
            std::mem::forget(value);
            return;
        }
        let mut value = Some(value);
        // `value` is dropped below if the interpreter has ended.
        let _ = Python::try_attach(|py| py.detach(|| drop(value.take())));
    }
}

//! Values that one call at a time may use.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use crate::error::NestlingError;

/// A value that a call takes for its duration. A second call gets an error at once.
pub(crate) struct Exclusive<T> {
    what: &'static str,
    /// `None` while a call uses the value.
    value: Mutex<Option<T>>,
}

impl<T> Exclusive<T> {
    pub(crate) fn new(what: &'static str, value: T) -> Self {
        Self { what, value: Mutex::new(Some(value)) }
    }

    /// Takes the value until the returned guard is dropped. The guard may be held across an `await`.
    pub(crate) fn take(&self) -> Result<ExclusiveGuard<'_, T>, NestlingError> {
        let value = self.value.lock().unwrap_or_else(PoisonError::into_inner).take();
        match value {
            Some(value) => Ok(ExclusiveGuard { cell: self, value: Some(value) }),
            None => Err(NestlingError::in_use(self.what)),
        }
    }

    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut T) -> Result<R, NestlingError>,
    ) -> Result<R, NestlingError> {
        work(self.take()?.get()?)
    }
}

impl<T> fmt::Debug for Exclusive<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").field("what", &self.what).finish_non_exhaustive()
    }
}

pub(crate) struct ExclusiveGuard<'a, T> {
    cell: &'a Exclusive<T>,
    /// `None` only while the guard is dropped.
    value: Option<T>,
}

impl<T> ExclusiveGuard<'_, T> {
    pub(crate) fn get(&mut self) -> Result<&mut T, NestlingError> {
        let what = self.cell.what;
        self.value.as_mut().ok_or_else(|| NestlingError::in_use(what))
    }
}

impl<T> Drop for ExclusiveGuard<'_, T> {
    fn drop(&mut self) {
        *self.cell.value.lock().unwrap_or_else(PoisonError::into_inner) = self.value.take();
    }
}

//! The process that a handle belongs to: threads of the engine do not exist in a child after fork().

use std::process;

use crate::error::{Failure, NestlingStatus, quietly};

/// Process that made a handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

impl Owner {
    /// This process.
    pub(crate) fn current() -> Self {
        Self(process::id())
    }
}

/// A handle that needs the engine's threads.
pub(crate) trait HasOwner {
    const NAME: &'static str;

    fn owner(&self) -> Owner;
}

/// Refuses a handle that was made before fork().
pub(crate) fn check<T: HasOwner>(handle: &T) -> Result<(), Failure> {
    if handle.owner() == Owner::current() {
        return Ok(());
    }
    let text = format!(
        "this {} belongs to the parent process; open the model again after fork()",
        T::NAME
    );
    Err(Failure::new(NestlingStatus::Stopped, text))
}

/// Frees a handle. In a forked child it leaks: freeing it would wait for threads that do not exist there.
pub(crate) fn free<T: HasOwner>(handle: Option<Box<T>>) {
    match handle {
        Some(handle) if check(&*handle).is_err() => std::mem::forget(handle),
        handle => quietly(|| drop(handle)),
    }
}

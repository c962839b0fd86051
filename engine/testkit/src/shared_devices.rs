//! Devices that the tests of one program share.

use std::sync::Mutex;
use std::thread::{self, ThreadId};

use nestling_core::sync::whole;

/// Open backends, of which tests get copies. A real device is opened once. A device in software runs one kernel at a
/// time, so each thread of the test program opens its own and the threads do not wait for each other.
#[derive(Debug, Default)]
pub struct SharedDevices<B> {
    opened: Mutex<Vec<(ThreadId, B)>>,
}

impl<B> SharedDevices<B> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { opened: Mutex::new(Vec::new()) }
    }

    /// Returns what `copy` makes of this thread's backend, which `open` opens at the first call.
    ///
    /// # Errors
    /// Returns the error of `open`; the next call tries again.
    pub fn get<E>(
        &self,
        is_software: impl Fn(&B) -> bool,
        open: impl FnOnce() -> Result<B, E>,
        copy: impl Fn(&B) -> B,
    ) -> Result<B, E> {
        let mut opened = whole(self.opened.lock());
        let this = thread::current().id();
        let found =
            opened.iter().find(|(thread, backend)| *thread == this || !is_software(backend));
        if let Some((_, backend)) = found {
            return Ok(copy(backend));
        }
        let backend = open()?;
        let copied = copy(&backend);
        opened.push((this, backend));
        Ok(copied)
    }

    /// Returns copies of all open backends.
    pub fn all(&self, copy: impl Fn(&B) -> B) -> Vec<B> {
        whole(self.opened.lock()).iter().map(|(_, backend)| copy(backend)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of backends after two threads asked for one each, twice.
    fn opened_by_two_threads(is_software: bool) -> usize {
        let devices = SharedDevices::new();
        let get =
            || devices.get(|_| is_software, || Ok::<_, ()>(1), |backend| backend + 1).unwrap();
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_eq!([get(), get()], [2, 2]));
            }
        });
        devices.all(|backend| *backend).len()
    }

    #[test]
    fn devices_in_software_are_opened_per_thread_and_real_ones_once() {
        assert_eq!(opened_by_two_threads(true), 2);
        assert_eq!(opened_by_two_threads(false), 1);
    }

    #[test]
    fn an_error_of_opening_is_returned_and_not_kept() {
        let devices = SharedDevices::new();
        assert_eq!(devices.get(|_| true, || Err("none"), |backend: &u8| *backend), Err("none"));
        assert_eq!(devices.get(|_| true, || Ok::<_, ()>(3), |backend| *backend), Ok(3));
    }
}

//! Locks between processes: the first one does the work, and the others wait for it.

use crate::error::{HubError, Result};
use nestling_formats::open_own_file;
use std::fs::{File, TryLockError};
use std::path::Path;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An exclusive lock, held until it is dropped. The system releases it when the process ends.
#[derive(Debug)]
pub struct Turn {
    _file: File,
}

impl Turn {
    /// Waits for the lock on the file at `path` and calls `waiting` at each poll. The lock file is never
    /// removed, since others may wait for it.
    pub fn take(path: &Path, waiting: &mut dyn FnMut()) -> Result<Self> {
        let file = open(path)?;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => waiting(),
                // The file system does not support locks.
                Err(TryLockError::Error(_)) => break,
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Self { _file: file })
    }

    /// Acquires the lock, or returns `None` if another process holds it.
    pub fn take_if_free(path: &Path) -> Result<Option<Self>> {
        let file = open(path)?;
        Ok(match file.try_lock() {
            Err(TryLockError::WouldBlock) => None,
            // The file system does not support locks.
            Ok(()) | Err(TryLockError::Error(_)) => Some(Self { _file: file }),
        })
    }
}

fn open(path: &Path) -> Result<File> {
    let failed = |error| HubError::file("write", path, error);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    open_own_file(path, File::options().append(true).create(true)).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_at_a_time_and_the_others_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks/a.lock");
        let (inside, waited) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut wait = || {
                        waited.fetch_add(1, Ordering::SeqCst);
                    };
                    let turn = Turn::take(&path, &mut wait).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    std::thread::sleep(Duration::from_millis(50));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(turn);
                });
            }
        });
        assert!(waited.load(Ordering::SeqCst) > 0);
        let turn = Turn::take(&path, &mut || panic!("nobody has it")).unwrap();
        assert!(Turn::take_if_free(&path).unwrap().is_none());
        drop(turn);
        assert!(Turn::take_if_free(&path).unwrap().is_some());
    }
}

//! One piece of work that several processes want: the first does it, the others wait for it.

use crate::args::CalibrationArgs;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::hub::Obtained;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::room::on_disk;
use crate::{convert, places};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often is looked whether it is one's turn.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The right to do a piece of work, until it is dropped. The system takes it from a process that
/// ends, however it ends.
#[derive(Debug)]
pub struct Turn {
    _file: File,
}

impl Turn {
    /// Waits for one's turn, which a lock on the file at `path` is; `waiting` is called now and then
    /// meanwhile. The file stays, since others may wait for it.
    pub fn take(path: &Path, waiting: &mut dyn FnMut()) -> Result<Self> {
        let failed = |error| Failure::file("write", path, &error);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        let file = File::options().append(true).create(true).open(path).map_err(failed)?;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) => waiting(),
                // A file system without locks.
                Err(TryLockError::Error(_)) => break,
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(Self { _file: file })
    }
}

/// Converts into the cache what is not there, or waits for the process that does so.
pub fn convert_once(
    obtained: &Obtained,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<()> {
    if obtained.is_converted() {
        return Ok(());
    }
    let mut bar = None;
    let turn = Turn::take(&lock(&obtained.store)?, &mut || {
        let bar = bar.get_or_insert_with(|| {
            console.note("another process converts this model; waiting for it");
            Progress::bytes(console, "waiting", 0, 0)
        });
        if let Some((done, total)) = written(&obtained.store) {
            bar.set_total(total);
            bar.set(done);
        }
    })?;
    drop(bar);
    // What the other process did not finish goes on where it stopped.
    let converted = match obtained.is_converted() {
        true => Ok(()),
        false => convert::into_cache(obtained, calibration, console, interrupt),
    };
    drop(turn);
    converted
}

/// The lock of a store: not beside it, where everything is a store or about to be one.
fn lock(store: &Path) -> Result<PathBuf> {
    let name = |path: Option<&Path>| {
        let name = path.and_then(Path::file_name).unwrap_or_default();
        name.to_string_lossy().into_owned()
    };
    let name = format!("{}--{}.lock", name(store.parent()), name(Some(store)));
    Ok(places::nestling_cache()?.join("locks").join(name))
}

/// Bytes of a store that its conversion has written, and all that there will be.
fn written(store: &Path) -> Option<(u64, u64)> {
    let mut partial = store.as_os_str().to_owned();
    partial.push(".partial");
    let data = std::fs::metadata(partial).ok()?;
    // It has its full length from the start, and holes.
    Some((on_disk(&data).min(data.len()), data.len()))
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
        Turn::take(&path, &mut || panic!("nobody has it")).unwrap();
    }

    #[test]
    fn a_store_in_the_making_says_how_far_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("a.nest");
        assert_eq!(written(&store), None);
        let file = File::create(folder.path().join("a.nest.partial")).unwrap();
        file.set_len(1 << 24).unwrap();
        let (done, total) = written(&store).unwrap();
        assert!(done <= total && total == 1 << 24);
    }
}

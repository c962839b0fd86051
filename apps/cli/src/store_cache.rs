//! Stores that are made once, into Nestling's cache, whichever process wants them first.

use crate::args::CalibrationArgs;
use crate::console::Console;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::progress::Progress;
use crate::{convert, places};
use nestling_hub::Obtained;
use nestling_hub::room::on_disk;
use nestling_hub::turn::Turn;
use std::path::{Path, PathBuf};

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
        // Default: a store in a root folder has a folder without a name.
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
    use std::fs::File;

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

//! GGUF files where a store is asked for: converted once, into Nestling's cache.

use crate::args::{CalibrationArgs, Command};
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::sniff::is_gguf;
use crate::store_cache::convert_once;
use crate::{calibration, places};
use nestling::engine::convert::QUANTIZER_VERSION;
use nestling_hub::Obtained;
use nestling_hub::identity::Identity;
use std::path::{Path, PathBuf};

/// Digits of an identity that says too little to be believed.
const OLD_IDENTITY_DIGITS: usize = 12;

/// Puts stores in the place of the GGUF files that a command names.
pub fn replace(command: &mut Command, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let default = CalibrationArgs::default();
    let (paths, calibration): (Vec<&mut Option<PathBuf>>, _) = match command {
        Command::Chat(args) => {
            (vec![&mut args.model.path, &mut args.model.model], &args.model.calibration)
        }
        Command::Run(args) => {
            (vec![&mut args.model.path, &mut args.model.model], &args.model.calibration)
        }
        Command::Inspect(args) => (vec![&mut args.path, &mut args.model], &default),
        Command::Verify(args) => (vec![&mut args.path, &mut args.model], &default),
        Command::Doctor(args) => (vec![&mut args.path, &mut args.model], &default),
        Command::Bench(args) => (vec![&mut args.model], &default),
        Command::Perplexity(args) => (vec![&mut args.model], &default),
        Command::Convert(_)
        | Command::Plan(_)
        | Command::Upgrade(_)
        | Command::Devices(_)
        | Command::Completions(_) => {
            return Ok(());
        }
    };
    for path in paths.into_iter().flatten() {
        if is_gguf(path) {
            *path = store_of(path, calibration, console, interrupt)?;
        }
    }
    Ok(())
}

/// The store of a file in the cache; it is made if it is not there.
fn store_of(
    path: &Path,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let Identity { stem, hash } = Identity::of(path)?;
    let folder = places::nestling_cache()?.join("stores").join("gguf");
    let stored = |calibration: &CalibrationArgs| -> Result<PathBuf> {
        let calibrated = calibration::name(calibration)?;
        Ok(folder.join(format!("{stem}-{hash}-q{QUANTIZER_VERSION}-{calibrated}.nest")))
    };
    let better = stored(calibration)?;
    if better.is_file() {
        return Ok(better);
    }
    let store = stored(&calibration::of_gguf(calibration))?;
    if !store.is_file() {
        let obtained = Obtained { checkpoint: path.into(), store: store.clone() };
        tell_of_old(&folder, &stem, console);
        convert_once(&obtained, calibration, console, interrupt)?;
    }
    Ok(store)
}

/// Stores of a file's name that have another form of identity, which no file is looked up by.
fn tell_of_old(folder: &Path, stem: &str, console: &Console) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-'));
        let identity = rest.and_then(|rest| rest.split_once("-q")).map(|(identity, _)| identity);
        let is_old = identity.is_some_and(|identity| {
            identity.len() == OLD_IDENTITY_DIGITS && identity.bytes().all(|b| b.is_ascii_hexdigit())
        });
        if is_old && name.ends_with(".nest") {
            let bytes = ByteSize(entry.metadata().map_or(0, |data| data.len()));
            let path = entry.path();
            console.note(format_args!(
                "{} is of an earlier version and no longer used; {bytes} are free once it is removed",
                path.display(),
            ));
        }
    }
}

//! GGUF files where a store is asked for: converted once, into Nestling's cache.

use crate::args::{CalibrationArgs, Command};
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::hub::Obtained;
use crate::interrupt::Interrupt;
use crate::{calibration, convert, places};
use nestling::engine::convert::QUANTIZER_VERSION;
use nestling::formats::gguf::part_names;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

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

/// Whether a file begins as GGUF files do.
pub fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// The store of a file in the cache; it is made if it is not there.
fn store_of(
    path: &Path,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let (stem, identity) = identity(path)?;
    let folder = places::nestling_cache()?.join("stores").join("gguf");
    let stored = |calibration: &CalibrationArgs| {
        let calibrated = calibration::name(calibration)?;
        Ok(folder.join(format!("{stem}-{identity}-q{QUANTIZER_VERSION}-{calibrated}.nest")))
    };
    let better: PathBuf = stored(calibration)?;
    if better.is_file() {
        return Ok(better);
    }
    let store: PathBuf = stored(&calibration::of_gguf(calibration))?;
    if !store.is_file() {
        let obtained = Obtained { checkpoint: path.into(), store: store.clone() };
        convert::into_cache(&obtained, calibration, console, interrupt)?;
    }
    Ok(store)
}

/// The file's name, and what tells its state from others': of every part name, length and time.
fn identity(path: &Path) -> Result<(String, String)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts = part_names(&name).map_err(|error| Failure::new(error.to_string()))?;
    let mut hash = Sha256::new();
    for part in &parts {
        let part_path = path.with_file_name(part);
        let metadata = std::fs::metadata(&part_path);
        let metadata = metadata.map_err(|error| Failure::file("read", &part_path, &error))?;
        let modified = metadata.modified().ok();
        let since = modified.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let nanoseconds = since.map_or(0, |since| since.as_nanos());
        hash.update(format!("{part}\0{}\0{nanoseconds}\0", metadata.len()));
    }
    let mut identity = String::new();
    for byte in &hash.finalize()[..6] {
        let _ = write!(identity, "{byte:02x}");
    }
    let first = parts.first().map_or(&*name, String::as_str);
    let stem = Path::new(first).file_stem().unwrap_or_default().to_string_lossy();
    Ok((stem.into_owned(), identity))
}

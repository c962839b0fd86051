//! GGUF files where a store is asked for: converted once, into Nestling's cache. What runs a model
//! takes a file where it lies, unless its conversion was asked for.

use crate::args::{CalibrationArgs, Command};
use crate::console::Console;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::{calibration, convert, hub};
use nestling_hub::is_gguf;
use std::path::{Path, PathBuf};

/// Puts stores in the place of the GGUF files that a command names.
pub fn replace(command: &mut Command, console: &Console, interrupt: &Interrupt) -> Result<()> {
    let default = CalibrationArgs::default();
    let runs = matches!(command, Command::Chat(_) | Command::Run(_));
    let (paths, asked): (Vec<&mut Option<PathBuf>>, _) = match command {
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
        if is_gguf(path) && !(runs && calibration::is_lighter(asked)) {
            *path = store_of(path, asked, console, interrupt)?;
        }
    }
    Ok(())
}

/// The store of a file in the cache; it is made if it is not there.
pub fn store_of(
    path: &Path,
    calibration: &CalibrationArgs,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<PathBuf> {
    let cache = hub::store_cache(calibration)?;
    let obtained = cache.of_gguf(path, console)?;
    convert::once(&cache, &obtained, calibration, console, interrupt)?;
    Ok(obtained.store)
}

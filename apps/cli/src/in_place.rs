//! GGUF files run where they lie.

use crate::args::{CalibrationArgs, LoadModeArg, ModelArgs, ResourceArgs};
use crate::calibration;
use crate::console::Console;
use crate::explain::{explain_convert, explain_import};
use crate::failure::{Failure, Result};
use nestling::OpenDevice;
use nestling::engine::Residence;
use nestling::engine::in_place::open_in_place;
use nestling::formats::store::{Digits, Store};
use nestling::import::Checkpoint;
use nestling_hub::is_gguf;
use std::path::Path;
use std::sync::Arc;

/// Whether a file runs where it lies: nothing was asked of its conversion.
pub fn is_wanted(path: &Path, asked: &CalibrationArgs) -> bool {
    is_gguf(path) && calibration::is_lighter(asked)
}

/// How P3 and P4 lie for a device: the CPU computes with both as one digit.
pub fn digits(device: &OpenDevice) -> Digits {
    match device {
        OpenDevice::Cpu { .. } => Digits::Merged,
        _ => Digits::Apart,
    }
}

/// The store that a file is, without one being written.
pub fn open(path: &Path, digits: Digits) -> Result<Store> {
    let checkpoint = Checkpoint::open(path).map_err(|error| explain_import(&error))?;
    open_in_place(Arc::new(checkpoint), digits).map_err(|error| explain_convert(&error))
}

/// Where the experts of a file are: the CPU computes before all of them are planes.
pub fn residence(device: &OpenDevice) -> Residence {
    match device {
        OpenDevice::Cpu { .. } => Residence::Lazy,
        _ => Residence::Auto,
    }
}

/// Says what a file in place cannot do that a store can, and refuses what it cannot do at all.
pub fn tell(
    path: &Path,
    model: &ModelArgs,
    resources: &ResourceArgs,
    console: &Console,
) -> Result<()> {
    let instead = "make a store of it with `nestling convert --exact`";
    if matches!(resources.load_mode, LoadModeArg::Mmap) {
        let problem = format!("{} runs where it lies and cannot be mapped", path.display());
        return Err(Failure::new(problem).advise(instead));
    }
    if model.level.is_some() {
        console.warn(format_args!(
            "--level has no effect on {}: its experts are read whole; {instead}",
            path.display()
        ));
        return Ok(());
    }
    console.note(format_args!(
        "{} runs where it lies, exactly; its experts are read whole: `nestling convert` makes a \
         store whose lower levels read less",
        path.display()
    ));
    Ok(())
}

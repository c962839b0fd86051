//! Resolves a model named on the command line to a file or folder.

use crate::args::{CalibrationArgs, DeviceArgs, HubArgs};
use crate::console::Console;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::stores::{OpenedStore, open_store, open_store_for};
use crate::{calibration, convert, device, hub, in_place, places};
use nestling::formats::Level;
use nestling_hub::{ConvertedModel, Reference, is_gguf};
use std::path::{Path, PathBuf};

/// A model as named on the command line.
pub struct NamedModel<'a> {
    pub path: Option<&'a PathBuf>,
    pub hub: &'a HubArgs,
    /// Calibration settings for a conversion.
    pub calibration: CalibrationArgs,
    /// Level up to which a store is downloaded.
    pub level: Option<Level>,
}

/// A model that is available locally.
pub struct LocatedModel {
    pub path: PathBuf,
    /// True for the bundled storyteller.
    pub is_bundled: bool,
}

impl<'a> NamedModel<'a> {
    /// Creates a name for commands that read the files of a model without computing.
    pub fn of_files(path: Option<&'a PathBuf>, hub: &'a HubArgs) -> Self {
        Self { path, hub, calibration: CalibrationArgs::default(), level: None }
    }

    /// Locates the model. Downloads it for `-hf`, and converts a checkpoint, or a GGUF file if calibration
    /// was requested.
    pub fn locate(&self, console: &Console, interrupt: &Interrupt) -> Result<LocatedModel> {
        let located = |path| Ok(LocatedModel { path, is_bundled: false });
        let lighter = calibration::is_lighter(&self.calibration);
        if let Some(path) = self.path {
            return match is_gguf(path) && !lighter {
                true => located(store_of(path, &self.calibration, console, interrupt)?),
                false => located(path.clone()),
            };
        }
        let Some(repo) = &self.hub.hf_repo else {
            return Ok(LocatedModel { path: places::bundled_store()?, is_bundled: true });
        };
        let reference = Reference::parse(repo, &self.hub.hf_revision)?;
        let mut options = hub::options(self.hub, &self.calibration)?;
        options.in_place = lighter;
        let obtained = nestling_hub::obtain(&reference, self.level, &options, console)?;
        let ConvertedModel { checkpoint, store } = &obtained;
        if is_gguf(checkpoint) && lighter && !store.is_file() {
            return located(checkpoint.clone());
        }
        convert::once(&options.stores, &obtained, &self.calibration, console, interrupt)?;
        located(obtained.store)
    }
}

/// Returns the cached store of a GGUF file, converting the file if necessary.
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

/// Opens a store for a device. A GGUF file is opened in place.
pub fn open_store_on(path: &Path, device: &DeviceArgs, console: &Console) -> Result<OpenedStore> {
    if !is_gguf(path) {
        return open_store(path);
    }
    let device = device::open(device, console)?;
    open_store_for(path, false, in_place::digits(&device))
}

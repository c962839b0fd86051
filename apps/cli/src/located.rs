//! Resolves a model named on the command line to a file or folder.

use crate::args::{CalibrationArgs, DeviceArgs, HubArgs};
use crate::console::Console;
use crate::failure::Result;
use crate::interrupt::Interrupt;
use crate::stores::{OpenedStore, open_store, open_store_for};
use crate::{calibration, convert, device, hub, in_place, places};
use nestling::formats::Level;
use nestling_hub::{ConvertedModel, HubOptions, Reference, StoreAddress, WebStore, is_gguf};
use std::path::{Path, PathBuf};

/// A model as named on the command line.
pub struct NamedModel<'a> {
    pub path: Option<&'a PathBuf>,
    pub hub: &'a HubArgs,
    /// Calibration settings for a conversion.
    pub calibration: CalibrationArgs,
    /// Level up to which a store is downloaded.
    pub level: Option<Level>,
    /// Part of a store on the web or on the Hub that is fetched before the store is opened.
    pub start: WebStart,
}

/// The part of a store on the web or on the Hub that is fetched before the store is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebStart {
    /// All sections up to the level.
    Level,
    /// All sections up to the level, or the first complete level if none was requested.
    FirstLevel,
    /// Header and index; the rest is fetched when it is read.
    Index,
}

/// A model that is available locally.
pub struct LocatedModel {
    pub path: PathBuf,
    /// True for the bundled storyteller.
    pub is_bundled: bool,
    /// Level to open the model at, if the later sections of its store are still to come.
    pub level: Option<Level>,
}

impl LocatedModel {
    /// Creates a located model without a level of its own.
    pub fn at(path: PathBuf) -> Self {
        Self { path, is_bundled: false, level: None }
    }
}

impl<'a> NamedModel<'a> {
    /// Creates a name for commands that read the files of a model without computing.
    pub fn of_files(path: Option<&'a PathBuf>, hub: &'a HubArgs) -> Self {
        let start = WebStart::Index;
        Self { path, hub, calibration: CalibrationArgs::default(), level: None, start }
    }

    /// Locates the model. Downloads it for `-hf`, and converts a checkpoint, or a GGUF file if calibration
    /// was requested.
    pub fn locate(&self, console: &Console, interrupt: &Interrupt) -> Result<LocatedModel> {
        let located = |path| Ok(LocatedModel::at(path));
        let lighter = calibration::is_lighter(&self.calibration);
        if let Some(path) = self.path {
            if let Some(located) = self.locate_on_web(console)? {
                return Ok(located);
            }
            return match is_gguf(path) && !lighter {
                true => located(store_of(path, &self.calibration, console, interrupt)?),
                false => located(path.clone()),
            };
        }
        let Some(repo) = &self.hub.hf_repo else {
            return Ok(LocatedModel {
                is_bundled: true,
                ..LocatedModel::at(places::bundled_store()?)
            });
        };
        let reference = Reference::parse(repo, &self.hub.hf_revision)?;
        let mut options = hub::options(self.hub, &self.calibration)?;
        options.in_place = lighter;
        options.by_ranges = true;
        let obtained = nestling_hub::obtain(&reference, self.level, &options, console)?;
        let ConvertedModel { checkpoint, store } = &obtained;
        if WebStore::is_copy(store) {
            return self.of_copy(obtained.store, &options, console);
        }
        if is_gguf(checkpoint) && lighter && !store.is_file() {
            return located(checkpoint.clone());
        }
        convert::once(&options.stores, &obtained, &self.calibration, console, interrupt)?;
        located(obtained.store)
    }

    /// Prepares the local copy of a store on the web, and fetches what must be here first. Returns `None` if the
    /// model is not named by a web address.
    pub fn locate_on_web(&self, console: &Console) -> Result<Option<LocatedModel>> {
        let text = self.path.and_then(|path| path.to_str());
        let Some(text) = text.filter(|text| StoreAddress::is_address(text)) else {
            return Ok(None);
        };
        self.of_address(&StoreAddress::parse(text)?, console).map(Some)
    }

    fn of_address(&self, address: &StoreAddress, console: &Console) -> Result<LocatedModel> {
        let options = hub::options(self.hub, &self.calibration)?;
        let path = WebStore::prepare(address, &options, console)?;
        match WebStore::is_copy(&path) {
            true => self.of_copy(path, &options, console),
            false => Ok(LocatedModel::at(path)),
        }
    }

    /// Fetches what must be here first of a store that is read by ranges.
    fn of_copy(
        &self,
        path: PathBuf,
        options: &HubOptions,
        console: &Console,
    ) -> Result<LocatedModel> {
        let copy = WebStore::open(&path, &options.access())?;
        let first = copy.section_levels().into_iter().flatten().next();
        let level = match self.start {
            WebStart::Index => return Ok(LocatedModel::at(path)),
            WebStart::Level => self.level,
            WebStart::FirstLevel => self.level.or(first),
        };
        copy.bring(copy.sections_for(level)?, console, &|| false)?;
        match copy.finish()? {
            Some(store) => Ok(LocatedModel::at(store)),
            None => Ok(LocatedModel { level, ..LocatedModel::at(path) }),
        }
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

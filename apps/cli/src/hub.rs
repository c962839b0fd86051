//! Hub settings from the command line and the environment, and progress of Hub operations.

use crate::args::{CalibrationArgs, HubArgs};
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::memory::memory_budget;
use crate::progress::Progress;
use crate::{calibration, explain, places};
use nestling_hub::{
    Caches, DEFAULT_ENDPOINT, FirstReads, HubError, HubOptions, Limits, Notice, Observer,
    StoreCache, Task, TaskProgress, Uses, WebAccess,
};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Returns the options for downloading and converting models.
pub fn options(hub: &HubArgs, calibration: &CalibrationArgs) -> Result<HubOptions> {
    let endpoint = std::env::var("HF_ENDPOINT").ok().filter(|text| !text.is_empty());
    let endpoint =
        endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.into()).trim_end_matches('/').to_owned();
    let options = HubOptions {
        endpoint,
        downloads: places::hub_cache()?,
        stores: store_cache(calibration)?,
        headers: places::nestling_cache()?.join("headers"),
        token: token(hub)?,
        limits: limits(),
        offline: offline(hub),
        room: memory_budget(None).unwrap_or(u64::MAX),
        in_place: false,
        by_ranges: false,
    };
    *lock_access() = Some(options.access());
    Ok(options)
}

/// Access of the last options, for copies of stores that are opened by their paths.
static ACCESS: Mutex<Option<WebAccess>> = Mutex::new(None);

fn lock_access() -> MutexGuard<'static, Option<WebAccess>> {
    ACCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the access to stores that are read by ranges: that of the command line, once a model was located.
pub fn access() -> Result<WebAccess> {
    if let Some(access) = lock_access().clone() {
        return Ok(access);
    }
    Ok(options(&HubArgs::default(), &CalibrationArgs::default())?.access())
}

/// Returns the cache of converted stores.
pub fn store_cache(calibration: &CalibrationArgs) -> Result<StoreCache> {
    let cache = places::nestling_cache()?;
    Ok(StoreCache {
        folder: cache.join("stores"),
        locks: cache.join("locks"),
        calibration: calibration::name(calibration)?,
        gguf_calibration: calibration::name(&calibration::of_gguf(calibration))?,
    })
}

/// Returns the records of files run in place, as they were when first read.
pub fn first_reads() -> Result<FirstReads> {
    Ok(FirstReads::new(places::nestling_cache()?.join("reads")))
}

/// Returns the records of open and recently used models.
pub fn uses() -> Result<Uses> {
    Ok(Uses::new(places::nestling_cache()?.join("uses")))
}

/// Returns all caches.
pub fn caches() -> Result<Caches> {
    Ok(Caches {
        downloads: places::hub_cache()?,
        stores: store_cache(&CalibrationArgs::default())?,
        headers: places::nestling_cache()?.join("headers"),
        reads: first_reads()?,
        uses: uses()?,
    })
}

fn offline(hub: &HubArgs) -> bool {
    let falsey = |value: &str| {
        matches!(value.to_ascii_lowercase().as_str(), "" | "0" | "false" | "no" | "off")
    };
    hub.offline || std::env::var("HF_HUB_OFFLINE").is_ok_and(|value| !falsey(value.trim()))
}

/// Returns the network limits. `HF_HUB_DOWNLOAD_TIMEOUT` of the Hub's own tools is respected.
fn limits() -> Limits {
    let said = std::env::var("HF_HUB_DOWNLOAD_TIMEOUT").ok();
    let seconds = said.and_then(|text| text.trim().parse::<u32>().ok()).filter(|s| *s > 0);
    let limits = Limits::default();
    match seconds {
        Some(seconds) => Limits { silence: Duration::from_secs(seconds.into()), ..limits },
        None => limits,
    }
}

/// Returns the access token: `--hf-token` or `HF_TOKEN`, otherwise the file that the Hub's tools write at
/// login.
fn token(hub: &HubArgs) -> Result<Option<String>> {
    if let Some(token) = hub.hf_token.as_deref().map(str::trim).filter(|token| !token.is_empty()) {
        return Ok(Some(token.into()));
    }
    let path = match std::env::var_os("HF_TOKEN_PATH") {
        Some(path) => PathBuf::from(path),
        None => places::hub_home()?.join("token"),
    };
    // Default: empty if the user has not logged in.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Ok(Some(text.trim().to_owned()).filter(|token| !token.is_empty()))
}

impl From<HubError> for Failure {
    fn from(error: HubError) -> Self {
        match error {
            HubError::Failed(told) => Self { advice: told.advice, ..Self::new(told.message) },
            HubError::Usage(told) => Self { advice: told.advice, ..Self::usage(told.message) },
            HubError::File { action, path, source } => Self::file(action, &path, &source),
            HubError::Store(error) => explain::explain_store(&error),
            HubError::Import(error) => explain::explain_import(&error),
            other => Self::new(other.to_string()),
        }
    }
}

impl Observer for Console {
    fn notice(&self, notice: &Notice<'_>) {
        self.note(text_of(notice));
    }

    fn begin(&self, task: Task, total: u64, done: u64) -> Box<dyn TaskProgress> {
        Box::new(match task {
            Task::Check => Progress::bytes(self, "checking", total, done),
            Task::Headers => {
                let mut progress = Progress::parts(self, "reading headers");
                progress.set_total(total);
                progress
            }
            Task::WaitForConversion => Progress::bytes(self, "waiting", total, done),
            Task::WaitForHeaders => Progress::spinner(self, "waiting for the headers"),
            _ => Progress::bytes(self, "download", total, done),
        })
    }
}

impl TaskProgress for Progress {
    fn set(&mut self, done: u64) {
        Self::set(self, done);
    }

    fn set_of(&mut self, done: u64, total: u64) {
        self.set_total(total);
        Self::set(self, done);
    }
}

fn text_of(notice: &Notice<'_>) -> String {
    match *notice {
        Notice::CachedStore(reason) => format!("{reason}; using the store from the cache"),
        Notice::GgufFile { name, quantization } => match quantization {
            Some(quantization) => format!("model:    {name} ({quantization})"),
            None => format!("model:    {name}"),
        },
        Notice::HeldLevel(level) => {
            format!("level {level} of the store is here; `nestling upgrade` fetches the rest")
        }
        Notice::Download { total_bytes, files, missing_bytes, folder } => format!(
            "download: {} in {files} files, {} still to fetch, into {}",
            ByteSize(total_bytes),
            ByteSize(missing_bytes),
            folder.display(),
        ),
        Notice::Conversion { store_bytes, folder } => {
            format!("store:    about {} into {}", ByteSize(store_bytes), folder.display())
        }
        Notice::Sections { missing_bytes, store_bytes, level, folder } => format!(
            "download: {} of {}{}, into {}",
            ByteSize(missing_bytes),
            ByteSize(store_bytes),
            level.map_or(String::new(), |level| format!(" (up to level {level})")),
            folder.display(),
        ),
        Notice::Disk(disk) => format!("disk:     {}", disk.describe()),
        Notice::WaitForFile(name) => {
            format!("waiting for another program that downloads {name}")
        }
        Notice::WaitForConversion => "another process converts this model; waiting for it".into(),
        Notice::OutdatedStore { path, bytes } => format!(
            "{} is of an earlier version and no longer used; {} are free once it is removed",
            path.display(),
            ByteSize(bytes),
        ),
        _ => format!("{notice:?}"),
    }
}

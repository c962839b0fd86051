//! Fetching through `hf-hub`: resume, retries, and a check of what arrived.
//!
//! `hf-hub` 0.5 resumes from the `.part` file it left, but three things are done here. Its own
//! retries start from byte 0 of a file it appends to, so they are off and each attempt is a fresh
//! call. A `.part` that is already whole would ask for an empty range. And it checks no content.

use super::Surroundings;
use super::listing::{Listing, Wanted};
use super::repository::{Repository, RepositoryCache};
use super::space::present;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::progress::Progress;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

/// Attempts at one file without a single new byte.
pub const ATTEMPTS_MAX: u32 = 5;
/// Largest answer to the request for the listing.
const LISTING_BYTES_MAX: u64 = 64 << 20;

/// Why a request failed, as far as the program acts on it.
#[derive(Debug)]
pub enum Trouble {
    /// The server answered with this status.
    Status(u16),
    /// Nobody answered, or the line broke.
    Unreachable(String),
    /// Trying again will not help.
    Failed(Failure),
}

/// A repository on the Hub.
pub struct Hub<'a> {
    pub repository: &'a Repository,
    cache: &'a RepositoryCache,
    pub endpoint: String,
    pub token: Option<String>,
    api: Api,
}

impl<'a> Hub<'a> {
    pub fn connect(
        repository: &'a Repository,
        cache: &'a RepositoryCache,
        around: &Surroundings,
    ) -> Result<Self> {
        let (endpoint, token) = (around.endpoint.clone(), around.token.clone());
        let api = ApiBuilder::from_cache(hf_hub::Cache::new(cache.root.clone()))
            .with_endpoint(endpoint.clone())
            .with_token(token.clone())
            .with_progress(false)
            .with_retries(0)
            .with_user_agent("nestling", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| Failure::new(format!("cannot set up downloads: {error}")))?;
        Ok(Self { repository, cache, endpoint, token, api })
    }

    /// Asks what the repository holds.
    pub fn listing(&self) -> std::result::Result<Listing, Trouble> {
        let repo = self.api.repo(self.repository.hub(&self.repository.revision));
        let request = repo.info_request().query("blobs", "true");
        let mut response = request.call().map_err(|error| trouble(&error))?;
        let body = response.body_mut().with_config().limit(LISTING_BYTES_MAX);
        let answer = body.read_json().map_err(|error| trouble(&error))?;
        Listing::parse(&answer).map_err(Trouble::Failed)
    }

    /// Fetches those of `files` that are not in the cache yet, and checks them.
    pub fn fetch(&self, listing: &Listing, files: &[Wanted], console: &Console) -> Result<()> {
        let checkpoint = self.cache.snapshot(&listing.commit);
        let total: u64 = files.iter().map(|file| file.size).sum();
        let there = |file| present(self.cache, &checkpoint, file).min(file.size);
        let mut done: u64 = files.iter().map(there).sum();
        if done < total {
            done -= self.unfinished(files, &checkpoint);
        }
        let mut progress = Progress::bytes(console, "download", total, done);
        let repo = self.api.repo(self.repository.hub(&listing.commit));
        for file in files {
            let path = checkpoint.join(&file.name);
            if std::fs::metadata(&path).is_ok_and(|data| data.len() == file.size) {
                continue;
            }
            self.fetch_one(
                &repo,
                file,
                &mut Meter { progress: &mut progress, done, file_done: 0 },
            )?;
            self.check(&path, file)?;
            done += file.size;
            progress.set(done);
        }
        Ok(())
    }

    /// Bytes that lie in `.part` files: a resumed download counts them itself.
    fn unfinished(&self, files: &[Wanted], checkpoint: &Path) -> u64 {
        let parts = files.iter().filter(|file| !checkpoint.join(&file.name).exists());
        parts.map(|file| present(self.cache, checkpoint, file).min(file.size)).sum()
    }

    /// Fetches one file, going on after a broken connection where it stopped.
    fn fetch_one(&self, repo: &ApiRepo, file: &Wanted, meter: &mut Meter<'_>) -> Result<()> {
        let part = self.cache.blob(&file.blob).with_extension("part");
        let mut attempts = 0;
        loop {
            open_end(&part, file.size).map_err(|e| Failure::file("write to", &part, &e))?;
            let before = meter.file_done;
            let mut counted =
                Meter { progress: meter.progress, done: meter.done, file_done: before };
            let result = repo.download_with_progress(&file.name, &mut counted);
            meter.file_done = counted.file_done;
            let Err(error) = result else { return Ok(()) };
            attempts = if meter.file_done > before { 1 } else { attempts + 1 };
            match self.trouble_of(error) {
                Trouble::Unreachable(reason) if attempts >= ATTEMPTS_MAX => {
                    return Err(self.unreachable(&reason));
                }
                Trouble::Unreachable(_) | Trouble::Status(408 | 429 | 500..)
                    if attempts < ATTEMPTS_MAX =>
                {
                    std::thread::sleep(Duration::from_millis(250 << attempts));
                }
                trouble => return Err(self.explain(trouble)),
            }
        }
    }

    /// Length, and SHA-256 where the Hub tells it. What is wrong is removed from the cache.
    fn check(&self, path: &Path, file: &Wanted) -> Result<()> {
        let failed = |error| Failure::file("read", path, &error);
        let found = std::fs::metadata(path).map_err(failed)?.len();
        let whole = found == file.size;
        let sound = match file.sha256() {
            Some(expected) if whole => sha256(path).map_err(failed)?.eq_ignore_ascii_case(expected),
            _ => whole,
        };
        if sound {
            return Ok(());
        }
        if let Ok(blob) = path.canonicalize() {
            let _ = std::fs::remove_file(blob);
        }
        let _ = std::fs::remove_file(path);
        let what = if whole {
            "its content does not have the announced SHA-256".into()
        } else {
            format!("it has {found} bytes instead of {}", file.size)
        };
        Err(Failure::new(format!("{} arrived damaged: {what}", file.name))
            .advise("run the command again; the damaged file was removed"))
    }

    pub fn unreachable(&self, reason: &str) -> Failure {
        Failure::new(format!("cannot reach {}: {reason}", self.endpoint)).advise(
            "check the network and run the command again; it goes on where it stopped \
             (--offline uses only what is in the cache)",
        )
    }

    pub fn explain(&self, trouble: Trouble) -> Failure {
        let repository = self.repository;
        match trouble {
            Trouble::Failed(failure) => failure,
            Trouble::Unreachable(reason) => self.unreachable(&reason),
            Trouble::Status(401 | 403) if self.token.is_some() => {
                Failure::new(format!("{repository}: the Hub refuses this access token")).advise(
                    "check the name, accept the model's terms on its page, \
                     and use a token that may read it",
                )
            }
            // The Hub answers 401 for repositories that do not exist, too.
            Trouble::Status(401 | 403) => {
                Failure::new(format!("{repository} does not exist, or needs an access token"))
                    .advise("check the name; for a gated model set HF_TOKEN")
            }
            Trouble::Status(404) => Failure::new(format!("{repository} does not exist on the Hub"))
                .advise("check the spelling of owner/repo and of the revision"),
            Trouble::Status(status) => {
                Failure::new(format!("{} answers with status {status}", self.endpoint))
                    .advise("try again later; the download goes on where it stopped")
            }
        }
    }

    fn trouble_of(&self, error: ApiError) -> Trouble {
        match error {
            ApiError::RequestError(error) => trouble(&error),
            ApiError::TooManyRetries(error) => self.trouble_of(*error),
            ApiError::IoError(error) => match error.kind() {
                std::io::ErrorKind::StorageFull | std::io::ErrorKind::PermissionDenied => {
                    Trouble::Failed(Failure::file("write to", &self.cache.folder, &error))
                }
                _ => Trouble::Unreachable(crate::failure::plain(&error)),
            },
            ApiError::LockAcquisition(path) => Trouble::Failed(
                Failure::new(format!("another program holds {}", path.display()))
                    .advise("wait until the other download is finished"),
            ),
            other => Trouble::Failed(
                Failure::new(format!(
                    "{} gives an answer that makes no sense: {other}",
                    self.endpoint
                ))
                .advise("check HF_ENDPOINT, or try again later"),
            ),
        }
    }
}

pub fn trouble(error: &ureq::Error) -> Trouble {
    match error {
        ureq::Error::StatusCode(status) => Trouble::Status(*status),
        ureq::Error::Json(error) => Trouble::Failed(
            Failure::new(format!("the Hub's answer makes no sense: {error}"))
                .advise("check HF_ENDPOINT, or try again later"),
        ),
        ureq::Error::Io(error) => Trouble::Unreachable(crate::failure::plain(error)),
        other => Trouble::Unreachable(other.to_string()),
    }
}

/// Leaves at least one byte of a `.part` to be fetched, since no server gives an empty range.
fn open_end(part: &Path, size: u64) -> std::io::Result<()> {
    match std::fs::metadata(part) {
        Ok(data) if data.len() >= size && data.len() > 0 => {
            let file = File::options().write(true).open(part)?;
            file.set_len(size.saturating_sub(1))
        }
        _ => Ok(()),
    }
}

fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hash.update(&buffer[..count]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Bytes of one file, added to those of the files before it.
struct Meter<'a> {
    progress: &'a mut Progress,
    done: u64,
    file_done: u64,
}

impl hf_hub::api::Progress for &mut Meter<'_> {
    fn init(&mut self, _size: usize, _filename: &str) {
        self.file_done = 0;
    }

    fn update(&mut self, size: usize) {
        self.file_done += size as u64;
        self.progress.set(self.done + self.file_done);
    }

    fn finish(&mut self) {}
}

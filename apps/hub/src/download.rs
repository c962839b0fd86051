//! Downloads of listings, and of files into the Hub's standard cache.
//!
//! A file is written to `blobs/<hash>.part` and hashed while it arrives. It is renamed when it is complete
//! and its hash matches. Interrupted downloads resume from the partial file. All file names come from the
//! checked listing, never from response headers.

use crate::client::{Client, RequestError, broken, unreadable};
use crate::digest::Digest;
use crate::error::{HubError, Result};
use crate::listing::{Listing, RemoteFile};
use crate::observer::{Notice, Observer, Task};
use crate::options::HubOptions;
use crate::ranges::Ranges;
use crate::repository::{Repository, RepositoryCache};
use crate::space::present;
use crate::turn::Turn;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::Path;

/// Maximum size of a listing in bytes. It suffices for a hundred thousand files, the Hub's recommended limit.
const LISTING_BYTES_MAX: u64 = 32 << 20;

/// Buffer size in bytes for hashing a partial file.
const CHUNK_BYTES: usize = 1 << 20;

/// A repository on the Hub.
pub struct Hub<'a> {
    pub repository: &'a Repository,
    cache: &'a RepositoryCache,
    pub endpoint: String,
    pub client: Client,
    has_token: bool,
}

impl<'a> Hub<'a> {
    pub fn new(
        repository: &'a Repository,
        cache: &'a RepositoryCache,
        options: &HubOptions,
    ) -> Self {
        let (endpoint, token) = (options.endpoint.clone(), options.token.clone());
        let has_token = token.is_some();
        Self { repository, cache, endpoint, client: Client::new(token, options.limits), has_token }
    }

    /// Requests the listing of the repository.
    pub fn listing(&self) -> std::result::Result<Listing, RequestError> {
        let Repository { id, revision } = self.repository;
        // The revision must be a single path component.
        let revision = revision.replace('/', "%2F");
        let address = format!("{}/api/models/{id}/revision/{revision}?blobs=true", self.endpoint);
        let limits = &self.client.limits;
        let response = self.client.get(&address, None, Some(limits.listing))?;
        let reader = self.client.read(response.into_body());
        let mut reader = BufReader::with_capacity(64 << 10, reader.take(LISTING_BYTES_MAX));
        let listing = Listing::read(&mut reader);
        if reader.get_ref().limit() == 0 {
            let most = LISTING_BYTES_MAX >> 20;
            let what = format!("its list of files is longer than {most} MiB");
            return Err(RequestError::Failed(unreadable(&what)));
        }
        listing.map_err(|error| match error.is_io() {
            true => broken(&error.into(), limits),
            false => RequestError::Failed(unreadable(&error.to_string())),
        })
    }

    /// Returns a reader of file ranges at a commit.
    pub fn ranges(&self, commit: &str) -> Ranges {
        let base = format!("{}/{}/resolve/{commit}", self.endpoint, self.repository.id);
        Ranges::of_folder(self.client.clone(), base)
    }

    /// Downloads and checks the `files` that are not in the cache.
    pub fn fetch(
        &self,
        listing: &Listing,
        files: &[RemoteFile],
        observer: &dyn Observer,
    ) -> Result<()> {
        let commit = &listing.commit;
        let checkpoint = self.cache.snapshot(commit);
        let total: u64 = files.iter().map(|file| file.size).sum();
        let held = |file| present(self.cache, &checkpoint, file).min(file.size);
        let mut done: u64 = files.iter().map(held).sum();
        let mut progress = observer.begin(Task::Download, total, done);
        let ranges = self.ranges(commit);
        for file in files {
            let path = checkpoint.join(&file.name);
            if std::fs::metadata(&path).is_ok_and(|data| data.len() == file.size) {
                continue;
            }
            let before = done - held(file);
            self.fetch_one(&ranges, file, &mut |at| progress.set(before + at), observer)?;
            self.cache.link(commit, file)?;
            done = before + file.size;
            progress.set(done);
        }
        Ok(())
    }

    /// Downloads one file to the blobs unless it is there.
    fn fetch_one(
        &self,
        ranges: &Ranges,
        file: &RemoteFile,
        arrived: &mut dyn FnMut(u64),
        observer: &dyn Observer,
    ) -> Result<()> {
        let blob = self.cache.blob(&file.blob);
        let folder = self.cache.folder.join("blobs");
        std::fs::create_dir_all(&folder).map_err(|e| HubError::file("make", &folder, e))?;
        let mut is_told = false;
        let _turn = Turn::take(&self.cache.lock(&file.blob), &mut || {
            if !std::mem::replace(&mut is_told, true) {
                observer.notice(&Notice::WaitForFile(&file.name));
            }
        })?;
        if std::fs::metadata(&blob).is_ok_and(|data| data.len() == file.size) {
            return Ok(());
        }
        let part = blob.with_extension("part");
        self.complete(ranges, file, &part, arrived)?;
        std::fs::rename(&part, &blob).map_err(|error| HubError::file("write", &blob, error))
    }

    /// Downloads the rest of a `.part` file. Removes the file if its hash does not match.
    fn complete(
        &self,
        ranges: &Ranges,
        file: &RemoteFile,
        part: &Path,
        arrived: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let failed = |error| HubError::file("write to", part, error);
        let opened = File::options().read(true).append(true).create(true).open(part);
        let mut out = opened.map_err(failed)?;
        let mut digest = Digest::of(file);
        let mut at = out.metadata().map_err(failed)?.len();
        if at > file.size {
            out.set_len(0).map_err(failed)?;
            at = 0;
        }
        if at > 0 {
            take_in(&mut out, &mut digest).map_err(|error| HubError::file("read", part, error))?;
        }
        let range = at..file.size;
        let mut sink = |bytes: &[u8]| {
            out.write_all(bytes).map_err(failed)?;
            digest.update(bytes);
            at += bytes.len() as u64;
            arrived(at);
            Ok(())
        };
        ranges.stream(file, range, &mut sink).map_err(|trouble| self.explain(trouble))?;
        out.sync_all().map_err(failed)?;
        let name = digest.name();
        if digest.matches(file) {
            return Ok(());
        }
        let _ = std::fs::remove_file(part);
        let what = "its content does not have the announced";
        Err(HubError::new(format!("{} arrived damaged: {what} {name}", file.name))
            .advise("run the command again; the damaged file was removed"))
    }

    pub fn unreachable(&self, reason: &str) -> HubError {
        HubError::new(format!("cannot reach {}: {reason}", self.endpoint)).advise(
            "check the network and run the command again; it resumes where it stopped \
             (--offline uses only what is in the cache)",
        )
    }

    pub fn explain(&self, trouble: RequestError) -> HubError {
        let repository = self.repository;
        match trouble {
            RequestError::Failed(failure) => failure,
            RequestError::Changed => {
                HubError::new(format!("a file of {repository} changed during the download"))
                    .advise("try again")
            }
            RequestError::Unreachable(reason) => self.unreachable(&reason),
            RequestError::Status(401 | 403) if self.has_token => {
                HubError::new(format!("{repository}: the Hub refuses this access token")).advise(
                    "check the name, accept the model's terms on its page, \
                     and use a token that may read it",
                )
            }
            // The Hub also answers 401 for repositories that do not exist.
            RequestError::Status(401 | 403) => {
                HubError::new(format!("{repository} does not exist, or needs an access token"))
                    .advise("check the name; for a gated model set HF_TOKEN")
            }
            RequestError::Status(404) => {
                HubError::new(format!("{repository} does not exist on the Hub"))
                    .advise("check the spelling of owner/repo and of the revision")
            }
            RequestError::Status(status) => {
                HubError::new(format!("{} answers with status {status}", self.endpoint))
                    .advise("try again later; the download resumes where it stopped")
            }
        }
    }
}

/// Hashes the partial file of an earlier attempt.
fn take_in(file: &mut File, digest: &mut Digest) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(()),
            count => digest.update(&buffer[..count]),
        }
    }
}

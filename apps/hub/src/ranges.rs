//! Reads of file parts by range requests.

use crate::client::{Client, RequestError, Target, broken};
use crate::error::HubError;
use crate::listing::RemoteFile;
use std::collections::HashMap;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use ureq::Body;
use ureq::http::{HeaderMap, Response};

/// Maximum number of attempts without [`PROGRESS_BYTES`] of progress.
const ATTEMPTS_MAX: u32 = 5;

/// Number of bytes that reset the attempts. A server that sends less before it disconnects makes no progress.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Maximum size in bytes of a chunk passed to a sink.
const CHUNK_BYTES: usize = 1 << 18;

/// Number of bytes from which a response tells the rate of its connection.
const RATE_BYTES_MIN: u64 = 32 << 10;

/// A reader of parts of remote files.
#[derive(Debug)]
pub struct Ranges {
    client: Client,
    place: FilePlace,
    /// Addresses that redirects led to, by file name. Signed ones expire.
    found: Mutex<HashMap<String, Target>>,
    /// Mean time to the head of a response in microseconds, and mean rate of its body in bytes per second. 0 is
    /// unknown.
    latency_us: AtomicU64,
    rate: AtomicU64,
}

#[derive(Debug)]
enum FilePlace {
    /// Address of the folder of all files.
    Folder(String),
    /// Files by name.
    Files(HashMap<String, FileSource>),
    /// Files that must not be requested, because the network is off.
    Offline,
}

/// Address of a remote file, and its version if the server names one. Only this version is read.
#[derive(Clone, Debug)]
pub struct FileSource {
    pub address: String,
    pub version: Option<String>,
}

impl Ranges {
    /// Creates a reader of a repository's files.
    pub fn of_folder(client: Client, address: String) -> Self {
        Self::new(client, FilePlace::Folder(address))
    }

    /// Creates a reader of files with addresses of their own, by file name.
    pub fn of_files(client: Client, files: HashMap<String, FileSource>) -> Self {
        Self::new(client, FilePlace::Files(files))
    }

    /// Creates a reader that refuses each read, because the network is off.
    pub fn offline(client: Client) -> Self {
        Self::new(client, FilePlace::Offline)
    }

    fn new(client: Client, place: FilePlace) -> Self {
        let (latency_us, rate) = (AtomicU64::new(0), AtomicU64::new(0));
        Self { client, place, found: Mutex::default(), latency_us, rate }
    }

    /// Returns the number of bytes that arrive in the time of an empty request, or `None` before it was measured.
    pub fn request_cost_bytes(&self) -> Option<u64> {
        let (latency, rate) =
            (self.latency_us.load(Ordering::Relaxed), self.rate.load(Ordering::Relaxed));
        (latency > 0 && rate > 0).then(|| latency.saturating_mul(rate) / 1_000_000)
    }

    /// Reads a range of a file.
    pub fn read(&self, file: &RemoteFile, range: Range<u64>) -> Result<Vec<u8>, RequestError> {
        let mut bytes = Vec::new();
        self.stream(file, range, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Passes a range of a file to `sink` in chunks. Resumes after an interrupted connection. Never passes
    /// more than the range, regardless of the response.
    pub fn stream(
        &self,
        file: &RemoteFile,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HubError>,
    ) -> Result<(), RequestError> {
        if range.end > file.size {
            let (name, size) = (&file.name, file.size);
            let message = format!("{name} has {size} bytes, so no byte {}", range.end - 1);
            return Err(RequestError::Failed(HubError::new(message)));
        }
        let (mut at, mut counted_from, mut attempts) = (range.start, range.start, 0);
        while at < range.end {
            let Err(error) = self.attempt(file, &mut at, range.end, sink) else { break };
            if at - counted_from >= PROGRESS_BYTES {
                (counted_from, attempts) = (at, 0);
            }
            attempts += 1;
            match error {
                RequestError::Unreachable(_) | RequestError::Status(408 | 429 | 500..)
                    if attempts < ATTEMPTS_MAX =>
                {
                    std::thread::sleep(self.client.limits.pause * (1 << (attempts - 1)));
                }
                other => return Err(other),
            }
        }
        Ok(())
    }

    /// Sends one request for the bytes from `at`, and advances `at` by the received bytes.
    fn attempt(
        &self,
        file: &RemoteFile,
        at: &mut u64,
        end: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), HubError>,
    ) -> Result<(), RequestError> {
        let range = format!("bytes={at}-{}", end - 1);
        let started = Instant::now();
        let (response, version) = self.request(&file.name, &range)?;
        note(&self.latency_us, started.elapsed().as_micros() as u64);
        if version.is_some() && version != version_of(response.headers()).as_ref() {
            return Err(RequestError::Changed);
        }
        let content = response.headers().get("content-range");
        let content = content.and_then(|value| value.to_str().ok());
        let whole = *at == 0 && end == file.size && response.status() == 200;
        let length = content.and_then(|content| content.rsplit_once('/')?.1.parse::<u64>().ok());
        if length.is_some_and(|length| length != file.size) {
            return Err(RequestError::Changed);
        }
        let expected = format!("bytes {at}-{}/{}", end - 1, file.size);
        if !whole && content != Some(expected.as_str()) {
            return Err(RequestError::Failed(gives_no_parts(&file.name)));
        }
        let (started, from) = (Instant::now(), *at);
        let mut reader = self.client.read(response.into_body());
        // Default: a whole chunk, if the rest exceeds the address space.
        let wanted = |at| usize::try_from(end - at).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut chunk = vec![0; wanted(*at)];
        while *at < end {
            let wanted = wanted(*at);
            let count = match reader.read(&mut chunk[..wanted]) {
                Ok(0) => return Err(RequestError::Unreachable("the answer ended early".into())),
                Ok(count) => count,
                Err(error) => return Err(broken(&error, &self.client.limits)),
            };
            sink(&chunk[..count]).map_err(RequestError::Failed)?;
            *at += count as u64;
        }
        let micros = started.elapsed().as_micros() as u64;
        if *at - from >= RATE_BYTES_MIN && micros > 0 {
            note(&self.rate, (*at - from).saturating_mul(1_000_000) / micros);
        }
        Ok(())
    }

    /// Requests a part of a file. An address that a redirect led to is used again. If it is refused, it may have
    /// expired, and the file's own address is requested.
    fn request(
        &self,
        name: &str,
        range: &str,
    ) -> Result<(Response<Body>, Option<&String>), RequestError> {
        let (address, version) = match &self.place {
            FilePlace::Folder(folder) => (&format!("{folder}/{name}"), None),
            FilePlace::Files(files) => match files.get(name) {
                Some(source) => (&source.address, source.version.as_ref()),
                None => return Err(RequestError::Status(404)),
            },
            FilePlace::Offline => return Err(RequestError::Failed(is_offline(name))),
        };
        let known = self.found().get(name).cloned();
        if let Some(known) = known {
            match self.client.follow(known, Some(range), None) {
                Ok((response, _)) => return Ok((response, version)),
                Err(_) => drop(self.found().remove(name)),
            }
        }
        let own = Target::of_endpoint(address)?;
        let followed = self.client.follow(own.clone(), Some(range), None);
        let (response, target) = followed.map_err(|error| match error {
            // The range is within the file that was begun.
            RequestError::Status(416) => RequestError::Changed,
            error => error,
        })?;
        if target != own {
            self.found().insert(name.to_owned(), target);
        }
        Ok((response, version))
    }

    fn found(&self) -> MutexGuard<'_, HashMap<String, Target>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a measurement to a mean in which later ones weigh more.
fn note(mean: &AtomicU64, value: u64) {
    let before = mean.load(Ordering::Relaxed);
    let after = if before == 0 { value } else { (3 * before + value) / 4 };
    mean.store(after.max(1), Ordering::Relaxed);
}

fn is_offline(name: &str) -> HubError {
    HubError::new(format!("a part of {name} is not on this machine, and the network is off"))
        .advise("leave out --offline (and HF_HUB_OFFLINE)")
}

/// Returns the entity tag of a file, otherwise its date of modification. A weak tag may belong to different
/// bytes, so it is no version.
pub fn version_of(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    text("etag").filter(|tag| !tag.starts_with("W/")).or_else(|| text("last-modified"))
}

pub fn gives_no_parts(name: &str) -> HubError {
    HubError::new(format!("the server does not give parts of {name}"))
        .advise("check the address (or HF_ENDPOINT), or try again later")
}

//! Reads of file parts by range requests.

use crate::client::{Client, RequestError, broken};
use crate::error::HubError;
use crate::listing::RemoteFile;
use std::io::Read;
use std::ops::Range;
use ureq::http::HeaderMap;

/// Maximum number of attempts without [`PROGRESS_BYTES`] of progress.
const ATTEMPTS_MAX: u32 = 5;

/// Number of bytes that reset the attempts. A server that sends less before it disconnects makes no progress.
const PROGRESS_BYTES: u64 = 1 << 20;

/// Maximum size in bytes of a chunk passed to a sink.
const CHUNK_BYTES: usize = 1 << 18;

/// A reader of parts of remote files.
#[derive(Debug)]
pub struct Ranges {
    client: Client,
    place: FilePlace,
}

#[derive(Debug)]
enum FilePlace {
    /// Address of the folder of all files.
    Folder(String),
    /// Address of the only file, and its version if the server names one.
    File { address: String, version: Option<String> },
}

impl Ranges {
    /// Creates a reader of a repository's files.
    pub fn of_folder(client: Client, address: String) -> Self {
        Self { client, place: FilePlace::Folder(address) }
    }

    /// Creates a reader of one file, of which only this version is read.
    pub fn of_file(client: Client, address: String, version: Option<String>) -> Self {
        Self { client, place: FilePlace::File { address, version } }
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
        let (address, version) = match &self.place {
            FilePlace::Folder(folder) => (&format!("{folder}/{}", file.name), None),
            FilePlace::File { address, version } => (address, version.as_ref()),
        };
        let range = format!("bytes={at}-{}", end - 1);
        let response = self.client.get(address, Some(&range), None)?;
        if version.is_some() && version != version_of(response.headers()).as_ref() {
            return Err(RequestError::Changed);
        }
        let content = response.headers().get("content-range");
        let expected = format!("bytes {at}-{}/{}", end - 1, file.size);
        let whole = *at == 0 && end == file.size && response.status() == 200;
        if !whole && content.and_then(|value| value.to_str().ok()) != Some(expected.as_str()) {
            return Err(RequestError::Failed(gives_no_parts(&file.name)));
        }
        let mut reader = self.client.read(response.into_body());
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
        Ok(())
    }
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

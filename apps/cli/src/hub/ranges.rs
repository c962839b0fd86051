//! Parts of files, by range requests.

use super::download::{ATTEMPTS_MAX, Hub, Trouble, trouble};
use super::listing::Wanted;
use crate::failure::Failure;
use std::io::Read;
use std::ops::Range;
use std::time::Duration;
use ureq::Agent;
use ureq::config::RedirectAuthHeaders;

/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// Bytes that are handed on at a time.
const CHUNK_BYTES: usize = 1 << 18;

/// What reads parts of a repository's files.
#[derive(Debug)]
pub struct Ranges {
    agent: Agent,
    token: Option<String>,
    /// Address of the folder that the files lie in.
    base: String,
}

impl Ranges {
    pub fn new(hub: &Hub<'_>, commit: &str) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("nestling/", env!("CARGO_PKG_VERSION")))
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(SILENCE))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        let base = format!("{}/{}/resolve/{commit}", hub.endpoint, hub.repository.id);
        Self { agent: config.new_agent(), token: hub.token.clone(), base }
    }

    /// Some bytes of a file.
    pub fn read(&self, file: &Wanted, range: Range<u64>) -> Result<Vec<u8>, Trouble> {
        let mut bytes = Vec::new();
        self.stream(file, range, &mut |chunk| {
            bytes.extend_from_slice(chunk);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Hands a range of a file to `sink`, piece by piece, going on after a broken line where it
    /// stopped.
    pub fn stream(
        &self,
        file: &Wanted,
        range: Range<u64>,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Trouble> {
        if range.end > file.size {
            let (name, size) = (&file.name, file.size);
            let message = format!("{name} has {size} bytes, so no byte {}", range.end - 1);
            return Err(Trouble::Failed(Failure::new(message)));
        }
        let (mut at, mut attempts) = (range.start, 0);
        while at < range.end {
            let before = at;
            let Err(error) = self.attempt(file, &mut at, range.end, sink) else { break };
            attempts = if at > before { 1 } else { attempts + 1 };
            match error {
                Trouble::Unreachable(_) | Trouble::Status(408 | 429 | 500..)
                    if attempts < ATTEMPTS_MAX =>
                {
                    std::thread::sleep(Duration::from_millis(250 << attempts));
                }
                other => return Err(other),
            }
        }
        Ok(())
    }

    /// One request for the bytes from `at` on; what has arrived is counted in `at`.
    fn attempt(
        &self,
        file: &Wanted,
        at: &mut u64,
        end: u64,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Trouble> {
        let mut request = self
            .agent
            .get(format!("{}/{}", self.base, file.name))
            .header("Range", format!("bytes={at}-{}", end - 1))
            // A compressed answer has other bytes.
            .header("Accept-Encoding", "identity");
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response = request.call().map_err(|error| trouble(&error))?;
        let content = response.headers().get("content-range");
        let expected = format!("bytes {at}-{}/{}", end - 1, file.size);
        let whole = *at == 0 && end == file.size && response.status() == 200;
        if !whole && content.and_then(|value| value.to_str().ok()) != Some(expected.as_str()) {
            return Err(Trouble::Failed(
                Failure::new(format!("the server does not give parts of {}", file.name))
                    .advise("check HF_ENDPOINT, or try again later"),
            ));
        }
        let mut reader = response.into_body().into_with_config().limit(end - *at).reader();
        let mut chunk = vec![0; CHUNK_BYTES];
        while *at < end {
            let count = match reader.read(&mut chunk) {
                Ok(0) => return Err(Trouble::Unreachable("the answer ended early".into())),
                Ok(count) => count.min(usize::try_from(end - *at).unwrap_or(usize::MAX)),
                Err(error) => return Err(Trouble::Unreachable(crate::failure::plain(&error))),
            };
            sink(&chunk[..count]).map_err(Trouble::Failed)?;
            *at += count as u64;
        }
        Ok(())
    }
}

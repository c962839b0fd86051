//! A store's bytes from a server, kept in blocks.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nestling::formats::store::Storage;

use crate::blocks::Blocks;
use crate::ranges::{RangeError, RangeSource, check};

/// Maximum bytes of a request; also the bytes that a tab closed in mid-request fetches again.
pub const REQUEST_BYTES: u64 = 1 << 20;

/// Storage that fetches missing blocks with range requests.
#[derive(Debug)]
pub struct RangeStorage {
    name: String,
    length: u64,
    state: Mutex<Transfer>,
}

struct Transfer {
    source: Box<dyn RangeSource>,
    blocks: Blocks,
    fetched_bytes: u64,
    requests: u64,
}

impl std::fmt::Debug for Transfer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("blocks", &self.blocks).finish_non_exhaustive()
    }
}

impl RangeStorage {
    /// Opens a file on a server with the blocks of earlier visits, unless the file has changed since.
    ///
    /// Without a connection, the blocks are used unchecked; checksums still protect their contents.
    ///
    /// # Errors
    /// Fails with a [`RangeError`] if nothing is stored and the first request fails, or if the storage fails.
    pub fn open(source: Box<dyn RangeSource>, blocks: Blocks) -> Result<Self, RangeError> {
        let mut state = Transfer { source, blocks, fetched_bytes: 0, requests: 0 };
        let name = state.source.url();
        if state.blocks.version().is_none() || state.has_changed() {
            state.fetch(&(0..REQUEST_BYTES), true)?;
        }
        // Default: 0 is unreachable, since a successful fetch sets the version.
        let length = state.blocks.version().map_or(0, |version| version.length);
        Ok(Self { name, length, state: Mutex::new(state) })
    }

    /// Fetches missing bytes of `range` with at most one request. Returns true if none are missing any more.
    ///
    /// # Errors
    /// Fails with a [`RangeError`].
    pub fn bring(&self, range: &Range<u64>) -> Result<bool, RangeError> {
        let mut state = self.state();
        if let Some(missing) = state.blocks.first_missing(range, REQUEST_BYTES) {
            state.fetch(&missing, false)?;
        }
        Ok(state.blocks.first_missing(range, REQUEST_BYTES).is_none())
    }

    /// Returns whether the file starts with `bytes`, which are fetched if they are missing.
    ///
    /// # Errors
    /// Fails with a [`RangeError`].
    pub fn starts_with<const N: usize>(&self, bytes: [u8; N]) -> Result<bool, RangeError> {
        let range = 0..N as u64;
        if range.end > self.length {
            return Ok(false);
        }
        while !self.bring(&range)? {}
        let mut found = [0; N];
        self.state().blocks.read(0, &mut found)?;
        Ok(found == bytes)
    }

    /// Removes the blocks of `range`, so that they are fetched again.
    ///
    /// # Errors
    /// Fails with [`RangeError::Storage`].
    pub fn forget(&self, range: &Range<u64>) -> Result<(), RangeError> {
        self.state().blocks.forget(range)
    }

    /// Returns the bytes fetched since the storage was opened.
    pub fn fetched_bytes(&self) -> u64 {
        self.state().fetched_bytes
    }

    /// Returns the number of requests for bytes since the storage was opened, including failed ones.
    pub fn requests(&self) -> u64 {
        self.state().requests
    }

    /// Returns the entity tag of the file; empty if the server sends none.
    pub fn etag(&self) -> String {
        // Default: unreachable, as for the length.
        self.state().blocks.version().map_or_else(String::new, |version| version.etag.clone())
    }

    /// Returns the bytes stored on this device.
    pub fn stored_bytes(&self) -> u64 {
        self.state().blocks.stored_bytes()
    }

    fn state(&self) -> MutexGuard<'_, Transfer> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transfer {
    /// Returns whether the server has another version than the blocks. A server that does not reply has not.
    fn has_changed(&mut self) -> bool {
        // Default: without blocks, any version is another one.
        let Some(known) = self.blocks.version() else { return true };
        match self.source.head() {
            Ok(head) if head.status == 200 => {
                let other_length = head.length.is_some_and(|length| length != known.length);
                other_length || head.etag.is_some_and(|etag| etag != known.etag)
            }
            _ => false,
        }
    }

    /// Fetches and stores a range. `is_first` accepts any version.
    fn fetch(&mut self, range: &Range<u64>, is_first: bool) -> Result<(), RangeError> {
        self.requests += 1;
        let reply = self.source.fetch(range)?;
        self.fetched_bytes += reply.body.len() as u64;
        let known = if is_first { None } else { self.blocks.version() };
        let part = check(&self.source.url(), reply, range, known)?;
        if is_first {
            self.blocks.start(part.version)?;
        }
        self.blocks.write(part.start, &part.bytes)
    }
}

impl Storage for RangeStorage {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= self.length);
        let range = offset..end.ok_or(io::ErrorKind::UnexpectedEof)?;
        while !self.bring(&range).map_err(io::Error::other)? {}
        self.state().blocks.read(offset, out).map_err(io::Error::other)
    }
}

/// First bytes of a storage: a store that ends with a section.
#[derive(Debug)]
pub struct Prefix {
    storage: Arc<RangeStorage>,
    length: u64,
}

impl Prefix {
    /// Creates a view of the first `length` bytes.
    pub fn new(storage: Arc<RangeStorage>, length: u64) -> Self {
        Self { storage, length }
    }
}

impl Storage for Prefix {
    fn name(&self) -> String {
        self.storage.name()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64);
        match end.filter(|end| *end <= self.length) {
            Some(_) => self.storage.read_at(offset, out),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

//! Serialization of sessions.
//!
//! Little-endian layout:
//! 1. magic (8 bytes), version (u32)
//! 2. levels of the pages (4 bytes: highest, lowest, kind, 0; all 0 without pages)
//! 3. model identity (56 bytes)
//! 4. tokens (u64), computed tokens (u64), bytes of a page (u64), bytes of a recurrent state (u64)
//! 5. threshold of the levels (f32)
//! 6. the tokens (u32 each), the pages of the computed tokens in order, the recurrent state after them
//! 7. XXH3-128 of all preceding bytes

use std::io::{Read, Write};

use nestling_formats::memory::{try_reserve, try_with_capacity};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::identity::ModelIdentity;
use crate::levels::{decode_levels, encode_levels};
use crate::model_core::ModelCore;
use crate::open::Model;
use crate::sequence::Sequence;
use crate::session::Session;
use nestling_core::batch::LevelPolicy;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::pages_for;
use nestling_formats::Invariant;

const MAGIC: [u8; 8] = *b"NESTSESS";
const VERSION: u32 = 4;
const HEADER_BYTES: usize = 108;
const HASH_BYTES: usize = 16;

/// Contents of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SnapshotContents {
    /// The tokens only: small, but the KV cache is recomputed when the session resumes.
    Tokens,
    /// The tokens with the KV cache and recurrent state computed for them.
    TokensAndPages,
}

impl Session {
    /// Serializes the session for [`Model::restore`].
    ///
    /// Waits for the step that is running, but never blocks other steps for longer than the copy of one page.
    ///
    /// # Errors
    /// Fails with [`EngineError::SessionBusy`] while a generation runs, or with an error of the device.
    pub fn snapshot(&self, contents: SnapshotContents) -> Result<Vec<u8>, EngineError> {
        let parked = ParkedFork::of(self, contents)?;
        let mut bytes = try_with_capacity("a snapshot", parked.bytes(self.core()))?;
        parked.write(self.core(), &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a snapshot to a file for [`Model::read_snapshot`], holding one page in memory at a time.
    ///
    /// Pass a [`std::io::BufWriter`].
    ///
    /// # Errors
    /// Fails as [`Session::snapshot`] does, or with [`EngineError::SnapshotFile`], in which case the file may
    /// be incomplete.
    pub fn write_snapshot(
        &self,
        contents: SnapshotContents,
        out: &mut impl Write,
    ) -> Result<(), EngineError> {
        ParkedFork::of(self, contents)?.write(self.core(), out)
    }
}

/// A fork of the session whose pages stay unchanged while the session continues.
struct ParkedFork {
    sequence: Sequence,
    /// Number of leading tokens whose pages are written.
    computed: usize,
}

impl ParkedFork {
    fn of(session: &Session, contents: SnapshotContents) -> Result<Self, EngineError> {
        // The fork holds the pages, so that the session itself is not blocked.
        let sequence = session.with(|sequence| sequence.fork_to_read())??;
        let computed = match contents {
            SnapshotContents::Tokens => 0,
            SnapshotContents::TokensAndPages => sequence.computed(),
        };
        Ok(Self { sequence, computed })
    }

    /// Returns an upper bound of the snapshot's size in bytes.
    fn bytes(&self, core: &ModelCore) -> usize {
        let pages = pages_for(self.computed).saturating_mul(core.limits.page_bytes);
        let contents = pages.saturating_add(core.limits.state_bytes);
        let fixed = HEADER_BYTES + HASH_BYTES + self.sequence.tokens().len() * 4;
        fixed.saturating_add(contents)
    }

    /// Writes the snapshot, locking the runner for one page at a time.
    fn write(&self, core: &ModelCore, out: &mut impl Write) -> Result<(), EngineError> {
        let Self { sequence, computed } = self;
        let mut out = HashingWriter { out, hash: Xxh3::new() };
        let levels = sequence.levels().filter(|_| *computed > 0);
        let (levels, threshold) = levels.map_or(([0; 4], 0), encode_levels);
        out.put(&MAGIC)?;
        out.put(&VERSION.to_le_bytes())?;
        out.put(&levels)?;
        out.put(&core.identity.to_bytes())?;
        out.put(&(sequence.tokens().len() as u64).to_le_bytes())?;
        out.put(&(*computed as u64).to_le_bytes())?;
        out.put(&(core.limits.page_bytes as u64).to_le_bytes())?;
        out.put(&(core.limits.state_bytes as u64).to_le_bytes())?;
        out.put(&threshold.to_le_bytes())?;
        for token in sequence.tokens() {
            out.put(&token.to_le_bytes())?;
        }
        for &page in sequence.pages().iter().take(pages_for(*computed)) {
            let contents = core.lock_runner()?.read_page(page)?;
            out.put(&contents)?;
        }
        if let Some(state) = sequence.state().filter(|_| *computed > 0) {
            let contents = core.lock_runner()?.read_state(state)?;
            out.put(&contents)?;
        }
        let hash = out.hash.digest128();
        out.put(&hash.to_le_bytes())
    }
}

/// Writer that hashes its output.
struct HashingWriter<'a, W> {
    out: &'a mut W,
    hash: Xxh3,
}

impl<W: Write> HashingWriter<'_, W> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), EngineError> {
        self.hash.update(bytes);
        self.out.write_all(bytes).map_err(EngineError::SnapshotFile)
    }
}

impl Model {
    /// Restores a session from a file written by [`Session::write_snapshot`], reading up to the end of the
    /// snapshot.
    ///
    /// A header with lengths that this model does not allow is rejected before the rest is read.
    ///
    /// # Errors
    /// Fails as [`Model::restore`] does, or with [`EngineError::SnapshotFile`].
    pub fn read_snapshot(&self, input: &mut impl Read) -> Result<Session, EngineError> {
        let mut bytes = vec![0; HEADER_BYTES];
        input.read_exact(&mut bytes).map_err(EngineError::SnapshotFile)?;
        check_start(&bytes)?;
        let header = Header::fields(&bytes)?;
        self.check_header(&header)?;
        let content = header.content_bytes().and_then(|bytes| bytes.checked_add(HASH_BYTES));
        let rest =
            content.ok_or_else(|| mismatch("size in bytes", "one that memory has", "more"))?;
        try_reserve(&mut bytes, "a snapshot", rest)?;
        let read = input.take(rest as u64).read_to_end(&mut bytes);
        read.map_err(EngineError::SnapshotFile)?;
        self.restore(&bytes)
    }

    /// Checks that the header belongs to a session of this model.
    fn check_header(&self, header: &Header) -> Result<(), EngineError> {
        let core = &self.core;
        if let Some((expected, found)) = core.identity.difference(&header.identity) {
            return Err(mismatch("the model it was made with", expected, found));
        }
        require("bytes of a page", core.limits.page_bytes as u64, header.page_bytes)?;
        require("bytes of a state", core.limits.state_bytes as u64, header.state_bytes)?;
        core.check_length(header.tokens)
    }

    /// Restores a session from [`Session::snapshot`].
    ///
    /// The model must have the same identity: the same weights and level and the same KV options. Pages that
    /// do not fit the pools are recomputed later.
    ///
    /// # Errors
    /// Fails with [`EngineError::Snapshot`] if the bytes are damaged or belong to another model.
    pub fn restore(&self, bytes: &[u8]) -> Result<Session, EngineError> {
        let core = &self.core;
        let header = Header::parse(bytes)?;
        self.check_header(&header)?;
        let tokens = header.tokens(bytes)?;
        core.check_tokens(&tokens)?;
        let computed = header.computed;
        let (pages, state) = header.contents(bytes)?;
        let mut sequence = Sequence::new(core.pool.clone());
        if let Some(levels) = header.levels {
            sequence.set_levels(levels);
        }
        sequence.extend(&tokens)?;
        if computed > 0 && sequence.advance_restored(computed).is_ok() {
            for (&page, contents) in sequence.pages().iter().zip(pages) {
                core.lock_runner()?.write_page(page, contents)?;
            }
            if let Some(id) = sequence.state() {
                core.lock_runner()?.write_state(id, state)?;
            }
        }
        Ok(Session::new(self.clone(), sequence))
    }
}

/// Parsed fixed-length part of a snapshot.
struct Header {
    levels: Option<LevelPolicy>,
    identity: ModelIdentity,
    tokens: usize,
    computed: usize,
    page_bytes: u64,
    state_bytes: u64,
}

impl Header {
    /// Parses the header and checks everything that does not depend on a model.
    fn parse(bytes: &[u8]) -> Result<Self, EngineError> {
        let size =
            |needed: usize| mismatch("size in bytes", format!("at least {needed}"), bytes.len());
        let end = bytes.len().checked_sub(HASH_BYTES).filter(|end| *end >= HEADER_BYTES);
        let end = end.ok_or_else(|| size(HEADER_BYTES + HASH_BYTES))?;
        check_start(bytes)?;
        let hash = u128::from_le_bytes(array(bytes, end)?);
        let found = xxh3_128(&bytes[..end]);
        require("XXH3-128 hash", hash, found)?;
        let header = Self::fields(bytes)?;
        let expected = header.content_bytes().and_then(|content| content.checked_add(HEADER_BYTES));
        if expected != Some(end) {
            return Err(mismatch(
                "size in bytes",
                "that of its tokens, pages and state",
                bytes.len(),
            ));
        }
        Ok(header)
    }

    /// Parses the fields. `bytes` has at least the length of a header.
    fn fields(bytes: &[u8]) -> Result<Self, EngineError> {
        let level_bytes = array(bytes, 12)?;
        let identity = ModelIdentity::from_bytes(&array(bytes, 16)?);
        let identity =
            identity.ok_or_else(|| mismatch("model identity", "a known one", "another"))?;
        let (tokens, computed) = (count(bytes, 72)?, count(bytes, 80)?);
        let page_bytes = u64::from_le_bytes(array(bytes, 88)?);
        let state_bytes = u64::from_le_bytes(array(bytes, 96)?);
        let threshold = u32::from_le_bytes(array(bytes, 104)?);
        if computed > tokens {
            return Err(mismatch("computed tokens", format!("at most {tokens}"), computed));
        }
        let levels = decode_levels(level_bytes, threshold);
        if computed > 0 && levels.is_none() {
            return Err(mismatch("levels", "levels of 2, 3, 4, 6 or 8", "others"));
        }
        Ok(Self { levels, identity, tokens, computed, page_bytes, state_bytes })
    }

    /// Returns the size of tokens, pages and state. Returns `None` on overflow.
    fn content_bytes(&self) -> Option<usize> {
        let page_bytes = usize::try_from(self.page_bytes).ok()?;
        let pages = pages_for(self.computed).checked_mul(page_bytes)?;
        let tokens_and_pages = self.tokens.checked_mul(4)?.checked_add(pages)?;
        tokens_and_pages.checked_add(self.state_size()?)
    }

    /// Returns the size of the recurrent state in bytes, which is 0 if no tokens are computed.
    fn state_size(&self) -> Option<usize> {
        if self.computed == 0 { Some(0) } else { usize::try_from(self.state_bytes).ok() }
    }

    fn tokens(&self, bytes: &[u8]) -> Result<Vec<u32>, EngineError> {
        let mut tokens = try_with_capacity("tokens of a snapshot", self.tokens)?;
        for i in 0..self.tokens {
            tokens.push(u32::from_le_bytes(array(bytes, HEADER_BYTES + i * 4)?));
        }
        Ok(tokens)
    }

    /// Returns the pages in order, and the recurrent state.
    fn contents<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<(impl Iterator<Item = &'a [u8]> + use<'a>, &'a [u8]), EngineError> {
        let start = HEADER_BYTES + self.tokens * 4;
        let end = bytes.len() - HASH_BYTES;
        let state = end - self.state_size().invariant("the sizes of a parsed header fit memory")?;
        // A model without attention layers has empty pages, and the range cut here is empty too.
        let page_bytes = usize::try_from(self.page_bytes).unwrap_or(usize::MAX).max(1);
        Ok((bytes[start..state].chunks_exact(page_bytes), &bytes[state..end]))
    }
}

fn check_start(bytes: &[u8]) -> Result<(), EngineError> {
    if bytes.get(..8) != Some(&MAGIC) {
        return Err(mismatch("first bytes", "NESTSESS", "others"));
    }
    let version = u64::from(u32::from_le_bytes(array(bytes, 8)?));
    require("version", u64::from(VERSION), version)
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], EngineError> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().ok_or_else(|| mismatch("size in bytes", at.saturating_add(N), bytes.len()))
}

fn count(bytes: &[u8], at: usize) -> Result<usize, EngineError> {
    Ok(usize::try_from(u64::from_le_bytes(array(bytes, at)?)).unwrap_or(usize::MAX))
}

fn require<T: PartialEq + std::fmt::LowerHex>(
    what: &'static str,
    expected: T,
    found: T,
) -> Result<(), EngineError> {
    if expected == found {
        return Ok(());
    }
    Err(mismatch(what, format!("{expected:#x}"), format!("{found:#x}")))
}

fn mismatch(
    what: &'static str,
    expected: impl std::fmt::Display,
    found: impl std::fmt::Display,
) -> EngineError {
    let (expected, found) = (expected.to_string(), found.to_string());
    EngineError::Snapshot { what, expected, found }
}

//! Sessions as bytes.
//!
//! Little-endian: magic (8 bytes), version (u32), levels of the pages (4 bytes: highest, lowest, how
//! they were chosen, 0; all 0 without pages), model identity (u128), tokens (u64), computed tokens
//! (u64), bytes of a page (u64), bytes of a recurrent state (u64), threshold of the levels (f32), the
//! tokens (u32 each), the pages of the computed tokens in order and the recurrent state after them,
//! XXH3-128 of everything before it.

use nestling_formats::memory::try_with_capacity;
use xxhash_rust::xxh3::xxh3_128;

use crate::levels::{decode_levels, encode_levels};
use crate::open::Model;
use crate::sequence::Sequence;
use crate::session::Session;
use nestling_core::batch::LevelPolicy;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::pages_for;
use nestling_formats::Invariant;

const MAGIC: [u8; 8] = *b"NESTSESS";
const VERSION: u32 = 3;
const HEADER_BYTES: usize = 68;
const HASH_BYTES: usize = 16;

/// How much of a session a snapshot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SnapshotContents {
    /// The tokens: small, and computed again when the session goes on.
    Tokens,
    /// The tokens, and the keys, values and recurrent state that were computed for them.
    TokensAndPages,
}

impl Session {
    /// The session as bytes, for [`Model::restore`]. Waits for a step that is under way.
    ///
    /// # Errors
    /// [`EngineError::SessionBusy`]; a failed device.
    pub fn snapshot(&self, contents: SnapshotContents) -> Result<Vec<u8>, EngineError> {
        // A fork keeps the pages while the session itself is free for others.
        let sequence = self.with(|sequence| sequence.fork_to_read())??;
        let core = self.core();
        let computed = match contents {
            SnapshotContents::Tokens => 0,
            SnapshotContents::TokensAndPages => sequence.computed(),
        };
        let pages = pages_for(computed).saturating_mul(core.limits.page_bytes);
        let contents = pages.saturating_add(core.limits.state_bytes);
        let fixed = HEADER_BYTES + HASH_BYTES + sequence.tokens().len() * 4;
        let mut bytes = try_with_capacity("a snapshot", fixed.saturating_add(contents))?;
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        let levels = sequence.levels().filter(|_| computed > 0);
        let (levels, threshold) = levels.map_or(([0; 4], 0), encode_levels);
        bytes.extend_from_slice(&levels);
        bytes.extend_from_slice(&core.identity.to_le_bytes());
        bytes.extend_from_slice(&(sequence.tokens().len() as u64).to_le_bytes());
        bytes.extend_from_slice(&(computed as u64).to_le_bytes());
        bytes.extend_from_slice(&(core.limits.page_bytes as u64).to_le_bytes());
        bytes.extend_from_slice(&(core.limits.state_bytes as u64).to_le_bytes());
        bytes.extend_from_slice(&threshold.to_le_bytes());
        bytes.extend(sequence.tokens().iter().flat_map(|token| token.to_le_bytes()));
        {
            let mut runner = core.lock_runner()?;
            for &page in sequence.pages().iter().take(pages_for(computed)) {
                bytes.extend(runner.read_page(page)?);
            }
            if let Some(state) = sequence.state().filter(|_| computed > 0) {
                bytes.extend(runner.read_state(state)?);
            }
        }
        bytes.extend_from_slice(&xxh3_128(&bytes).to_le_bytes());
        Ok(bytes)
    }
}

impl Model {
    /// The session that [`Session::snapshot`] was called on, with this same model at the same
    /// level and with the same options for keys and values. What the pools have no room for is
    /// computed again later.
    ///
    /// # Errors
    /// [`EngineError::Snapshot`] for bytes that are damaged or belong to another model.
    pub fn restore(&self, bytes: &[u8]) -> Result<Session, EngineError> {
        let core = &self.core;
        let header = Header::parse(bytes)?;
        require("the model it was made with", core.identity, header.identity)?;
        require("bytes of a page", core.limits.page_bytes as u64, header.page_bytes)?;
        require("bytes of a state", core.limits.state_bytes as u64, header.state_bytes)?;
        let tokens = header.tokens(bytes)?;
        core.check_tokens(&tokens)?;
        core.check_length(tokens.len())?;
        let computed = header.computed;
        let (pages, state) = header.contents(bytes)?;
        let mut sequence = Sequence::new(core.pool.clone());
        if let Some(levels) = header.levels {
            sequence.set_levels(levels);
        }
        sequence.extend(&tokens)?;
        if computed > 0 && sequence.advance_restored(computed).is_ok() {
            let mut runner = core.lock_runner()?;
            for (&page, contents) in sequence.pages().iter().zip(pages) {
                runner.write_page(page, contents)?;
            }
            if let Some(id) = sequence.state() {
                runner.write_state(id, state)?;
            }
        }
        Ok(Session::new(self.clone(), sequence))
    }
}

/// What the fixed part of a snapshot says.
struct Header {
    levels: Option<LevelPolicy>,
    identity: u128,
    tokens: usize,
    computed: usize,
    page_bytes: u64,
    state_bytes: u64,
}

impl Header {
    /// Checks everything that does not depend on a model.
    fn parse(bytes: &[u8]) -> Result<Self, EngineError> {
        let size =
            |needed: usize| mismatch("size in bytes", format!("at least {needed}"), bytes.len());
        let end = bytes.len().checked_sub(HASH_BYTES).filter(|end| *end >= HEADER_BYTES);
        let end = end.ok_or_else(|| size(HEADER_BYTES + HASH_BYTES))?;
        if bytes.get(..8) != Some(&MAGIC) {
            return Err(mismatch("first bytes", "NESTSESS", "others"));
        }
        let version = u64::from(u32::from_le_bytes(array(bytes, 8)?));
        require("version", u64::from(VERSION), version)?;
        let level_bytes = array(bytes, 12)?;
        let threshold = u32::from_le_bytes(array(bytes, 64)?);
        let hash = u128::from_le_bytes(array(bytes, end)?);
        let found = xxh3_128(&bytes[..end]);
        require("XXH3-128 hash", hash, found)?;

        let identity = u128::from_le_bytes(array(bytes, 16)?);
        let (tokens, computed) = (count(bytes, 32)?, count(bytes, 40)?);
        let page_bytes = u64::from_le_bytes(array(bytes, 48)?);
        let state_bytes = u64::from_le_bytes(array(bytes, 56)?);
        if computed > tokens {
            return Err(mismatch("computed tokens", format!("at most {tokens}"), computed));
        }
        let levels = decode_levels(level_bytes, threshold);
        if computed > 0 && levels.is_none() {
            return Err(mismatch("levels", "levels of 2, 3, 4, 6 or 8", "others"));
        }
        let header = Self { levels, identity, tokens, computed, page_bytes, state_bytes };
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

    /// Bytes of tokens, pages and state; none if no memory could hold them.
    fn content_bytes(&self) -> Option<usize> {
        let page_bytes = usize::try_from(self.page_bytes).ok()?;
        let pages = pages_for(self.computed).checked_mul(page_bytes)?;
        let tokens_and_pages = self.tokens.checked_mul(4)?.checked_add(pages)?;
        tokens_and_pages.checked_add(self.state_size()?)
    }

    /// Bytes of the state, if there is one.
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

    /// Pages in order, and the state.
    fn contents<'a>(
        &self,
        bytes: &'a [u8],
    ) -> Result<(impl Iterator<Item = &'a [u8]> + use<'a>, &'a [u8]), EngineError> {
        let start = HEADER_BYTES + self.tokens * 4;
        let end = bytes.len() - HASH_BYTES;
        let state = end - self.state_size().invariant("the sizes of a parsed header fit memory")?;
        // Pages of a model without layers that have any are empty, and so is what is cut here.
        let page_bytes = usize::try_from(self.page_bytes).unwrap_or(usize::MAX).max(1);
        Ok((bytes[start..state].chunks_exact(page_bytes), &bytes[state..end]))
    }
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

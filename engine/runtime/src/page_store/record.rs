//! File format of a page or recurrent state.
//!
//! Little-endian: magic (8 bytes), version (u32), kind (u32), name (32 bytes), length of the contents in
//! bytes (u64), 0 (u64), contents, XXH3-128 of all preceding bytes.

use std::fmt;

use nestling_core::kv_cache::PrefixKey;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"NESTPAGE";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 64;
const HASH_BYTES: usize = 16;
/// Domain separator hashed first, so that names cannot equal hashes of other programs.
const DOMAIN: &[u8] = b"nestling stored page 1";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoredKind {
    Page,
    State,
}

impl StoredKind {
    fn number(self) -> u32 {
        match self {
            Self::Page => 1,
            Self::State => 2,
        }
    }
}

/// Name of a stored page or state: a hash over everything that its contents depend on, including the program
/// version.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageName([u8; 32]);

impl PageName {
    /// Returns the stored name of the page or state kept under a key.
    ///
    /// Another program version may compute different bits, so its names differ.
    pub(crate) fn new(kind: StoredKind, key: &PrefixKey) -> Self {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(env!("CARGO_PKG_VERSION"));
        hash.update(kind.number().to_le_bytes());
        hash.update(key.0);
        Self(hash.finalize().into())
    }

    /// Parses 64 lower-case hexadecimal digits. Returns `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        if pairs.len() != 32 || !rest.is_empty() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageName({self})")
    }
}

/// Returns the size of a record with `contents` bytes of contents. Returns `None` on overflow.
pub(super) fn record_bytes(contents: usize) -> Option<usize> {
    contents.checked_add(HEADER_BYTES + HASH_BYTES)
}

/// Returns the header and the checksum of a record.
pub(super) fn frame(kind: StoredKind, name: &PageName, contents: &[u8]) -> Frame {
    let mut header = [0; HEADER_BYTES];
    let fields: [&[u8]; 5] = [
        &MAGIC,
        &VERSION.to_le_bytes(),
        &kind.number().to_le_bytes(),
        &name.0,
        &(contents.len() as u64).to_le_bytes(),
    ];
    let bytes = fields.into_iter().flatten();
    header.iter_mut().zip(bytes).for_each(|(place, byte)| *place = *byte);
    let mut hash = Xxh3::new();
    hash.update(&header);
    hash.update(contents);
    Frame { header, hash: hash.digest128().to_le_bytes() }
}

pub(super) struct Frame {
    pub header: [u8; HEADER_BYTES],
    pub hash: [u8; HASH_BYTES],
}

/// Returns the contents of a record. Returns `None` unless checksum, kind, name and length match.
pub(super) fn contents<'a>(
    record: &'a [u8],
    kind: StoredKind,
    name: &PageName,
    bytes: usize,
) -> Option<&'a [u8]> {
    let (header, rest) = record.split_first_chunk::<HEADER_BYTES>()?;
    let (contents, hash) = rest.split_last_chunk::<HASH_BYTES>()?;
    let expected = frame(kind, name, contents);
    (contents.len() == bytes && *header == expected.header && *hash == expected.hash)
        .then_some(contents)
}

/// Returns the contents of a record verified by [`contents`].
pub(super) fn unframed(record: &[u8]) -> &[u8] {
    let end = record.len().saturating_sub(HASH_BYTES);
    // Default: a verified record has header and checksum.
    record.get(HEADER_BYTES..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{PageName, StoredKind, contents, frame, record_bytes};
    use nestling_core::kv_cache::PrefixKey;

    fn record(kind: StoredKind, name: &PageName, bytes: &[u8]) -> Vec<u8> {
        let frame = frame(kind, name, bytes);
        [&frame.header[..], bytes, &frame.hash].concat()
    }

    #[test]
    fn only_the_whole_record_of_its_name_is_read() {
        let name = PageName::new(StoredKind::Page, &PrefixKey([3; 32]));
        let record = record(StoredKind::Page, &name, b"keys and values");
        assert_eq!(Some(record.len()), record_bytes(15));
        assert_eq!(contents(&record, StoredKind::Page, &name, 15), Some(&b"keys and values"[..]));
        assert_eq!(contents(&record, StoredKind::State, &name, 15), None);
        assert_eq!(contents(&record, StoredKind::Page, &name, 14), None);
        let other = PageName::new(StoredKind::State, &PrefixKey([3; 32]));
        assert_eq!(contents(&record, StoredKind::Page, &other, 15), None);
        for at in 0..record.len() * 8 {
            let mut damaged = record.clone();
            damaged[at / 8] ^= 1 << (at % 8);
            assert_eq!(contents(&damaged, StoredKind::Page, &name, 15), None, "bit {at}");
        }
        for length in 0..record.len() {
            assert_eq!(contents(&record[..length], StoredKind::Page, &name, 15), None);
        }
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        let name = PageName::new(StoredKind::State, &PrefixKey([9; 32]));
        let text = name.to_string();
        assert_eq!(PageName::parse(&text), Some(name));
        let long = format!("{text}00");
        for text in ["", "..", &text[1..], &text.to_uppercase(), &long, "é"] {
            assert_eq!(PageName::parse(text), None, "{text}");
        }
    }
}

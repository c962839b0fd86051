//! One page or recurrent state as the bytes of a file.
//!
//! Little-endian: magic (8 bytes), version (u32), what it is (u32), its name (32 bytes), bytes of the
//! contents (u64), 0 (u64), the contents, XXH3-128 of everything before it.

use std::fmt;

use nestling_core::kv_cache::PrefixKey;
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::Xxh3;

const MAGIC: [u8; 8] = *b"NESTPAGE";
const VERSION: u32 = 1;
pub(super) const HEADER_BYTES: usize = 64;
const HASH_BYTES: usize = 16;
/// What comes first in every name, so that it is no other program's.
const DOMAIN: &[u8] = b"nestling stored page 1";

/// What was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StoredKind {
    /// A page of keys and values.
    Page,
    /// A recurrent state.
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

/// The name of a stored page or state: a hash over everything that its contents depend on, the version of this
/// program among it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageName([u8; 32]);

impl PageName {
    /// The name of what is kept under a key in memory. Another version of this program may compute other bits, so it
    /// has other names.
    pub(crate) fn new(kind: StoredKind, key: &PrefixKey) -> Self {
        let mut hash = Sha256::new();
        hash.update(DOMAIN);
        hash.update(env!("CARGO_PKG_VERSION"));
        hash.update(kind.number().to_le_bytes());
        hash.update(key.0);
        Self(hash.finalize().into())
    }

    /// The name that 64 lower-case hexadecimal digits stand for; none for anything else.
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

/// Bytes of the record of so many bytes of contents; none where no file could have as many.
pub(super) fn record_bytes(contents: usize) -> Option<usize> {
    contents.checked_add(HEADER_BYTES + HASH_BYTES)
}

/// What stands before and behind the contents of a record.
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

/// See [`frame`].
pub(super) struct Frame {
    pub header: [u8; HEADER_BYTES],
    pub hash: [u8; HASH_BYTES],
}

/// The contents of a record that is whole, is what it should be and has so many bytes; none for all else.
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

/// The contents of a record that [`contents`] found whole.
pub(super) fn unframed(record: &[u8]) -> &[u8] {
    let end = record.len().saturating_sub(HASH_BYTES);
    // Default: a whole record has both ends.
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

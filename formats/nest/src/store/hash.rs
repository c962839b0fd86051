//! XXH3-128 checksums, seeded with the identity of the hashed data.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::format::NONE;
use super::wide_hash;

/// Identity of a store: a hash of its source, its parameters and the format version.
///
/// Conversions of the same source with the same parameters have the same id and identical bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl std::fmt::Display for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Returns XXH3-128 as stored: little-endian.
pub(super) fn hash(seed: u64, bytes: &[u8]) -> [u8; 16] {
    wide_hash::hash(seed, bytes).to_le_bytes()
}

pub(super) struct Hasher(Xxh3);

impl Hasher {
    pub fn new(seed: u64) -> Self {
        Self(Xxh3::with_seed(seed))
    }

    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn finish(&self) -> [u8; 16] {
        self.0.digest128().to_le_bytes()
    }
}

/// Returns the hash seed for an item of a store that is identified by four words.
pub(super) fn place_seed(id: StoreId, words: [u32; 4]) -> u64 {
    let mut material = [0; 32];
    material[..16].copy_from_slice(&id.0);
    for (bytes, word) in material[16..].chunks_exact_mut(4).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    xxh3_64(&material)
}

pub(super) fn index_seed(id: StoreId) -> u64 {
    place_seed(id, [NONE; 4])
}

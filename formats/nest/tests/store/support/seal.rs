//! Recomputes the checksums of a store whose header or index was modified on purpose. The checks behind the
//! checksums are then reached.

use nestling_formats::store::format::HEADER_BYTES;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128_with_seed};

/// Header field: id of the store.
pub const ID: std::ops::Range<usize> = 32..48;
/// Header field: length of the index.
pub const INDEX_LENGTH: usize = 56;
/// Header field: hash of the index.
pub const INDEX_HASH: std::ops::Range<usize> = 64..80;

/// Updates the checksums of header and index, as far as the lengths allow.
pub fn seal(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let length = u64::from_le_bytes(bytes[INDEX_LENGTH..INDEX_LENGTH + 8].try_into().unwrap());
    let end = usize::try_from(length).ok().and_then(|length| length.checked_add(HEADER_BYTES));
    if let Some(index) = end.and_then(|end| bytes.get(HEADER_BYTES..end)) {
        let mut material = [0xff; 32];
        material[..16].copy_from_slice(&bytes[ID]);
        let hash = xxh3_128_with_seed(index, xxh3_64(&material));
        bytes[INDEX_HASH].copy_from_slice(&hash.to_le_bytes());
    }
    let hash = xxh3_128_with_seed(&bytes[..HEADER_BYTES - 16], 0);
    bytes[HEADER_BYTES - 16..HEADER_BYTES].copy_from_slice(&hash.to_le_bytes());
}

//! Sizes beyond which nothing is accepted, as far as they are not the file format's own.

/// Bytes of a tokenizer, a chat template or another asset.
pub const MAX_ASSET_BYTES: u64 = 64 << 20;

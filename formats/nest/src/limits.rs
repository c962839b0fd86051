//! Size limits for inputs, other than those of the file format itself.

/// Maximum size in bytes of a tokenizer, chat template or other asset.
pub const MAX_ASSET_BYTES: u64 = 64 << 20;

//! Size limits for inputs that the file format itself does not limit.

/// Maximum size in bytes of a tokenizer, chat template or other asset.
pub const MAX_ASSET_BYTES: u64 = 64 << 20;

//! The largest sizes that are accepted, in one place. A file that asks for more is refused by name
//! before anything is allocated for it.

pub use nestling_formats::limits::MAX_ASSET_BYTES;

/// Bytes of a `config.json`, a `generation_config.json` or another small JSON file.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Bytes of the header of a safetensors file. The format allows 100,000,000; a tensor takes some 130, and
/// the largest published models have 240,000 of them, in many files.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 32 << 20;
/// Bytes of a `model.safetensors.index.json`; a tensor takes some 100.
pub const MAX_SAFETENSORS_INDEX_BYTES: u64 = 32 << 20;
/// Entries of a safetensors header's `__metadata__`; published ones have one.
pub const MAX_SAFETENSORS_METADATA: usize = 1 << 12;
/// Bytes of the header of a GGUF file, before its tensors; tokenizers take up to 20 MB of it.
pub const MAX_GGUF_HEADER_BYTES: u64 = 32 << 20;
/// Metadata keys of a GGUF file.
pub const MAX_GGUF_KEYS: u64 = 1 << 14;
/// Values of one array of a GGUF file's metadata.
pub const MAX_GGUF_ARRAY: u64 = 1 << 20;
/// Tokens of a GGUF file's vocabulary; published ones have up to 262,144.
pub const MAX_GGUF_TOKENS: usize = 1 << 19;
/// Bytes of a token, or of a merge of two.
pub const MAX_GGUF_TOKEN_BYTES: usize = 1 << 12;
/// Tensors of a GGUF file; experts are stacked, so that no model has many.
pub const MAX_GGUF_TENSORS: u64 = 1 << 15;
/// Bytes of a chat template within other metadata; published ones have up to 30 kB.
pub const MAX_CHAT_TEMPLATE_BYTES: u64 = 1 << 20;
/// Files of one checkpoint.
pub const MAX_SHARDS: usize = 10_000;
/// Tensors of one checkpoint.
pub const MAX_TENSORS: usize = 1 << 19;
/// Dimensions of a tensor.
pub const MAX_TENSOR_RANK: usize = 8;

/// `num_hidden_layers`.
pub const MAX_LAYERS: usize = 1024;
/// `hidden_size`, `intermediate_size` and `moe_intermediate_size`.
pub const MAX_WIDTH: usize = 1 << 17;
/// `vocab_size`.
pub const MAX_VOCABULARY: usize = 1 << 21;
/// `num_attention_heads`.
pub const MAX_HEADS: usize = 1024;
/// `head_dim`.
pub const MAX_HEAD_DIM: usize = 1024;
/// `linear_conv_kernel_dim`.
pub const MAX_CONV_KERNEL: usize = 16;
/// Experts of all layers together; published models have up to 23,000.
pub const MAX_EXPERTS_OF_ALL_LAYERS: usize = 1 << 16;
/// `num_experts`.
pub const MAX_EXPERTS: usize = 4096;
/// `n_group`.
pub const MAX_EXPERT_GROUPS: usize = 64;
/// `num_experts_per_tok`.
pub const MAX_EXPERTS_PER_TOKEN: usize = 64;
/// `max_position_embeddings`.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Angles of a head that may have a factor of their own: those of heads of 128 elements.
pub const MAX_ANGLE_FACTORS: usize = 64;
/// End-of-sequence tokens.
pub const MAX_EOS_TOKENS: usize = 64;

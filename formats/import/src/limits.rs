//! Maximum accepted sizes. A file that exceeds one is rejected by name before memory is allocated.

pub use nestling_formats::limits::MAX_ASSET_BYTES;

/// Maximum size in bytes of `config.json`, `generation_config.json` and other small JSON files.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Maximum size in bytes of a safetensors header. The format allows 100,000,000. A tensor takes about 130
/// bytes, and the largest published models have 240,000 tensors in many files.
pub const MAX_SAFETENSORS_HEADER_BYTES: u64 = 32 << 20;
/// Maximum size in bytes of `model.safetensors.index.json`; a tensor takes about 100.
pub const MAX_SAFETENSORS_INDEX_BYTES: u64 = 32 << 20;
/// Maximum number of entries in the `__metadata__` of a safetensors header; published files have one.
pub const MAX_SAFETENSORS_METADATA: usize = 1 << 12;
/// Maximum size in bytes of a GGUF header. Tokenizers take up to 20 MB of it.
pub const MAX_GGUF_HEADER_BYTES: u64 = 32 << 20;
/// Maximum number of metadata keys in a GGUF file.
pub const MAX_GGUF_KEYS: u64 = 1 << 14;
/// Maximum number of values in a metadata array of a GGUF file.
pub const MAX_GGUF_ARRAY: u64 = 1 << 20;
/// Maximum vocabulary size of a GGUF file; published files have up to 262,144 tokens.
pub const MAX_GGUF_TOKENS: usize = 1 << 19;
/// Maximum size in bytes of a token or a merge.
pub const MAX_GGUF_TOKEN_BYTES: usize = 1 << 12;
/// Maximum number of tensors in a GGUF file. Experts are stacked, so the number stays small.
pub const MAX_GGUF_TENSORS: u64 = 1 << 15;
/// Maximum size in bytes of a chat template in the metadata; published ones have up to 30 kB.
pub const MAX_CHAT_TEMPLATE_BYTES: u64 = 1 << 20;
/// Maximum number of files in a checkpoint.
pub const MAX_SHARDS: usize = 10_000;
/// Maximum number of tensors in a checkpoint.
pub const MAX_TENSORS: usize = 1 << 19;
/// Maximum number of dimensions of a tensor.
pub const MAX_TENSOR_RANK: usize = 8;

/// Maximum `num_hidden_layers`.
pub const MAX_LAYERS: usize = 1024;
/// Maximum `hidden_size`, `intermediate_size` and `moe_intermediate_size`.
pub const MAX_WIDTH: usize = 1 << 17;
/// Maximum `vocab_size`.
pub const MAX_VOCABULARY: usize = 1 << 21;
/// Maximum `num_attention_heads`.
pub const MAX_HEADS: usize = 1024;
/// Maximum `head_dim`.
pub const MAX_HEAD_DIM: usize = 1024;
/// Maximum `linear_conv_kernel_dim`.
pub const MAX_CONV_KERNEL: usize = 16;
/// Maximum number of experts in all layers together; published models have up to 23,000.
pub const MAX_EXPERTS_OF_ALL_LAYERS: usize = 1 << 16;
/// Maximum `num_experts`.
pub const MAX_EXPERTS: usize = 4096;
/// Maximum `n_group`.
pub const MAX_EXPERT_GROUPS: usize = 64;
/// Maximum `num_experts_per_tok`.
pub const MAX_EXPERTS_PER_TOKEN: usize = 64;
/// Maximum `max_position_embeddings`.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Maximum number of RoPE frequencies with separate factors: the frequencies of a head of 128 elements.
pub const MAX_ANGLE_FACTORS: usize = 64;
/// Maximum number of end-of-sequence tokens.
pub const MAX_EOS_TOKENS: usize = 64;

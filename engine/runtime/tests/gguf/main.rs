//! GGUF files written by llama.cpp: agreement of tokens and logits, and conversion to stores.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod convert;
mod exact;
mod in_place;
mod logits;
mod nvfp4;
mod tokens;

use std::path::PathBuf;

/// Files written by scripts/make_gguf_goldens.py.
const MODELS: &[&str] = &[
    "qwen3-moe",
    "k-quants",
    "olmoe",
    "mixtral",
    "granite-moe",
    "qwen2-moe",
    "qwen3-next",
    "gpt-oss",
    "deepseek-v2-lite",
    "glm4-moe-lite",
    "bailing-moe-v2",
    "ernie4-5-moe",
    "gemma4",
    "qwen3-5-moe",
];

/// BF16 files of tiny families. `formats/import/tests/gguf/published_layout.rs` verifies that their weights
/// are unchanged.
const PUBLISHED: &[&str] = &[
    "bailing-moe-v2-bf16",
    "ernie4-5-moe-bf16",
    "glm4-moe",
    "kimi-k2",
    "minimax-m2",
    "dots1",
    "solar-open",
    "granite-moe-shared",
    "granite-moe-hybrid",
    "nemotron-h",
    "qwen3-vl-moe",
    "llama",
    "llama-bias",
    "qwen2",
    "qwen3",
    "granite",
    "gemma3",
];

/// A file with scale tensors, written by scripts/make_nvfp4_golden.py.
const NVFP4: &str = "qwen3-moe-nvfp4";

fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gguf")).join(name)
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(data(name)).unwrap()).unwrap()
}

//! GGUF files of llama.cpp, versions 2 and 3: metadata, tensor table and data.
//!
//! [`crate::Checkpoint::open`] opens a GGUF file, or the first part of a split one, as a checkpoint. The
//! contents of `config.json` and `tokenizer.json` are generated from the metadata. Format:
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

mod assets;
mod block;
mod config;
mod cursor;
mod element_layout;
mod families;
mod family;
mod frequencies;
mod granite;
mod grids;
mod header;
mod i_quants;
mod k_quants;
mod key;
mod keys;
mod laguna;
mod laguna_layers;
mod metadata;
mod nemotron;
mod parts;
mod pretokenizers;
mod scaled;
mod ternary;
mod tokenizer;
mod windows;

pub use assets::assets;
pub use block::BlockType;
pub(crate) use block::decode_nvfp4;
pub use config::config_json;
pub use header::{GgufHeader, GgufTensor};
pub use metadata::{GgufArray, GgufMetadata, GgufText, GgufValue};
pub use parts::part_names;
pub(crate) use pretokenizers::KIMI_K2;
pub(crate) use scaled::take_units;
pub use scaled::{ScaledBlocks, ScaledRun, WrongBlock};
pub use tokenizer::tokenizer_json;

//! GGUF files: element types, metadata, and files that are meant to do harm.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod blocks;
mod builder;
mod checkpoint;
mod files;
mod hostile;
mod published_layout;
mod scaled;

use std::path::PathBuf;

/// The files that scripts/make_gguf_goldens.py writes.
fn data(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data/gguf"))
        .join(name)
}

//! The demo model's checkpoint, which is too large for the repository.
//!
//! Tests that need it are ignored by default. `.ci/deep` runs them where it exists.

use std::path::{Path, PathBuf};

/// Returns the path of the full demo checkpoint.
pub fn demo_checkpoint() -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/demo-model/hf");
    let path = std::env::var_os("NESTLING_DEMO_HF").map_or(beside, PathBuf::from);
    assert!(path.join("config.json").is_file(), "no checkpoint at {}", path.display());
    path
}

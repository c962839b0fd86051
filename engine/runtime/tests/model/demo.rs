//! The demo model's checkpoint, which is too large for the repository.

use std::path::{Path, PathBuf};

/// The full demo checkpoint, where it is found.
pub fn demo_checkpoint() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/demo-model/hf");
    let path = std::env::var_os("NESTLING_DEMO_HF").map_or(beside, PathBuf::from);
    if path.join("config.json").is_file() {
        return Some(path);
    }
    println!("SKIPPED: no demo checkpoint at {} (set NESTLING_DEMO_HF)", path.display());
    None
}

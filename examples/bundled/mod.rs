//! Selection of the model that the examples use.

use std::path::{Path, PathBuf};

/// Returns the first argument, or the store in the source tree.
pub fn model_path() -> PathBuf {
    if let Some(path) = std::env::args_os().nth(1) {
        return path.into();
    }
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
    let entries = std::fs::read_dir(&models).into_iter().flatten().flatten();
    let mut stores: Vec<_> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "nest"))
        .collect();
    stores.sort();
    stores.into_iter().next().unwrap_or_else(|| models.join("give-a-path-as-argument.nest"))
}

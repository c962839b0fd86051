//! What the operating system says about the machine.

mod groups;
pub mod linux;
pub mod memory;

use std::path::{Path, PathBuf};

/// The system's own files, below a root that tests can set.
#[derive(Clone, Debug)]
pub struct SystemFiles {
    root: PathBuf,
}

impl Default for SystemFiles {
    fn default() -> Self {
        Self { root: PathBuf::from("/") }
    }
}

impl SystemFiles {
    #[cfg(test)]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The text of a file that is named from the root; none where there is no such file.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        std::fs::read_to_string(self.root.join(path.strip_prefix("/").unwrap_or(path))).ok()
    }

    /// The file's only number.
    fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }
}

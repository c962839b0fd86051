//! What the operating system says about memory. Nothing here is asked before a program, or the
//! facade in its stead, asks it.

mod groups;
mod memory;

pub use groups::Limit;
pub use memory::MemoryState;

use std::path::{Path, PathBuf};

/// The system's own files, below a root that can be set: that of a container, or of a test.
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
    /// Those of a system whose root is this folder.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The text of a file that is named from the root; none where there is no such file.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        std::fs::read_to_string(self.root.join(path.strip_prefix("/").unwrap_or(path))).ok()
    }

    /// A file's only number; none where there is no such file, or more in it.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }
}

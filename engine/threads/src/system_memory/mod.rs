//! Memory limits and usage reported by the operating system.
//!
//! The library reads them only when a program, or the facade on its behalf, calls these functions.

mod groups;
mod machine;
mod memory;
#[cfg(any(test, windows, target_os = "macos", target_os = "ios", target_os = "freebsd"))]
mod native;
#[cfg(target_os = "ios")]
mod process;
#[cfg(test)]
mod tests;

pub use groups::Limit;
pub use memory::MemoryState;

use std::path::{Path, PathBuf};

/// Reader of the system's files, such as `/proc/meminfo`, below a configurable root directory.
///
/// A container or a test sets another root.
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
    /// Creates a reader whose root directory is `root`.
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// Returns true if these are the files of this machine, and not those of a test.
    fn are_this_machine(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Reads the text of the file at an absolute `path`, relative to the root. Returns `None` if it cannot be
    /// read.
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        std::fs::read_to_string(self.root.join(path.strip_prefix("/").unwrap_or(path))).ok()
    }

    /// Reads a file that contains a single number. Returns `None` if the file is missing or contains anything
    /// else.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }
}

//! Free disk space.

use crate::bytes::ByteSize;
use crate::error::{HubError, Result};
use std::path::{Path, PathBuf};

/// A disk with its free and required space.
#[derive(Clone, Debug)]
pub struct Disk {
    /// A folder on the disk.
    pub directory: PathBuf,
    /// Free space in bytes.
    pub free: u64,
    /// Required space in bytes.
    pub needed: u64,
}

impl Disk {
    /// Measures the disk of a folder, or of its nearest existing ancestor.
    pub(crate) fn new(directory: &Path, needed: u64) -> Result<Self> {
        let directory = existing(directory);
        let free = fs4::available_space(&directory)
            .map_err(|error| HubError::file("measure the free space of", &directory, error))?;
        Ok(Self { directory, free, needed })
    }

    /// Describes required and free space as a clause.
    pub fn describe(&self) -> String {
        let (needed, free) = (ByteSize(self.needed), ByteSize(self.free));
        format!("needs {needed} more at its peak, {free} free at {}", self.directory.display())
    }

    /// Returns an error if the free space is insufficient.
    pub(crate) fn check(&self) -> Result<()> {
        let Some(lacking) = self.needed.checked_sub(self.free).filter(|bytes| *bytes > 0) else {
            return Ok(());
        };
        Err(HubError::new(format!(
            "not enough disk space at {}: {} needed at the peak, {} free",
            self.directory.display(),
            ByteSize(self.needed),
            ByteSize(self.free),
        ))
        .advise(format!(
            "free {}, or move the caches with HF_HOME (download) and NESTLING_CACHE (store)",
            ByteSize(lacking),
        )))
    }
}

/// Returns the nearest existing ancestor directory, including the path itself.
pub fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_said_with_figures() {
        let (free, needed) = (20_000_000_000, 94_000_000_000);
        let disk = Disk { directory: "/home".into(), free, needed };
        let failure = disk.check().unwrap_err();
        assert!(
            failure.to_string().contains("94.0 GB needed at the peak, 20.0 GB free"),
            "{failure}"
        );
        assert!(failure.advice().unwrap().contains("free 74.0 GB"));
        assert!(Disk { free: needed, ..disk }.check().is_ok());
    }
}

//! Checks of free disk space before a file is written.

use crate::bytes::ByteSize;
use crate::error::{HubError, Result};
use std::path::{Path, PathBuf};

/// Returns an error if the disk of `path` has no space for a file of `bytes`. The partial file of an
/// interrupted attempt is taken into account. If the free space is unknown, the check passes.
pub fn check(path: &Path, bytes: u64) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let Ok(free) = fs4::available_space(folder) else { return Ok(()) };
    lacking(folder, bytes.saturating_sub(half_done(path)), free).map_or(Ok(()), Err)
}

fn lacking(folder: &Path, needed: u64, free: u64) -> Option<HubError> {
    let lacking = needed.checked_sub(free).filter(|bytes| *bytes > 0)?;
    let (needed, free) = (ByteSize(needed), ByteSize(free));
    let failure = HubError::new(format!(
        "not enough disk space in {}: {needed} needed, {free} free",
        folder.display()
    ));
    Some(failure.advise(format!("free {}, or write to another disk", ByteSize(lacking))))
}

/// Returns the disk space in bytes that the partial file of an interrupted attempt occupies.
pub fn half_done(path: &Path) -> u64 {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::metadata(PathBuf::from(partial)).map_or(0, |file| on_disk(&file))
}

/// Returns the disk space in bytes of a file, without the holes of a file that is written out of order.
#[cfg(unix)]
pub fn on_disk(file: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.blocks().saturating_mul(512)
}

#[cfg(not(unix))]
pub fn on_disk(file: &std::fs::Metadata) -> u64 {
    // Unwritten parts may be holes, so nothing is counted.
    let _ = file;
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_room_is_said_with_both_figures() {
        let found = |needed, free| lacking(Path::new("/data"), needed, free);
        let failure = found(29_300_000, 10_000_000).unwrap();
        assert_eq!(
            failure.to_string(),
            "not enough disk space in /data: 29.3 MB needed, 10.0 MB free"
        );
        assert!(failure.advice().unwrap().contains("free 19.3 MB"));
        assert!(found(10, 10).is_none());
    }
}

//! Whether a disk has room for what is going to be written, asked before any work.

use crate::bytes::ByteSize;
use crate::error::{HubError, Result};
use std::path::{Path, PathBuf};

/// Refuses a file of `bytes` that the disk behind `path` has no room for, what an interrupted attempt
/// left of it taken into account. A disk that does not say how much is free is believed to have room.
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

/// Bytes that an interrupted attempt takes of the disk already.
pub fn half_done(path: &Path) -> u64 {
    let mut partial = path.as_os_str().to_owned();
    partial.push(".partial");
    std::fs::metadata(PathBuf::from(partial)).map_or(0, |file| on_disk(&file))
}

/// Bytes that a file takes of the disk: one that is written out of order has holes.
#[cfg(unix)]
pub fn on_disk(file: &std::fs::Metadata) -> u64 {
    use std::os::unix::fs::MetadataExt;
    file.blocks().saturating_mul(512)
}

#[cfg(not(unix))]
pub fn on_disk(file: &std::fs::Metadata) -> u64 {
    // What is not written yet may be a hole.
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

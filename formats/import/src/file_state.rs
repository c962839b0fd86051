//! File fingerprints from metadata, without reading the file.

use std::fs::Metadata;
use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the fingerprint of a file: length, modification time, and, on Unix, device, inode and change time.
#[cfg(unix)]
pub fn file_state(metadata: &Metadata) -> [i128; 6] {
    use std::os::unix::fs::MetadataExt;
    [
        metadata.len().into(),
        metadata.modified().map_or(0, nanoseconds),
        device(metadata.dev()).into(),
        metadata.ino().into(),
        // Programs cannot set the change time: it is updated on each write to the content.
        metadata.ctime().into(),
        metadata.ctime_nsec().into(),
    ]
}

/// Returns the fingerprint of a file: length and modification time.
#[cfg(not(unix))]
pub fn file_state(metadata: &Metadata) -> [i128; 2] {
    [metadata.len().into(), metadata.modified().map_or(0, nanoseconds)]
}

/// Returns the nanoseconds since 1970; negative for earlier times.
fn nanoseconds(time: SystemTime) -> i128 {
    let signed = |nanoseconds: u128| i128::try_from(nanoseconds).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => signed(since.as_nanos()),
        Err(before) => -signed(before.duration().as_nanos()),
    }
}

/// Returns the device number, or 0 for file systems without a block device (Btrfs, overlays, network file
/// systems). Their device numbers change at each boot, which would change all fingerprints.
#[cfg(target_os = "linux")]
fn device(number: u64) -> u64 {
    let major = ((number >> 8) & 0xfff) | ((number >> 32) & !0xfff);
    if major == 0 { 0 } else { number }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn device(number: u64) -> u64 {
    number
}

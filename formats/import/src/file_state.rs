//! What tells a file in one state from every other, without reading it.

use std::fs::Metadata;
use std::time::{SystemTime, UNIX_EPOCH};

/// Length and time of a file, and where the system has them which file it is and when it was last
/// written to.
#[cfg(unix)]
pub fn file_state(metadata: &Metadata) -> [i128; 6] {
    use std::os::unix::fs::MetadataExt;
    [
        metadata.len().into(),
        metadata.modified().map_or(0, nanoseconds),
        device(metadata.dev()).into(),
        metadata.ino().into(),
        // No program sets this one: it moves whenever the content is written.
        metadata.ctime().into(),
        metadata.ctime_nsec().into(),
    ]
}

/// Length and time of a file.
#[cfg(not(unix))]
pub fn file_state(metadata: &Metadata) -> [i128; 2] {
    [metadata.len().into(), metadata.modified().map_or(0, nanoseconds)]
}

/// Nanoseconds since 1970, or before.
fn nanoseconds(time: SystemTime) -> i128 {
    let signed = |nanoseconds: u128| i128::try_from(nanoseconds).unwrap_or(i128::MAX);
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => signed(since.as_nanos()),
        Err(before) => -signed(before.duration().as_nanos()),
    }
}

/// The device of a disk. File systems without one (Btrfs, overlays, those of a network) have another
/// number after every start of the machine, which would make every file a new one.
#[cfg(target_os = "linux")]
fn device(number: u64) -> u64 {
    let major = ((number >> 8) & 0xfff) | ((number >> 32) & !0xfff);
    if major == 0 { 0 } else { number }
}

#[cfg(all(unix, not(target_os = "linux")))]
fn device(number: u64) -> u64 {
    number
}

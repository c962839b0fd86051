//! Read settings.

use std::time::Duration;

use nestling_core::wire;
use serde::{Deserialize, Serialize};

pub(super) const RETRIES_MAX: usize = 64;

/// Settings of a [`super::Reads`].
///
/// ```
/// use std::time::Duration;
/// use nestling_experts::reads::{ReadMethod, ReadOptions};
///
/// let options = ReadOptions {
///     method: ReadMethod::Threads,
///     depth: 8,
///     timeout: Some(Duration::from_secs(5)),
///     ..ReadOptions::default()
/// };
/// assert!(options.direct); // bypasses the page cache
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadOptions {
    /// Read method.
    pub method: ReadMethod,
    /// Maximum number of concurrent reads; at least 1.
    pub depth: usize,
    /// True to bypass the page cache where the file system allows it.
    pub direct: bool,
    /// Time after which a read counts as failed; `None` disables the timeout.
    #[serde(with = "wire::seconds")]
    pub timeout: Option<Duration>,
    /// Maximum bytes of unused buffers kept for reuse.
    pub pool_bytes: u64,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self {
            method: ReadMethod::Auto,
            depth: 2,
            direct: true,
            timeout: Some(Duration::from_secs(30)),
            pool_bytes: 32 << 20,
        }
    }
}

/// System interface used by a [`super::Reads`]. All methods return the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReadMethod {
    /// The best method available.
    Auto,
    /// One thread with an io_uring. Only on Linux, and refused in some containers: falls back to `Threads`.
    #[serde(rename = "io_uring")]
    IoUring,
    /// One thread per concurrent read.
    Threads,
    /// Reads run on the caller's thread, when it takes the next completed read. The only method without
    /// threads.
    Inline,
}

impl std::fmt::Display for ReadMethod {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Threads => "threads",
            Self::Inline => "inline",
        })
    }
}

/// Whether reads are verified with checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checks {
    Done,
    /// Byte ranges are not extents: checksums are computed, for their time, and ignored.
    Ignored,
}

//! How reads are done.

use std::time::Duration;

use nestling_core::wire;
use serde::{Deserialize, Serialize};

/// How often one read is tried again after an interruption.
pub(super) const RETRIES_MAX: usize = 64;

/// How a [`super::Reads`] reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadOptions {
    /// By which means of the system.
    pub method: ReadMethod,
    /// Most reads under way at once; at least 1.
    pub depth: usize,
    /// Whether reads go past the page cache where the file system lets them.
    pub direct: bool,
    /// How long a read may take before it counts as failed; none is for ever.
    #[serde(with = "wire::seconds")]
    pub timeout: Option<Duration>,
    /// Most bytes of unused buffers that are kept for the next reads.
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

/// By which means of the system a [`super::Reads`] reads. The bytes are the same by all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReadMethod {
    /// The best that there is.
    Auto,
    /// One thread with an io_uring. Linux alone, and refused in some containers: then as `Threads`.
    #[serde(rename = "io_uring")]
    IoUring,
    /// As many threads as reads under way.
    Threads,
    /// Whoever asks for the next read that has ended. All that there is without threads.
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

/// Whether what arrives is compared with its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checks {
    Done,
    /// For places that are no extents.
    LeftOut,
}

//! Observer interface for events and progress of downloads and conversions.

use crate::disk::Disk;
use nestling_formats::Level;
use std::path::Path;

/// Receiver of events. Its methods are called from the reading threads.
pub trait Observer: Sync {
    /// Receives an event that may interest the user.
    fn notice(&self, notice: &Notice<'_>);

    /// Called when a task starts. The task has `total` parts, of which `done` are already complete. The
    /// returned object receives progress and is dropped at the end of the task.
    fn begin(&self, task: Task, total: u64, done: u64) -> Box<dyn TaskProgress>;
}

/// Receiver of the progress of one task.
pub trait TaskProgress: Send {
    /// Sets the number of completed parts.
    fn set(&mut self, done: u64);

    /// Sets the number of completed parts and a total that was unknown at the start.
    fn set_of(&mut self, done: u64, total: u64);
}

/// A long-running task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// Download, measured in bytes.
    Download,
    /// Comparison of downloaded bytes with a store's checksums.
    Check,
    /// Download of file headers, measured in files.
    Headers,
    /// Wait for another process that downloads the same headers; it has no parts.
    WaitForHeaders,
    /// Wait for another process that converts the same model. The total is known once it starts to write.
    WaitForConversion,
}

/// An event that has happened or is about to happen.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The Hub is unavailable for this reason, so the cached store is used.
    CachedStore(&'a str),
    /// The GGUF file that was chosen, and its quantization where its name tells.
    GgufFile {
        /// Its name in the repository.
        name: &'a str,
        /// Such as `Q4_K_M`.
        quantization: Option<&'a str>,
    },
    /// Part of the store is here up to this level, and no more was asked for.
    HeldLevel(Level),
    /// Files that are going to be fetched.
    Download {
        /// Bytes of all of them.
        total_bytes: u64,
        /// How many there are.
        files: usize,
        /// Bytes that are not here yet.
        missing_bytes: u64,
        /// Where they go.
        folder: &'a Path,
    },
    /// About how large the store will be that is made of them, and where.
    Conversion {
        /// Its bytes.
        store_bytes: u64,
        /// Its folder.
        folder: &'a Path,
    },
    /// Sections of a store that are going to be fetched.
    Sections {
        /// Bytes that are not here yet.
        missing_bytes: u64,
        /// Bytes of the whole store.
        store_bytes: u64,
        /// The level that is whole with them.
        level: Option<Level>,
        /// Where they go.
        folder: &'a Path,
    },
    /// A disk that something is going to be written to.
    Disk(&'a Disk),
    /// Another program downloads this file, and is waited for.
    WaitForFile(&'a str),
    /// Another process converts the same model, and is waited for.
    WaitForConversion,
    /// A store of an earlier version that no file is looked up by.
    OutdatedStore {
        /// Where it lies.
        path: &'a Path,
        /// Its length.
        bytes: u64,
    },
}

/// An observer that ignores all events.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn notice(&self, _: &Notice<'_>) {}

    fn begin(&self, _: Task, _: u64, _: u64) -> Box<dyn TaskProgress> {
        Box::new(Self)
    }
}

impl TaskProgress for NoObserver {
    fn set(&mut self, _: u64) {}

    fn set_of(&mut self, _: u64, _: u64) {}
}

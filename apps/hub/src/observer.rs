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
    /// The chosen GGUF file.
    GgufFile {
        /// File name in the repository.
        name: &'a str,
        /// Quantization given in the name, such as `Q4_K_M`.
        quantization: Option<&'a str>,
    },
    /// The cached part of the store ends at this level, and no higher level was requested.
    HeldLevel(Level),
    /// Upcoming download of files.
    Download {
        /// Size of all files in bytes.
        total_bytes: u64,
        /// Number of files.
        files: usize,
        /// Number of bytes to download.
        missing_bytes: u64,
        /// Destination folder.
        folder: &'a Path,
    },
    /// Upcoming conversion of the files into a store.
    Conversion {
        /// Estimated size of the store in bytes.
        store_bytes: u64,
        /// Folder of the store.
        folder: &'a Path,
    },
    /// Upcoming download of a store's sections.
    Sections {
        /// Number of bytes to download.
        missing_bytes: u64,
        /// Size of the whole store in bytes.
        store_bytes: u64,
        /// Highest level that is complete with these sections.
        level: Option<Level>,
        /// Destination folder.
        folder: &'a Path,
    },
    /// Space on a disk that will be written to.
    Disk(&'a Disk),
    /// Wait for another program that downloads this file.
    WaitForFile(&'a str),
    /// Wait for another process that converts the same model.
    WaitForConversion,
    /// Store of an earlier version, which no lookup finds.
    OutdatedStore {
        /// Path of the store.
        path: &'a Path,
        /// Size of the store in bytes.
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

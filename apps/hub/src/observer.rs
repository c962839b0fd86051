//! What a caller hears while a model is brought here: nothing here is printed.

use crate::disk::Disk;
use nestling_formats::Level;
use std::path::Path;

/// Hears what happens. Its methods are called from the threads that read.
pub trait Observer: Sync {
    /// Something that a person may want to know.
    fn notice(&self, notice: &Notice<'_>);

    /// A task begins, of `total` parts of which `done` were done before. What is returned hears how
    /// far it is, and of its end by being dropped.
    fn begin(&self, task: Task, total: u64, done: u64) -> Box<dyn TaskProgress>;
}

/// Hears how far one task is.
pub trait TaskProgress: Send {
    /// Parts that are done.
    fn set(&mut self, done: u64);

    /// Parts that are done, of a total that was not known when the task began.
    fn set_of(&mut self, done: u64, total: u64);
}

/// What takes a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// Bytes are fetched.
    Download,
    /// Bytes that were fetched are compared with a store's checksums.
    Check,
    /// Headers of files are fetched; its parts are files.
    Headers,
    /// Another process fetches the same headers; it has no parts.
    WaitForHeaders,
    /// Another process converts the same model; its total is known once it writes.
    WaitForConversion,
}

/// What happened, or is going to.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// The Hub does not answer for this reason; the store of the cache is used.
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

/// An observer for callers that want to hear nothing.
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

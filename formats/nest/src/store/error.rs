//! What can be wrong with a store, or go wrong while one is read or written.

use std::io;
use std::path::Path;

use crate::memory::OutOfMemory;

/// An error of the store. Every message names the file and says what to expect or do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The operating system refused.
    #[error("{file}: cannot {action} at byte {offset}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What was tried: "read", "write", "open"...
        action: &'static str,
        /// Where in the store.
        offset: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// There is no room for the store.
    #[error(
        "{file}: the disk is full (writing {length} bytes at byte {offset}); free some space and \
         run the same command again, it will go on where it stopped"
    )]
    DiskFull {
        /// The file.
        file: String,
        /// Where the write began.
        offset: u64,
        /// Bytes to be written.
        length: u64,
    },
    /// The file does not begin as a store does.
    #[error("{file}: not a .nest store (it does not begin with the store's signature)")]
    NotAStore {
        /// The file.
        file: String,
    },
    /// The store has another version.
    #[error(
        "{file}: store version {found}, but this program reads versions 1 to {supported}; use a matching \
         release, or convert the model again"
    )]
    Version {
        /// The file.
        file: String,
        /// Version of the file.
        found: u32,
        /// The version that can be read.
        supported: u32,
    },
    /// A field of the header or the index has a value that it must not have.
    #[error(transparent)]
    Malformed(Box<Malformed>),
    /// The file ends too early, and not at the end of a section.
    #[error(
        "{file}: ends at byte {found} of {expected}, within section `{section}` that ends at byte \
         {section_end}; finish the download, or open it as partial"
    )]
    Truncated {
        /// The file.
        file: String,
        /// Bytes of the whole store.
        expected: u64,
        /// Bytes that are there.
        found: u64,
        /// The section within which it ends.
        section: String,
        /// Where that section ends.
        section_end: u64,
    },
    /// The bytes of an extent or of the index are not those that were written.
    #[error(
        "{file}: damaged: {what} (bytes {offset}..{}): its checksum does not match",
        offset + length
    )]
    Damaged {
        /// The file.
        file: String,
        /// What is damaged.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        length: u64,
    },
    /// What an extent is made of is not what it was when it was read first, though the file says that
    /// nobody wrote to it.
    #[error("{file}: the file was damaged since it was first read: {what}, made of {origin}")]
    Differs {
        /// The file.
        file: String,
        /// The extent.
        what: String,
        /// What it is made of: tensors, and where they lie in the file.
        origin: String,
    },
    /// Bytes between extents are not zero.
    #[error("{file}: damaged: byte {offset} lies in padding, but is not zero")]
    Padding {
        /// The file.
        file: String,
        /// The first such byte.
        offset: u64,
    },
    /// The file was written to, cut or replaced after it was opened.
    #[error("{file}: changed while it was open; open it again")]
    Changed {
        /// The file.
        file: String,
    },
    /// The store does not have it, or was cut before it.
    #[error("{file}: has no {what}")]
    Absent {
        /// The file.
        file: String,
        /// What was asked for.
        what: String,
    },
    /// A buffer does not have the length of what goes in or out.
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        /// What the buffer is for.
        what: String,
        /// Bytes it must have.
        expected: u64,
        /// Bytes it has.
        found: u64,
    },
    /// One of several files of a store is not there or belongs to another store.
    #[error("{file}: is not shard {shard} of {shards} of this store: {reason}")]
    Shard {
        /// The file.
        file: String,
        /// Number of the shard, from 1.
        shard: u32,
        /// Shards of the store.
        shards: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// A plan asks for something that a store cannot hold.
    #[error("{what}: {reason}")]
    Plan {
        /// Which part of the plan.
        what: String,
        /// Why it cannot be.
        reason: String,
    },
    /// Someone else is writing the same store.
    #[error("{file}: another process is writing this store")]
    Busy {
        /// The journal.
        file: String,
    },
    /// A store was to be finished before everything was written.
    #[error("{file}: cannot be finished: {what} was not written")]
    Unfinished {
        /// The file.
        file: String,
        /// The first thing that is missing.
        what: String,
    },
    /// The store does not lie in plain files.
    #[error("{file}: cannot be mapped into memory")]
    NotMappable {
        /// The storage's name.
        file: String,
    },
    /// The caller asked to stop.
    #[error("{file}: stopped on request")]
    Cancelled {
        /// The file.
        file: String,
    },
    /// The system gave no memory for something whose size the store decides.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A condition of the program itself that does not hold.
    #[error(transparent)]
    Internal(#[from] crate::InternalError),
}

/// A field whose value is not allowed, or contradicts other fields or the file's length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}: {field} at byte {offset} is {found}, expected {expected}")]
pub struct Malformed {
    /// The file.
    pub file: String,
    /// The record: "header", "group 3"...
    pub what: String,
    /// The field, as `FORMAT.md` names it.
    pub field: &'static str,
    /// Where the field, or its record, lies in the store.
    pub offset: u64,
    /// What is allowed.
    pub expected: String,
    /// What is there.
    pub found: String,
}

impl StoreError {
    /// Path of the file that the error names, if it names one.
    pub fn file_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Malformed(malformed) => Some(&mut malformed.file),
            Self::Io { file, .. }
            | Self::DiskFull { file, .. }
            | Self::NotAStore { file }
            | Self::Version { file, .. }
            | Self::Truncated { file, .. }
            | Self::Damaged { file, .. }
            | Self::Differs { file, .. }
            | Self::Padding { file, .. }
            | Self::Changed { file }
            | Self::Absent { file, .. }
            | Self::Shard { file, .. }
            | Self::Busy { file }
            | Self::Unfinished { file, .. }
            | Self::NotMappable { file }
            | Self::Cancelled { file } => Some(file),
            Self::Length { .. } | Self::Plan { .. } | Self::Memory(_) | Self::Internal(_) => None,
        }
    }

    /// An I/O error; a full disk has a variant of its own.
    pub(super) fn io(
        file: impl Into<String>,
        action: &'static str,
        offset: u64,
        length: usize,
        source: io::Error,
    ) -> Self {
        let file = file.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Self::DiskFull { file, offset, length: length as u64 }
            }
            _ if source.get_ref().is_some_and(|inner| inner.is::<StorageChanged>()) => {
                Self::Changed { file }
            }
            _ => Self::Io { file, action, offset, source },
        }
    }

    pub(super) fn plan(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Plan { what: what.into(), reason: reason.into() }
    }
}

/// Wrapped in an [`io::Error`]: the bytes are no longer those that were opened.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the file changed while it was open")]
pub struct StorageChanged;

/// The name of a file in messages.
pub(super) fn label(path: &Path) -> String {
    path.display().to_string()
}

/// What is wrong with an index, before the file's name is known.
#[derive(Debug)]
pub(super) enum Fault {
    Field(Box<FieldFault>),
    Memory(OutOfMemory),
}

impl From<FieldFault> for Fault {
    fn from(fault: FieldFault) -> Self {
        Self::Field(Box::new(fault))
    }
}

impl From<OutOfMemory> for Fault {
    fn from(error: OutOfMemory) -> Self {
        Self::Memory(error)
    }
}

/// A [`Malformed`] before the file's name is known.
#[derive(Debug)]
pub(super) struct FieldFault {
    pub what: String,
    pub field: &'static str,
    pub offset: u64,
    pub expected: String,
    pub found: String,
}

impl Fault {
    pub fn in_file(self, file: &str) -> StoreError {
        let fault = match self {
            Self::Field(fault) => fault,
            Self::Memory(error) => return error.into(),
        };
        let FieldFault { what, field, offset, expected, found } = *fault;
        let file = file.to_owned();
        StoreError::Malformed(Box::new(Malformed { file, what, field, offset, expected, found }))
    }

    /// The fault as one of a plan, where there are no bytes yet.
    pub fn in_plan(self) -> StoreError {
        let fault = match self {
            Self::Field(fault) => fault,
            Self::Memory(error) => return error.into(),
        };
        let FieldFault { what, field, expected, found, .. } = *fault;
        StoreError::plan(what, format!("{field} is {found}, expected {expected}"))
    }
}

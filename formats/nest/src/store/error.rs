//! Errors of reading and writing stores, and of invalid stores.

use std::io;
use std::path::Path;

use crate::memory::OutOfMemory;

/// An error of the store. Each message names the file and the expected state or a remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A system call failed.
    #[error("{file}: cannot {action} at byte {offset}: {source}")]
    Io {
        /// File name.
        file: String,
        /// Attempted action: "read", "write", "open"...
        action: &'static str,
        /// Byte offset in the store.
        offset: u64,
        /// System error.
        source: io::Error,
    },
    /// The disk is full.
    #[error(
        "{file}: the disk is full (writing {length} bytes at byte {offset}); free some space and \
         run the same command again, it will go on where it stopped"
    )]
    DiskFull {
        /// File name.
        file: String,
        /// Byte offset of the failed write.
        offset: u64,
        /// Length of the failed write in bytes.
        length: u64,
    },
    /// The file does not start with the signature of a store.
    #[error("{file}: not a .nest store (it does not begin with the store's signature)")]
    NotAStore {
        /// File name.
        file: String,
    },
    /// The format version of the store is not supported.
    #[error(
        "{file}: store version {found}, but this program reads versions 1 to {supported}; use a matching \
         release, or convert the model again"
    )]
    Version {
        /// File name.
        file: String,
        /// Version of the store.
        found: u32,
        /// Highest supported version.
        supported: u32,
    },
    /// A field of the header or the index has an invalid value.
    #[error(transparent)]
    Malformed(Box<Malformed>),
    /// The file is truncated within a section.
    #[error(
        "{file}: ends at byte {found} of {expected}, within section `{section}` that ends at byte \
         {section_end}; finish the download, or open it as partial"
    )]
    Truncated {
        /// File name.
        file: String,
        /// Length of the complete store in bytes.
        expected: u64,
        /// Actual length in bytes.
        found: u64,
        /// Name of the truncated section.
        section: String,
        /// End of that section in bytes.
        section_end: u64,
    },
    /// The checksum of an extent or of the index does not match.
    #[error(
        "{file}: damaged: {what} (bytes {offset}..{}): its checksum does not match",
        offset + length
    )]
    Damaged {
        /// File name.
        file: String,
        /// Description of the damaged part.
        what: String,
        /// Byte offset of that part.
        offset: u64,
        /// Length of that part in bytes.
        length: u64,
    },
    /// The source data of an extent differs from its first read, although the file's metadata shows no
    /// modification.
    #[error("{file}: the file was damaged since it was first read: {what}, made of {origin}")]
    Differs {
        /// File name.
        file: String,
        /// Description of the extent.
        what: String,
        /// Source tensors of the extent and their offsets in the file.
        origin: String,
    },
    /// Padding between extents contains nonzero bytes.
    #[error("{file}: damaged: byte {offset} lies in padding, but is not zero")]
    Padding {
        /// File name.
        file: String,
        /// Byte offset of the first nonzero byte.
        offset: u64,
    },
    /// The file was modified, truncated or replaced after it was opened.
    #[error("{file}: changed while it was open; open it again")]
    Changed {
        /// File name.
        file: String,
    },
    /// The requested item does not exist in the store or is beyond its truncated end.
    #[error("{file}: has no {what}")]
    Absent {
        /// File name.
        file: String,
        /// Description of the requested item.
        what: String,
    },
    /// A buffer has the wrong length.
    #[error("{what}: expected {expected} bytes, found {found}")]
    Length {
        /// Purpose of the buffer.
        what: String,
        /// Expected length in bytes.
        expected: u64,
        /// Actual length in bytes.
        found: u64,
    },
    /// A shard is missing or belongs to another store.
    #[error("{file}: is not shard {shard} of {shards} of this store: {reason}")]
    Shard {
        /// File name.
        file: String,
        /// Number of the shard, from 1.
        shard: u32,
        /// Number of shards in the store.
        shards: u32,
        /// Reason for the rejection.
        reason: String,
    },
    /// A plan violates the limits of the format.
    #[error("{what}: {reason}")]
    Plan {
        /// Affected part of the plan.
        what: String,
        /// Reason for the rejection.
        reason: String,
    },
    /// Another process is writing the same store.
    #[error("{file}: another process is writing this store")]
    Busy {
        /// File name of the journal.
        file: String,
    },
    /// A store was finished before all parts were written.
    #[error("{file}: cannot be finished: {what} was not written")]
    Unfinished {
        /// File name.
        file: String,
        /// First missing part.
        what: String,
    },
    /// The storage is not backed by plain files and cannot be mapped.
    #[error("{file}: cannot be mapped into memory")]
    NotMappable {
        /// Name of the storage.
        file: String,
    },
    /// The caller cancelled the operation.
    #[error("{file}: stopped on request")]
    Cancelled {
        /// File name.
        file: String,
    },
    /// A memory allocation failed whose size depends on the store.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// An invariant of the program is violated.
    #[error(transparent)]
    Internal(#[from] crate::InternalError),
}

/// A field whose value is invalid, or contradicts other fields or the file's length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {what}: {field} at byte {offset} is {found}, expected {expected}")]
pub struct Malformed {
    /// File name.
    pub file: String,
    /// Name of the record: "header", "group 3"...
    pub what: String,
    /// Name of the field as in `FORMAT.md`.
    pub field: &'static str,
    /// Byte offset of the field or its record in the store.
    pub offset: u64,
    /// Allowed values.
    pub expected: String,
    /// Actual value.
    pub found: String,
}

impl StoreError {
    /// Returns a mutable reference to the file name in the error, if it has one.
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

    /// Creates an I/O error, or [`StoreError::DiskFull`] if the disk is full. A [`StoreError`] wrapped in `source` is
    /// returned unchanged.
    pub(super) fn io(
        file: impl Into<String>,
        action: &'static str,
        offset: u64,
        length: usize,
        source: io::Error,
    ) -> Self {
        let file = file.into();
        let source = match source.downcast::<Self>() {
            Ok(error) => return error,
            Err(source) => source,
        };
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

/// Error wrapped in an [`io::Error`] by a storage whose bytes changed since it was opened.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the file changed while it was open")]
pub struct StorageChanged;

/// Returns the name of a file for error messages.
pub(super) fn label(path: &Path) -> String {
    path.display().to_string()
}

/// An error in an index, without the file name.
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

/// A [`Malformed`] without the file name.
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

    /// Converts the fault to an error of a plan, for which no bytes exist yet.
    pub fn in_plan(self) -> StoreError {
        let fault = match self {
            Self::Field(fault) => fault,
            Self::Memory(error) => return error.into(),
        };
        let FieldFault { what, field, expected, found, .. } = *fault;
        StoreError::plan(what, format!("{field} is {found}, expected {expected}"))
    }
}

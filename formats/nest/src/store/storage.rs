//! Storage that a store is read from.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::error::{StorageChanged, StoreError, label};
use crate::open_regular;

/// A range of bytes that contains a store: a file, part of a file, or memory.
///
/// Reads may run on several threads at once.
pub trait Storage: Send + Sync {
    /// Returns the name for error messages, such as the path.
    fn name(&self) -> String;

    /// Returns the number of bytes available.
    fn len(&self) -> u64;

    /// Returns whether the storage has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// System errors; of kind [`io::ErrorKind::UnexpectedEof`] if the range exceeds the storage; wrapping
    /// [`StorageChanged`] if the bytes changed since the storage was opened. A wrapped [`StoreError`] is reported
    /// unchanged.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Announces a read that will follow, so that a storage with slow requests can join neighbouring reads. The read
    /// is urgent if a step waits for it. Storage with fast reads ignores the call.
    fn announce(&self, offset: u64, length: u64, is_urgent: bool) {
        let _ = (offset, length, is_urgent);
    }

    /// Returns the plain files that contain the bytes, in order, for mapping and other ways of reading.
    fn files(&self) -> Vec<FilePart<'_>> {
        Vec::new()
    }

    /// Describes the source of the bytes at `offset` in a derived storage, for error messages.
    fn origin(&self, offset: u64) -> Option<String> {
        let _ = offset;
        None
    }

    /// Returns the source of a derived range, if reading it and building the range are separate steps. A reader
    /// can then read the sources of other ranges while it builds one. Returns `None` if only
    /// [`Self::read_at`] is supported.
    fn source(&self, offset: u64, length: u64) -> Option<Box<dyn RangeSource + '_>> {
        let _ = (offset, length);
        None
    }

    /// Requests that subsequent reads bypass the page cache where possible. Used when memory is short and the
    /// reader keeps the data in its own memory. Direct reads of [`Self::files`] are not affected.
    fn pass_page_cache(&self, passes: bool) {
        let _ = passes;
    }

    /// Returns whether reads bypass the page cache.
    fn passes_page_cache(&self) -> bool {
        false
    }

    /// Checks that the bytes at `offset` are unchanged since the storage was opened. Readers of
    /// [`Self::files`] call it after each read.
    ///
    /// # Errors
    /// An error that wraps [`StorageChanged`] if they changed; system errors.
    fn check_unchanged(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }
}

/// Source of a derived range of bytes.
pub trait RangeSource {
    /// Returns the buffer size in bytes that the source needs, a multiple of 4,096.
    fn buffer_bytes(&self) -> usize;

    /// Reads the source into a buffer of [`Self::buffer_bytes`] bytes. Reads that bypass the page cache require
    /// a buffer aligned to 4,096 bytes.
    ///
    /// # Errors
    /// The errors of [`Storage::read_at`].
    fn read(&self, buffer: &mut [u8]) -> io::Result<()>;

    /// Fills `out` with the range, built from the source in `buffer`.
    ///
    /// # Errors
    /// The errors of [`Storage::read_at`].
    fn build(&self, buffer: &[u8], out: &mut [u8]) -> io::Result<()>;
}

/// A range of a store's bytes within a plain file.
#[derive(Debug)]
pub struct FilePart<'a> {
    /// File with the bytes.
    pub file: &'a File,
    /// Byte offset of the range in the file.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u64,
}

/// Storage in a file or part of a file.
#[derive(Debug)]
pub struct FileStorage {
    name: String,
    file: PositionedFile,
    offset: u64,
    length: u64,
    stamp: Stamp,
}

impl FileStorage {
    /// Opens `length` bytes of a file at `offset`, or the rest of the file.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be opened or is not a regular file; [`StoreError::Length`] if
    /// the range exceeds the file.
    pub fn open(path: &Path, offset: u64, length: Option<u64>) -> Result<Self, StoreError> {
        let name = label(path);
        let error = |source| StoreError::io(name.clone(), "open", offset, 0, source);
        let file = open_regular(path).map_err(error)?;
        let metadata = file.metadata().map_err(error)?;
        let rest = metadata.len().checked_sub(offset);
        let length = match (rest, length) {
            (Some(rest), None) => rest,
            (Some(rest), Some(length)) if length <= rest => length,
            _ => {
                let what = format!("{name}: the range from byte {offset}");
                // Default: 0 if no length is given, or if the file ends before the offset.
                let (expected, found) = (length.unwrap_or(0), rest.unwrap_or(0));
                return Err(StoreError::Length { what, expected, found });
            }
        };
        let stamp = Stamp::of(&metadata);
        Ok(Self { name, file: PositionedFile::new(file), offset, length, stamp })
    }
}

impl Storage for FileStorage {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.length, offset, out.len())?;
        let read = self.file.read_exact_at(out, self.offset + offset);
        // Checked after the read: unchanged metadata then means that the bytes read are the original ones.
        self.check_unchanged(offset, out.len() as u64)?;
        read
    }

    fn check_unchanged(&self, _: u64, _: u64) -> io::Result<()> {
        let same = Stamp::of(&self.file.metadata()?) == self.stamp;
        if same { Ok(()) } else { Err(io::Error::other(StorageChanged)) }
    }

    fn files(&self) -> Vec<FilePart<'_>> {
        self.file
            .plain()
            .map(|file| FilePart { file, offset: self.offset, length: self.length })
            .into_iter()
            .collect()
    }
}

/// Storage in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    name: String,
    bytes: Vec<u8>,
}

impl MemoryStorage {
    /// Creates a storage; `name` is used in error messages.
    pub fn new(name: impl Into<String>, bytes: Vec<u8>) -> Self {
        Self { name: name.into(), bytes }
    }
}

impl Storage for MemoryStorage {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        check_range(self.len(), offset, out.len())?;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let bytes = self.bytes.get(start..).and_then(|rest| rest.get(..out.len()));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Checks that `length` bytes at `offset` are within `available`.
pub(super) fn check_range(available: u64, offset: u64, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= available => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Metadata that detects modification or replacement of an open file.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Device and inode, if the system has them.
    identity: (u64, u64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            length: metadata.len(),
            modified: metadata.modified().ok(),
            identity: identity(metadata),
        }
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> (u64, u64) {
    (0, 0)
}

/// A file that several threads read and write at given offsets.
#[derive(Debug)]
pub(super) struct PositionedFile {
    #[cfg(any(unix, windows))]
    file: File,
    #[cfg(not(any(unix, windows)))]
    file: std::sync::Mutex<File>,
}

#[cfg(any(unix, windows))]
impl PositionedFile {
    pub fn new(file: File) -> Self {
        Self { file }
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    pub fn plain(&self) -> Option<&File> {
        Some(&self.file)
    }

    /// Calls `action` with the file.
    pub fn with<T>(&self, action: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        action(&self.file)
    }

    #[cfg(unix)]
    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, out, offset)
    }

    #[cfg(unix)]
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset)
    }

    #[cfg(windows)]
    pub fn read_exact_at(&self, mut out: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !out.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(&self.file, out, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    out = &mut out[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[cfg(windows)]
    pub fn write_all_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(&self.file, bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    bytes = &bytes[count..];
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(not(any(unix, windows)))]
impl PositionedFile {
    pub fn new(file: File) -> Self {
        Self { file: std::sync::Mutex::new(file) }
    }

    pub fn metadata(&self) -> io::Result<Metadata> {
        self.with(File::metadata)
    }

    pub fn plain(&self) -> Option<&File> {
        None
    }

    /// Calls `action` with the file.
    pub fn with<T>(&self, action: impl FnOnce(&File) -> io::Result<T>) -> io::Result<T> {
        action(&self.file.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub fn read_exact_at(&self, out: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Read, Seek, SeekFrom};
        self.with(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.read_exact(out)
        })
    }

    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom, Write};
        self.with(|mut file| {
            file.seek(SeekFrom::Start(offset))?;
            file.write_all(bytes)
        })
    }
}

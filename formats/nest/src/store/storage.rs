//! Where the bytes of a store come from.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;
use std::time::SystemTime;

use super::error::{StorageChanged, StoreError, label};
use crate::open_regular;

/// A range of bytes that a store is read from: a file, part of one, memory.
///
/// Reads come from several threads at once.
pub trait Storage: Send + Sync {
    /// Name for messages, such as the path.
    fn name(&self) -> String;

    /// Bytes that there are.
    fn len(&self) -> u64;

    /// Whether there is nothing.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `out` with the bytes from `offset`.
    ///
    /// # Errors
    /// Of the system; of kind [`io::ErrorKind::UnexpectedEof`] past the end; one that wraps
    /// [`StorageChanged`] if the bytes are no longer those that were opened.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// The plain files that the bytes lie in, in order, for mapping and for other ways of reading.
    fn files(&self) -> Vec<FilePart<'_>> {
        Vec::new()
    }

    /// What the bytes from `offset` are made of, for messages, where they are made of something else.
    fn origin(&self, offset: u64) -> Option<String> {
        let _ = offset;
        None
    }

    /// Says whether reads from now on leave the page cache as it is, where they can: for readers that
    /// hold what they read in memory of their own while memory is short. Files of [`Self::files`] are
    /// read as their reader likes.
    fn pass_page_cache(&self, passes: bool) {
        let _ = passes;
    }

    /// Whether reads leave the page cache as it is.
    fn passes_page_cache(&self) -> bool {
        false
    }

    /// Whether the bytes from `offset` are still those that were opened, for readers of
    /// [`Self::files`] to ask after every read.
    ///
    /// # Errors
    /// One that wraps [`StorageChanged`] if they are not; of the system.
    fn check_unchanged(&self, offset: u64, length: u64) -> io::Result<()> {
        let _ = (offset, length);
        Ok(())
    }
}

/// A run of a store's bytes within a plain file.
#[derive(Debug)]
pub struct FilePart<'a> {
    /// The file.
    pub file: &'a File,
    /// Where the run begins in the file.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// A file, or part of one.
#[derive(Debug)]
pub struct FileStorage {
    name: String,
    file: PositionedFile,
    offset: u64,
    length: u64,
    stamp: Stamp,
}

impl FileStorage {
    /// Opens `length` bytes of a file from `offset`, or all that follow.
    ///
    /// # Errors
    /// [`StoreError::Io`] if the file cannot be opened or is no regular file, [`StoreError::Length`] if it
    /// has no such range.
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
                // Default: no bytes are asked for, or none are there.
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
        // Checked after the read: what was read before a change is what was opened.
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

/// A store in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStorage {
    name: String,
    bytes: Vec<u8>,
}

impl MemoryStorage {
    /// `name` is for messages.
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

/// Whether `length` bytes from `offset` lie within `available`.
pub(super) fn check_range(available: u64, offset: u64, length: usize) -> io::Result<()> {
    match offset.checked_add(length as u64) {
        Some(end) if end <= available => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// What tells that a file is still the one that was opened.
#[derive(Debug, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: Option<SystemTime>,
    /// Device and inode, where there are such.
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

/// A file that is read and written at given places, from several threads.
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

    /// Runs `action` with the file.
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

    /// Runs `action` with the file.
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

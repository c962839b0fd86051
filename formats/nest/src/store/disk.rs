//! Where a store is written to: the system's files, or a stand-in that fails on purpose.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

#[cfg(target_os = "linux")]
use super::direct_write::DirectWrites;
use super::storage::PositionedFile;

/// A place for files.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing, an empty one if it is not there.
    ///
    /// # Errors
    /// Of the system.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Whether there is a file.
    ///
    /// # Errors
    /// Of the system.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Gives a file another name, replacing what has that name.
    ///
    /// # Errors
    /// Of the system.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file if it is there.
    ///
    /// # Errors
    /// Of the system.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in the folder of `path` durable.
    ///
    /// # Errors
    /// Of the system.
    fn sync_folder_of(&self, path: &Path) -> io::Result<()>;
}

/// An open file of a [`Disk`].
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a store's file is empty")]
pub trait DiskFile: Send + Sync {
    /// Bytes of the file.
    ///
    /// # Errors
    /// Of the system.
    fn len(&self) -> io::Result<u64>;

    /// Cuts the file, or extends it by zeros.
    ///
    /// # Errors
    /// Of the system.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// Of the system; of kind [`io::ErrorKind::UnexpectedEof`] past the end.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// Of the system.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// Of the system.
    fn sync(&self) -> io::Result<()>;

    /// Takes the file for this writer until it is closed; false if someone else has it.
    ///
    /// # Errors
    /// Of the system.
    fn lock(&self) -> io::Result<bool>;
}

/// The system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct OsDisk;

impl Disk for OsDisk {
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        Ok(Box::new(OsFile {
            #[cfg(target_os = "linux")]
            direct: DirectWrites::open(&file),
            file: PositionedFile::new(file),
        }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn sync_folder_of(&self, path: &Path) -> io::Result<()> {
        // Only unix opens folders; elsewhere a rename is as durable as the system makes it.
        if !cfg!(unix) {
            return Ok(());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

/// A file of the system.
struct OsFile {
    file: PositionedFile,
    /// For long writes, where the file system has such.
    #[cfg(target_os = "linux")]
    direct: Option<DirectWrites>,
}

impl DiskFile for OsFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.file.with(|file| file.set_len(length))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        let done = self.direct.as_ref().map_or(Ok(0), |direct| direct.write(offset, bytes))?;
        #[cfg(not(target_os = "linux"))]
        let done = 0;
        self.file.write_all_at(&bytes[done..], offset + done as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.with(File::sync_all)
    }

    fn lock(&self) -> io::Result<bool> {
        self.file.with(|file| match file.try_lock() {
            Ok(()) => Ok(true),
            Err(TryLockError::WouldBlock) => Ok(false),
            // A system without locks is used without them.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(true)
            }
            Err(TryLockError::Error(error)) => Err(error),
        })
    }
}

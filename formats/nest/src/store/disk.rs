//! Abstraction of the file system that a store is written to; tests substitute one that fails on purpose.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::path::Path;

#[cfg(target_os = "linux")]
use super::direct_write::DirectWrites;
use super::storage::PositionedFile;

/// A file system.
pub trait Disk: Send + Sync {
    /// Opens a file for reading and writing; creates an empty one if it does not exist.
    ///
    /// # Errors
    /// System errors.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Returns whether a file exists.
    ///
    /// # Errors
    /// System errors.
    fn exists(&self, path: &Path) -> io::Result<bool>;

    /// Renames a file, replacing an existing file of the new name.
    ///
    /// # Errors
    /// System errors.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file if it exists.
    ///
    /// # Errors
    /// System errors.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Syncs the folder of `path`, making its file names durable.
    ///
    /// # Errors
    /// System errors.
    fn sync_folder_of(&self, path: &Path) -> io::Result<()>;
}

/// An open file of a [`Disk`].
#[expect(clippy::len_without_is_empty, reason = "nobody asks whether a store's file is empty")]
pub trait DiskFile: Send + Sync {
    /// Returns the length of the file in bytes.
    ///
    /// # Errors
    /// System errors.
    fn len(&self) -> io::Result<u64>;

    /// Truncates the file, or extends it with zeros.
    ///
    /// # Errors
    /// System errors.
    fn set_len(&self, length: u64) -> io::Result<()>;

    /// Fills `out` with the bytes at `offset`.
    ///
    /// # Errors
    /// System errors, of kind [`io::ErrorKind::UnexpectedEof`] if the range exceeds the file.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// System errors.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Syncs the file, making its contents durable.
    ///
    /// # Errors
    /// System errors.
    fn sync(&self) -> io::Result<()>;

    /// Locks the file for this writer until it is closed. Returns false if another process holds the lock.
    ///
    /// # Errors
    /// System errors.
    fn lock(&self) -> io::Result<bool>;
}

/// The file system of the operating system.
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
            process: std::process::id(),
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
        // Folders can be opened on Unix only. Elsewhere the durability of a rename is up to the system.
        if !cfg!(unix) {
            return Ok(());
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

struct OsFile {
    file: PositionedFile,
    /// Process that opened the file.
    process: u32,
    /// Second handle for long writes, if the file system supports direct writes.
    #[cfg(target_os = "linux")]
    direct: Option<DirectWrites>,
}

impl Drop for OsFile {
    fn drop(&mut self) {
        // A process that is being started has a copy of the descriptor until it runs its program, and closing this one
        // would leave the lock to the copy. A forked process must not unlock its parent's file. Without a lock, this
        // does nothing.
        if self.process == std::process::id() {
            let _ = self.file.with(File::unlock);
        }
    }
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
            // Systems without file locks are used without them.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(true)
            }
            Err(TryLockError::Error(error)) => Err(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_file_is_not_locked_by_copies_of_its_descriptor() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let file = File::create_new(&path).unwrap();
        let copy = file.try_clone().unwrap();
        let first = OsFile {
            #[cfg(target_os = "linux")]
            direct: None,
            file: PositionedFile::new(file),
            process: std::process::id(),
        };
        assert!(first.lock().unwrap());
        let second = OsDisk.open(&path).unwrap();
        assert!(!second.lock().unwrap());
        drop(first);
        assert!(second.lock().unwrap());
        drop(copy);
    }
}

//! Storage of page files: a directory, or a substitute in tests.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::time::SystemTime;

use nestling_core::sync::{Mutex, whole};
use nestling_formats::memory::try_with_capacity;
use nestling_formats::{open_own_file, open_regular};

use super::record::PageName;

/// Suffix of a stored page's file name.
const ENDING: &str = ".page";
/// Suffix of a file name while the page is being written.
const PARTIAL: &str = ".page.partial";
/// Name of the file that the writer holds locked.
const LOCK: &str = "lock";

/// Storage of pages by name. The reader verifies the contents.
pub trait PageFiles: Send + Sync + std::fmt::Debug {
    /// Claims the storage for this writer until it is closed, and removes unfinished writes of earlier
    /// writers.
    ///
    /// Returns false if another writer has the claim. This store may still read.
    ///
    /// # Errors
    /// Returns an I/O error of the system.
    fn claim(&self) -> io::Result<bool>;

    /// Lists all pages, in no particular order.
    ///
    /// # Errors
    /// Returns an I/O error of the system.
    fn list(&self) -> io::Result<Vec<PageFile>>;

    /// Returns true if a page of this name exists.
    fn contains(&self, name: &PageName) -> bool;

    /// Reads a page whose size should be `bytes`.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::InvalidData`] if the size differs, [`io::ErrorKind::NotFound`] if the page
    /// is missing, or another I/O error of the system.
    fn read(&self, name: &PageName, bytes: usize) -> io::Result<Vec<u8>>;

    /// Writes the concatenated parts under a name. After an error, no page of that name is visible.
    ///
    /// # Errors
    /// Returns an I/O error of the system.
    fn write(&self, name: &PageName, parts: &[&[u8]]) -> io::Result<()>;

    /// Updates the time of last use reported by [`Self::list`]. An implementation may do nothing.
    fn touch(&self, name: &PageName);

    /// Removes a page if it exists.
    ///
    /// # Errors
    /// Returns an I/O error of the system.
    fn remove(&self, name: &PageName) -> io::Result<()>;
}

/// An entry of the storage.
#[derive(Clone, Copy, Debug)]
pub struct PageFile {
    /// Name of the page.
    pub name: PageName,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of last use, if the storage records it.
    pub used: SystemTime,
}

/// Files of one directory, readable only by their owner.
#[derive(Debug)]
pub(super) struct FolderFiles {
    folder: PathBuf,
    /// Lock file, held locked while this process writes.
    lock: Mutex<Option<File>>,
}

impl FolderFiles {
    /// Opens a directory, creating it if it is missing.
    ///
    /// # Errors
    /// Fails with [`io::ErrorKind::PermissionDenied`] if other users may write to the directory, or another
    /// I/O error of the system.
    pub fn open(folder: PathBuf) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder)?;
        refuse_shared(&folder)?;
        Ok(Self { folder, lock: Mutex::new(None) })
    }

    fn path(&self, name: &PageName) -> PathBuf {
        self.folder.join(format!("{name}{ENDING}"))
    }

    fn partial(&self, name: &PageName) -> PathBuf {
        self.folder.join(format!("{name}{PARTIAL}"))
    }

    /// Removes unfinished files of a writer that no longer runs.
    fn remove_partial(&self) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(PARTIAL));
            if stem.and_then(PageName::parse).is_some() {
                remove_if_there(&entry.path())?;
            }
        }
        Ok(())
    }
}

/// Rejects a directory in which other users could place forged pages.
fn refuse_shared(folder: &std::path::Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(folder)?.permissions().mode() & 0o777;
        if mode & 0o022 != 0 {
            let what = format!("other users may write to it (mode {mode:04o}, expected 0700)");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
        }
    }
    #[cfg(not(unix))]
    let _ = folder;
    Ok(())
}

/// Returns options for files that only their owner may read.
fn own_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn remove_if_there(path: &std::path::Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

impl PageFiles for FolderFiles {
    fn claim(&self) -> io::Result<bool> {
        let mut held = whole(self.lock.lock());
        if held.is_some() {
            return Ok(true);
        }
        let mut options = own_file();
        options.create(true).truncate(false);
        let file = open_own_file(&self.folder.join(LOCK), &mut options)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(false),
            // Filesystems without locks are used without them: since names identify contents, two writers
            // merely remove each other's pages.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
        self.remove_partial()?;
        *held = Some(file);
        Ok(true)
    }

    fn list(&self) -> io::Result<Vec<PageFile>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let stem = name.to_str().and_then(|name| name.strip_suffix(ENDING));
            // Default: files with other names do not belong to the store.
            let Some(name) = stem.and_then(PageName::parse) else { continue };
            // Metadata of the entry itself, without following links.
            let metadata = match entry.metadata() {
                // Removed by the writer of another store in the meantime.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                metadata => metadata?,
            };
            if metadata.is_file() {
                // Default: without modification times, all files count as equally old.
                let used = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                files.push(PageFile { name, bytes: metadata.len(), used });
            }
        }
        Ok(files)
    }

    fn contains(&self, name: &PageName) -> bool {
        std::fs::symlink_metadata(self.path(name)).is_ok_and(|metadata| metadata.is_file())
    }

    fn read(&self, name: &PageName, bytes: usize) -> io::Result<Vec<u8>> {
        let file = open_regular(&self.path(name))?;
        if file.metadata()?.len() != bytes as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let out = try_with_capacity("a stored page", bytes);
        let mut out = out.map_err(|_| io::ErrorKind::OutOfMemory)?;
        file.take(bytes as u64).read_to_end(&mut out)?;
        Ok(out)
    }

    fn write(&self, name: &PageName, parts: &[&[u8]]) -> io::Result<()> {
        let partial = self.partial(name);
        remove_if_there(&partial)?;
        let written = (|| {
            // `create_new` refuses a file or link that another process put there meanwhile.
            let mut file = own_file().create_new(true).open(&partial)?;
            parts.iter().try_for_each(|part| file.write_all(part))
        })();
        // Not synced to disk: the checksum detects pages damaged by a power failure.
        let written = written.and_then(|()| std::fs::rename(&partial, self.path(name)));
        if written.is_err() {
            // The first error is the one reported.
            let _ = remove_if_there(&partial);
        }
        written
    }

    fn touch(&self, name: &PageName) {
        if let Ok(file) = open_regular(&self.path(name)) {
            // Best effort: the time only orders evictions after a restart.
            let _ = file.set_modified(SystemTime::now());
        }
    }

    fn remove(&self, name: &PageName) -> io::Result<()> {
        remove_if_there(&self.path(name))
    }
}

#[cfg(test)]
mod tests;

//! Downloads sections of a store on the Hub into a local store.
//!
//! The next state of the store is assembled in a folder next to it: a copy of the existing part, and the
//! following bytes by range requests. It replaces the store only after every extent has been checked, so that
//! no process opens an incomplete section. Processes that have the old file open keep it. An interrupted
//! download resumes.

use crate::disk::Disk;
use crate::download::Hub;
use crate::error::{HubError, Result};
use crate::listing::RemoteFile;
use crate::observer::{Notice, Observer, Task};
use crate::remote_store::RemoteStorage;
use nestling_formats::Level;
use nestling_formats::store::{OpenOptions, Store, StoreError};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

/// A store on the Hub and its local destination.
pub struct Sections<'a> {
    pub hub: &'a Hub<'a>,
    pub storage: &'a RemoteStorage,
    /// The remote store, opened.
    pub source: &'a Store,
    /// Path of the local store or of the first of its shards; it need not exist.
    pub path: &'a Path,
}

/// A file that is to be extended.
struct GrowingFile<'a> {
    remote: &'a RemoteFile,
    /// Offset of the file in the store in bytes.
    start: u64,
    /// Target length of the file in bytes.
    length: u64,
    /// Path of the file, and of its next state.
    path: PathBuf,
    staged: PathBuf,
}

impl Sections<'_> {
    /// Returns the number of this store's sections that are present locally.
    pub fn present(&self) -> Result<usize> {
        if !self.path.exists() {
            return Ok(0);
        }
        let options = OpenOptions { partial: true, ..OpenOptions::default() };
        let store = match Store::open_with(self.path, &options) {
            Ok(store) => store,
            // The file is shorter than the first section.
            Err(StoreError::Truncated { .. }) => return Ok(0),
            Err(error) => return Err(error.into()),
        };
        if store.index() == self.source.index() {
            return Ok(store.sections_present());
        }
        Err(HubError::new(format!(
            "{} is not a part of {}: it is store {}, the other is {}",
            self.path.display(),
            self.source.name(),
            store.id(),
            self.source.id(),
        ))
        .advise("name the repository that the store came from with -hf OWNER/REPO"))
    }

    /// Returns the length in bytes of a store with `sections` sections.
    pub fn end(&self, sections: usize) -> u64 {
        let last = sections.checked_sub(1);
        last.and_then(|last| self.source.index().sections().get(last)).map_or(0, |last| last.end)
    }

    /// Returns the number of bytes to download for `sections` sections, and the required disk space in bytes.
    pub fn missing(&self, sections: usize) -> Result<(u64, u64)> {
        let (mut fetch, mut disk) = (0, 0);
        for piece in self.pieces(self.present()?, sections) {
            let (old, staged) = (length(&piece.path), length(&piece.staged));
            fetch += piece.length.saturating_sub(old.max(staged));
            disk += piece.length.saturating_sub(staged);
        }
        Ok((fetch, disk))
    }

    /// Downloads the first `sections` sections. Present ones stay unchanged.
    pub fn bring(&self, sections: usize, observer: &dyn Observer) -> Result<()> {
        let present = self.present()?;
        if present >= sections {
            return Ok(());
        }
        let folder = self.folder();
        std::fs::create_dir_all(&folder).map_err(|error| HubError::file("make", &folder, error))?;
        let _lock = lock(&folder)?;
        let (fetch, disk) = self.missing(sections)?;
        Disk::new(&folder, disk)?.check()?;
        let pieces = self.pieces(present, sections);
        let total = pieces.iter().map(|piece| piece.length).sum::<u64>();
        let mut progress = observer.begin(Task::Download, total, total - fetch);
        let mut done = total - fetch;
        for piece in &pieces {
            self.fetch(piece, &mut |count| {
                done += count;
                progress.set(done);
            })?;
        }
        drop(progress);
        self.link_neighbours(&pieces)?;
        self.check(&pieces, present, sections, observer)?;
        publish(&pieces)?;
        std::fs::remove_dir_all(&folder).map_err(|error| HubError::file("remove", &folder, error))
    }

    /// Returns the file name of the store or of the first of its shards.
    fn file_name(&self) -> &OsStr {
        // Default: a path without a file name fails when it is written.
        self.path.file_name().unwrap_or_default()
    }

    /// Returns the folder in which the next state is assembled.
    fn folder(&self) -> PathBuf {
        let name = self.file_name().to_string_lossy();
        self.path.with_file_name(format!(".{name}.download"))
    }

    /// Returns the files that additional sections extend.
    fn pieces(&self, present: usize, sections: usize) -> Vec<GrowingFile<'_>> {
        let (have, want) = (self.end(present), self.end(sections));
        let (mut start, mut pieces) = (0, Vec::new());
        let lengths = self.source.index().shards();
        for (remote, whole) in self.storage.files().shards.iter().zip(lengths) {
            let Range { start: begin, end } = start..start + whole;
            if end > have && begin < want {
                let name = remote.name.rsplit('/').next().unwrap_or(&remote.name);
                let name = match lengths.len() {
                    1 => self.file_name().to_owned(),
                    _ => name.into(),
                };
                let (path, staged) = (self.path.with_file_name(&name), self.folder().join(&name));
                let length = end.min(want) - begin;
                pieces.push(GrowingFile { remote, start: begin, length, path, staged });
            }
            start = end;
        }
        pieces
    }

    /// Assembles the next state of one file from the existing part and the downloaded rest.
    fn fetch(&self, piece: &GrowingFile<'_>, arrived: &mut dyn FnMut(u64)) -> Result<()> {
        let failed = |error| HubError::file("write", &piece.staged, error);
        if length(&piece.staged) < length(&piece.path) {
            std::fs::copy(&piece.path, &piece.staged).map_err(failed)?;
        }
        let mut file =
            File::options().append(true).create(true).open(&piece.staged).map_err(failed)?;
        let at = length(&piece.staged);
        if at > piece.length {
            file.set_len(piece.length).map_err(failed)?;
        }
        let mut sink = |bytes: &[u8]| {
            file.write_all(bytes).map_err(failed)?;
            arrived(bytes.len() as u64);
            Ok(())
        };
        let range = at.min(piece.length)..piece.length;
        let ranges = self.storage.ranges();
        ranges.stream(piece.remote, range, &mut sink).map_err(|e| self.hub.explain(e))?;
        file.sync_all().map_err(failed)
    }

    /// Links the unchanged shards into the folder, because a sharded store is opened with all files in one
    /// folder.
    fn link_neighbours(&self, pieces: &[GrowingFile<'_>]) -> Result<()> {
        for remote in &self.storage.files().shards {
            let name = remote.name.rsplit('/').next().unwrap_or(&remote.name);
            let (path, staged) = (self.path.with_file_name(name), self.folder().join(name));
            let is_piece = pieces.iter().any(|piece| piece.staged == staged);
            if is_piece || !path.exists() || self.source.index().shards().len() == 1 {
                continue;
            }
            let _ = std::fs::remove_file(&staged);
            std::fs::hard_link(&path, &staged)
                .or_else(|_| std::fs::copy(&path, &staged).map(drop))
                .map_err(|error| HubError::file("write", &staged, error))?;
        }
        Ok(())
    }

    /// Compares the downloaded extents with the store's checksums. Damaged parts are truncated.
    fn check(
        &self,
        pieces: &[GrowingFile<'_>],
        present: usize,
        sections: usize,
        observer: &dyn Observer,
    ) -> Result<()> {
        let staged = self.folder().join(self.file_name());
        let store = Store::open(&staged).map_err(|error| {
            // The header is damaged, so nothing can be kept.
            let _ = std::fs::remove_file(&staged);
            damaged(&error.to_string())
        })?;
        if store.index() != self.source.index() || store.sections_present() != sections {
            let _ = std::fs::remove_file(&staged);
            return Err(damaged("it is not what the repository has"));
        }
        let (from, to) = (self.end(present), self.end(sections));
        let mut progress = observer.begin(Task::Check, to - from, 0);
        let report = store.verify_after(present, &mut |at| {
            progress.set(at.done_bytes.saturating_sub(from));
            ControlFlow::Continue(())
        });
        drop(progress);
        let Some(first) = report?.damage.into_iter().next() else { return Ok(()) };
        let (StoreError::Damaged { offset, .. } | StoreError::Padding { offset, .. }) = &first
        else {
            return Err(first.into());
        };
        for piece in pieces {
            let sound = offset.saturating_sub(piece.start).min(piece.length);
            let failed = |error| HubError::file("write", &piece.staged, error);
            let file = File::options().write(true).open(&piece.staged).map_err(failed)?;
            file.set_len(sound).map_err(failed)?;
        }
        Err(damaged(&first.to_string()))
    }

    /// Reports the upcoming download.
    pub fn announce(&self, sections: usize, observer: &dyn Observer) -> Result<()> {
        let (fetch, disk) = self.missing(sections)?;
        let place = self.path.parent().unwrap_or(Path::new("."));
        let level = self.source.index().complete_level(sections);
        observer.notice(&Notice::Sections {
            missing_bytes: fetch,
            store_bytes: self.source.index().length(),
            level,
            folder: place,
        });
        let free = Disk::new(place, disk)?;
        observer.notice(&Notice::Disk(&free));
        free.check()
    }
}

/// Returns the number of sections that a level needs, or all sections without a level.
pub fn sections_of(source: &Store, level: Option<Level>) -> Result<usize> {
    let Some(level) = level else { return Ok(source.sections_present()) };
    let needed = source.index().sections_for(level);
    needed.filter(|needed| *needed <= source.sections_present()).ok_or_else(|| {
        let held = source.level();
        HubError::new(format!("{} holds level {held}, not level {level}", source.name()))
            .advise(format!("choose --level {held} or lower"))
    })
}

fn damaged(what: &str) -> HubError {
    HubError::new(format!("the download arrived damaged: {what}"))
        .advise("run the command again; it fetches what was damaged")
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |data| data.len())
}

/// Locks the folder, so that two programs do not write the same files.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join("lock");
    let failed = |error| HubError::file("write", &path, error);
    let file = File::create(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(HubError::new("another program is downloading the same store")
                .advise("wait until it is finished"))
        }
        // The file system does not support locks.
        Err(std::fs::TryLockError::Error(_)) => Ok(file),
    }
}

/// Moves the files to their final paths. The last one is moved first, since a shard is read only if all
/// earlier shards are complete.
fn publish(pieces: &[GrowingFile<'_>]) -> Result<()> {
    for piece in pieces.iter().rev() {
        std::fs::rename(&piece.staged, &piece.path)
            .map_err(|error| HubError::file("write", &piece.path, error))?;
    }
    let folder = pieces.first().and_then(|piece| piece.path.parent());
    if let Some(folder) = folder.and_then(|folder| File::open(folder).ok()) {
        // If folders cannot be synced, the renames become durable later.
        let _ = folder.sync_all();
    }
    Ok(())
}

//! Unused cache files: partial files of abandoned operations, and records of deleted files.

use super::downloads::{folders, unfinished};
use super::stores::files_of;
use super::{
    CachedModel, Caches, Leftover, LeftoverKind, bytes_of, entries, is_real_folder, name_of,
    root_entries,
};
use crate::names::is_commit;
use crate::room::on_disk;
use crate::sparse_file;
use crate::turn::Turn;
use crate::uses::KnownUse;
use nestling_formats::open_own_file;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Age from which a short-lived temporary file is a leftover.
const TEMPORARY_AGE: Duration = Duration::from_secs(3600);

/// Returns all leftovers, except files that a process is working on.
pub fn all(caches: &Caches, models: &[CachedModel], uses: &[KnownUse]) -> Vec<Leftover> {
    let mut found = Vec::new();
    for folder in folders(caches) {
        let locks = caches.downloads.join(".locks").join(name_of(&folder));
        let is_free = |part: &PathBuf| {
            let lock = locks.join(name_of(&part.with_extension("lock")));
            !lock.exists() || is_free(&lock)
        };
        let parts = unfinished(&folder).into_iter().filter(is_free);
        found.extend(parts.map(|part| leftover(part, LeftoverKind::Download)));
    }
    for folder in root_entries(&caches.stores.folder) {
        in_folder(caches, &folder, &mut found);
        for below in entries(&folder) {
            if is_commit(&name_of(&below)) {
                in_folder(caches, &below, &mut found);
            }
        }
    }
    let outdated = models.iter().filter(|model| model.is_outdated && !model.is_open);
    for (files, beside) in outdated.map(|model| files_of(&model.path)) {
        let all = files.into_iter().chain(beside);
        found.extend(all.map(|path| leftover(path, LeftoverKind::OutdatedStore)));
    }
    of_reads(caches, uses, &mut found);
    found
}

fn leftover(path: PathBuf, why: LeftoverKind) -> Leftover {
    let data = std::fs::symlink_metadata(&path).ok();
    let bytes = match data.filter(std::fs::Metadata::is_file) {
        // A file that is written out of order has holes.
        Some(data) if why == LeftoverKind::Conversion || is_sparse(&path) => {
            on_disk(&data).min(data.len())
        }
        _ => bytes_of(&path),
    };
    Leftover { path, bytes, why }
}

/// Finds unfinished downloads and conversions of stores.
fn in_folder(caches: &Caches, folder: &Path, found: &mut Vec<Leftover>) {
    for path in entries(folder) {
        let name = name_of(&path);
        if name.starts_with('.') && name.ends_with(".download") && is_real_folder(&path) {
            let lock = path.join("lock");
            if !lock.exists() || is_free(&lock) {
                found.push(leftover(path, LeftoverKind::Download));
            }
        } else if name.ends_with(".partial") || name.ends_with(".journal") {
            // The lock belongs to the final name of the store.
            let lock = caches.stores.lock(&path.with_extension(""));
            if !lock.exists() || is_free(&lock) {
                found.push(leftover(path, LeftoverKind::Conversion));
            }
        } else if is_sparse(&path) && is_free(&path) {
            found.push(leftover(path, LeftoverKind::Download));
        } else if name.ends_with(".part") && is_old(&path) {
            found.push(leftover(path, LeftoverKind::Temporary));
        }
    }
}

/// Returns true for an incomplete copy of a store on the web, whose lock is on the file itself.
fn is_sparse(path: &Path) -> bool {
    name_of(path).ends_with(sparse_file::ENDING)
}

/// Finds records of deleted files in place.
fn of_reads(caches: &Caches, uses: &[KnownUse], found: &mut Vec<Leftover>) {
    for path in root_entries(caches.reads.folder()) {
        if name_of(&path).ends_with(".partial") && is_old(&path) {
            found.push(leftover(path, LeftoverKind::Temporary));
        }
    }
    for known in uses.iter().filter(|known| !known.is_open && !known.path.exists()) {
        let folder = caches.reads.folder();
        // A record is untrusted: only files in this folder may be removed.
        let reads = known.reads.iter().filter(|reads| reads.parent() == Some(folder));
        let files = reads.filter(|reads| reads.is_file()).chain([&known.record]);
        found.extend(files.map(|path| leftover(path.clone(), LeftoverKind::GoneFile)));
    }
}

fn is_free(lock: &Path) -> bool {
    // If the lock file cannot be opened, it may be held.
    let Ok(file) = open_own_file(lock, File::options().append(true)) else { return false };
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock))
}

fn is_old(path: &Path) -> bool {
    let time = std::fs::symlink_metadata(path).and_then(|data| data.modified()).ok();
    let age = time.and_then(|time| SystemTime::now().duration_since(time).ok());
    age.is_some_and(|age| age > TEMPORARY_AGE)
}

/// Acquires the lock that protects a leftover, if it has one. Returns `None` if a process is working on the
/// leftover.
pub fn turn(caches: &Caches, leftover: &Leftover) -> Option<Option<Turn>> {
    let lock = match leftover.why {
        LeftoverKind::Conversion => caches.stores.lock(&leftover.path.with_extension("")),
        LeftoverKind::Download if is_real_folder(&leftover.path) => leftover.path.join("lock"),
        LeftoverKind::Download if is_sparse(&leftover.path) => leftover.path.clone(),
        LeftoverKind::Download => {
            let repository = leftover.path.parent().and_then(Path::parent)?;
            let locks = caches.downloads.join(".locks").join(name_of(repository));
            locks.join(name_of(&leftover.path.with_extension("lock")))
        }
        _ => return Some(None),
    };
    Turn::take_if_free(&lock).ok()?.map(Some)
}

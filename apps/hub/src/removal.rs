//! Removal of models and leftovers from the caches, unless a process uses them.

use crate::error::{HubError, Result};
use crate::inventory::{
    CachedKind, CachedModel, Caches, Leftover, LeftoverKind, bytes_of, entries, files_of,
    is_real_folder, locks_of, name_of, turn,
};
use crate::turn::Turn;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Files that are removed with a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Paths of files and of whole folders.
    pub paths: Vec<PathBuf>,
    /// Total size in bytes.
    pub bytes: u64,
}

impl Removal {
    /// Returns the files to remove with a model. For a file outside the caches, these are its records, never
    /// the file.
    pub fn of(model: &CachedModel, caches: &Caches) -> Self {
        let mut paths = match model.kind {
            CachedKind::Download => {
                let folder = name_of(&model.path);
                // Default: other folders keep their full name.
                let repository = folder.strip_prefix("models--").unwrap_or(&folder);
                vec![model.path.clone(), caches.headers.join(repository)]
            }
            CachedKind::InPlace => reads_of(model, caches),
            CachedKind::Store | CachedKind::Converted => {
                let (files, beside) = files_of(&model.path);
                files.into_iter().chain(beside).collect()
            }
        };
        paths.retain(|path| std::fs::symlink_metadata(path).is_ok());
        let bytes = paths.iter().map(|path| bytes_of(path)).sum();
        Self { paths, bytes }
    }
}

fn reads_of(model: &CachedModel, caches: &Caches) -> Vec<PathBuf> {
    let folder = caches.reads.folder();
    let uses = caches.uses.all().into_iter().filter(|known| known.path == model.path);
    let files = uses.flat_map(|known| {
        let reads = known.reads.filter(|reads| reads.parent() == Some(folder));
        reads.into_iter().chain([known.record])
    });
    files.collect()
}

/// Removes a model and returns the number of freed bytes.
///
/// # Errors
/// Returns an error if a process has the model open, converts it or downloads it, or if a file cannot be
/// removed.
pub fn remove(model: &CachedModel, caches: &Caches) -> Result<u64> {
    let _claims = claims(model, caches)?;
    let _turns = turns(model, caches)?;
    let removal = Removal::of(model, caches);
    for path in &removal.paths {
        // Files outside the caches are never removed.
        if model.kind != CachedKind::InPlace || *path != model.path {
            remove_path(path, caches)?;
        }
    }
    if matches!(model.kind, CachedKind::Store | CachedKind::Converted) {
        tidy_folders(&model.path, caches);
    }
    Ok(removal.bytes)
}

fn in_use(model: &CachedModel, what: &str) -> HubError {
    HubError::new(format!("{} is in use: {what}", model.name))
        .advise("end that process first, or wait for it")
}

/// Acquires the locks that prevent other processes from opening the model.
fn claims(model: &CachedModel, caches: &Caches) -> Result<Vec<File>> {
    // Default: a missing file is not open anywhere.
    let Ok(path) = model.path.canonicalize() else { return Ok(Vec::new()) };
    let uses = caches.uses.all().into_iter().filter(|known| known.path.starts_with(&path));
    let claims = uses.map(|known| {
        let refused = || in_use(model, &format!("a process has {} open", known.path.display()));
        known.claim().ok_or_else(refused)
    });
    claims.collect()
}

/// Acquires the locks that prevent other processes from converting or downloading the model.
fn turns(model: &CachedModel, caches: &Caches) -> Result<Vec<Turn>> {
    let locks = match model.kind {
        CachedKind::Download => locks_of(caches, &model.path),
        CachedKind::InPlace => Vec::new(),
        CachedKind::Store | CachedKind::Converted => {
            let staged = format!(".{}.download", name_of(&model.path));
            let staged = model.path.with_file_name(staged).join("lock");
            let staged = Some(staged).filter(|lock| lock.exists());
            let lock = caches.stores.lock(&model.path);
            staged.into_iter().chain(Some(lock).filter(|lock| lock.exists())).collect()
        }
    };
    let turns = locks.iter().map(|lock| {
        let refused = || in_use(model, "a process downloads or converts it");
        Turn::take_if_free(lock)?.ok_or_else(refused)
    });
    turns.collect()
}

/// Removes a file or a folder of the caches. A link is removed itself, never its target.
fn remove_path(path: &Path, caches: &Caches) -> Result<()> {
    if !caches.contain(path) {
        let what = format!("{} is outside the caches, or behind a link", path.display());
        return Err(HubError::new(what).advise("remove it by hand"));
    }
    let failed = |error| HubError::file("remove", path, error);
    let data = match std::fs::symlink_metadata(path) {
        Ok(data) => data,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if data.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }
        .map_err(failed)
}

/// Removes folders of stores that contain nothing but records of revisions.
fn tidy_folders(store: &Path, caches: &Caches) {
    let mut folder = store.parent();
    while let Some(at) = folder.filter(|at| *at != caches.stores.folder) {
        if !caches.contain(at) || !is_real_folder(at) {
            return;
        }
        let left = entries(at);
        if left.iter().any(|path| name_of(path) != "refs") {
            return;
        }
        // An empty folder that cannot be removed occupies no space.
        let _ = std::fs::remove_dir_all(at);
        folder = at.parent();
    }
}

/// Removes an unused file and returns the number of freed bytes. Returns `None` if a process is working on
/// it.
///
/// # Errors
/// Returns an error if the file cannot be removed.
pub fn remove_leftover(leftover: &Leftover, caches: &Caches) -> Result<Option<u64>> {
    if leftover.why == LeftoverKind::OutdatedStore {
        let uses = caches.uses.all();
        let path = leftover.path.canonicalize().ok();
        if uses.iter().any(|known| known.is_open && Some(&known.path) == path.as_ref()) {
            return Ok(None);
        }
    }
    let Some(_turn) = turn(caches, leftover) else { return Ok(None) };
    remove_path(&leftover.path, caches)?;
    Ok(Some(leftover.bytes))
}

//! Models and leftovers out of the caches, unless some process needs them.

use crate::error::{HubError, Result};
use crate::inventory::{
    CachedKind, CachedModel, Caches, Leftover, LeftoverKind, bytes_of, entries, files_of,
    is_real_folder, locks_of, name_of, turn,
};
use crate::turn::Turn;
use std::fs::File;
use std::path::{Path, PathBuf};

/// What removing a model does away with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removal {
    /// Files, and folders with all that is in them.
    pub paths: Vec<PathBuf>,
    /// Bytes of all of them.
    pub bytes: u64,
}

impl Removal {
    /// What goes with a model. Of a file outside the caches that is what the caches keep of it, never the file.
    pub fn of(model: &CachedModel, caches: &Caches) -> Self {
        let mut paths = match model.kind {
            CachedKind::Download => {
                let folder = name_of(&model.path);
                // Default: folders of repositories are called so.
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

/// What is kept of a file in place.
fn reads_of(model: &CachedModel, caches: &Caches) -> Vec<PathBuf> {
    let folder = caches.reads.folder();
    let uses = caches.uses.all().into_iter().filter(|known| known.path == model.path);
    let files = uses.flat_map(|known| {
        let reads = known.reads.filter(|reads| reads.parent() == Some(folder));
        reads.into_iter().chain([known.record])
    });
    files.collect()
}

/// Removes a model. Bytes that are free now.
///
/// # Errors
/// If some process has it open, makes it or downloads it, or something cannot be removed.
pub fn remove(model: &CachedModel, caches: &Caches) -> Result<u64> {
    let _claims = claims(model, caches)?;
    let _turns = turns(model, caches)?;
    let removal = Removal::of(model, caches);
    for path in &removal.paths {
        // Files beside the caches are nobody's to remove.
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

/// Keeps others from opening it meanwhile.
fn claims(model: &CachedModel, caches: &Caches) -> Result<Vec<File>> {
    // Default: what is not there is open nowhere.
    let Ok(path) = model.path.canonicalize() else { return Ok(Vec::new()) };
    let uses = caches.uses.all().into_iter().filter(|known| known.path.starts_with(&path));
    let claims = uses.map(|known| {
        let refused = || in_use(model, &format!("a process has {} open", known.path.display()));
        known.claim().ok_or_else(refused)
    });
    claims.collect()
}

/// Keeps others from making or downloading it meanwhile.
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

/// Removes folders of stores in which nothing is left but what revisions meant.
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
        // What cannot be removed takes no room.
        let _ = std::fs::remove_dir_all(at);
        folder = at.parent();
    }
}

/// Removes something that no model needs. Bytes that are free now; none where some process works on it after all.
///
/// # Errors
/// If it cannot be removed.
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

//! Repositories in the Hub's cache.

use super::{
    CachedKind, CachedModel, Caches, bytes_of, entries, is_real_folder, name_of, repository_of,
    root_entries,
};
use crate::names::is_commit;
use std::path::{Path, PathBuf};

const START: &str = "models--";

/// Returns all model repositories with at least one downloaded commit.
pub fn all(caches: &Caches) -> Vec<CachedModel> {
    let folders = folders(caches);
    folders.iter().filter_map(|folder| download(caches, folder)).collect()
}

fn download(caches: &Caches, folder: &Path) -> Option<CachedModel> {
    let name = name_of(folder);
    let repository = name.strip_prefix(START)?;
    let id = repository_of(repository)?;
    let commits: Vec<String> = entries(&folder.join("snapshots"))
        .iter()
        .filter(|snapshot| !entries(snapshot).is_empty())
        .map(|snapshot| name_of(snapshot))
        .filter(|commit| is_commit(commit))
        .collect();
    if commits.is_empty() {
        return None;
    }
    let mut model = CachedModel::new(id, CachedKind::Download, folder.into());
    let unfinished: u64 = unfinished(folder).iter().map(|part| bytes_of(part)).sum();
    model.bytes = bytes_of(folder).saturating_sub(unfinished);
    model.beside_bytes = bytes_of(&caches.headers.join(repository));
    model.commits = commits;
    Some(model)
}

/// Returns the partial files of interrupted downloads of a repository.
pub fn unfinished(folder: &Path) -> Vec<PathBuf> {
    let mut files = entries(&folder.join("blobs"));
    files.retain(|file| file.extension().is_some_and(|ending| ending == "part"));
    files
}

/// Returns the lock files of a repository's blobs.
pub fn locks_of(caches: &Caches, folder: &Path) -> Vec<PathBuf> {
    let locks = caches.downloads.join(".locks");
    if is_real_folder(&locks) { entries(&locks.join(name_of(folder))) } else { Vec::new() }
}

/// Returns the folder of every repository, with or without commits. Links are left out.
pub fn folders(caches: &Caches) -> Vec<PathBuf> {
    let mut folders = root_entries(&caches.downloads);
    folders.retain(|folder| name_of(folder).starts_with(START) && is_real_folder(folder));
    folders
}

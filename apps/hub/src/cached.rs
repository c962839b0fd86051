//! Lookup of cached repositories without the network.

use crate::choice::Choice;
use crate::error::{HubError, Result};
use crate::gguf::{GgufFiles, choose};
use crate::listing::{Listing, RemoteFile};
use crate::names::is_commit;
use crate::options::HubOptions;
use crate::repository::{Reference, Repository, RepositoryCache};
use crate::sparse_file;
use crate::store_cache::{ConvertedModel, ending};
use std::path::{Path, PathBuf};

/// A repository and its caches.
pub struct CachedRepository<'a> {
    pub reference: &'a Reference,
    pub cache: &'a RepositoryCache,
    pub options: &'a HubOptions,
}

impl CachedRepository<'_> {
    /// Returns a cached store or a complete download.
    pub fn find(&self) -> Option<ConvertedModel> {
        self.downloaded().or_else(|| {
            let commit = self.cache.known_commit()?;
            self.converted(&commit).or_else(|| self.complete(&commit))
        })
    }

    fn downloaded(&self) -> Option<ConvertedModel> {
        let commit = known_commit(self.options, self.cache.repository())?;
        let wanted = self.reference.wanted.as_deref();
        let folder = self.options.stores.of_repository(self.cache.repository()).join(&commit);
        let name = wanted.and_then(|wanted| wanted.rsplit('/').next());
        // Copies are of use only to readers by ranges. A complete store is preferred to a copy of it.
        let plain = |file: &str| match self.options.by_ranges {
            true => file.strip_suffix(sparse_file::ENDING).unwrap_or(file).to_owned(),
            false => file.to_owned(),
        };
        let mut stores = names(&folder).into_iter().filter(|file| {
            let plain = plain(file);
            plain.ends_with(".nest") && name.is_none_or(|name| name == plain)
        });
        let first = stores.next()?;
        Some(self.options.stores.downloaded(self.cache, &commit, &first))
    }

    fn converted(&self, commit: &str) -> Option<ConvertedModel> {
        let wanted = self.reference.wanted.as_deref();
        let of_checkpoint = self.options.stores.converted(self.cache, commit);
        if wanted.is_none() && of_checkpoint.is_converted() {
            return Some(of_checkpoint);
        }
        // The name of a store converted from a GGUF file contains the file's name.
        let start = format!("{commit}-");
        let ends = [&self.options.stores.calibration, &self.options.stores.gguf_calibration];
        let ends = ends.map(|calibration| format!("-{}", ending(calibration)));
        let stem = |file: &String| {
            let rest = file.strip_prefix(&start)?;
            let stem = ends.iter().find_map(|end| rest.strip_suffix(end.as_str()))?;
            let name = format!("{stem}.gguf");
            Some(GgufFiles { name, parts: Vec::new(), parts_total: 0 })
        };
        let stores = names(&self.options.stores.of_repository(self.cache.repository()));
        let mut models: Vec<GgufFiles> = stores.iter().filter_map(stem).collect();
        models.dedup();
        let found = choose(models, wanted, self.options.room).ok()?;
        Some(self.options.stores.converted_gguf(self.cache, commit, &found))
            .filter(ConvertedModel::is_converted)
    }

    /// Returns a complete download that can be converted.
    fn complete(&self, commit: &str) -> Option<ConvertedModel> {
        let snapshot = self.cache.snapshot(commit);
        let listing = Listing::of_snapshot(commit, &snapshot);
        match Choice::of(&listing, self.reference, self.options.room).ok()? {
            Choice::Checkpoint => RemoteFile::all_present(&snapshot)
                .then(|| self.options.stores.converted(self.cache, commit)),
            Choice::Gguf(files) => {
                Some(self.options.stores.converted_gguf(self.cache, commit, &files))
            }
            Choice::Store(_) => None,
        }
    }
}

/// Returns the names of a folder's files, sorted. Empty if the folder does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn commit_file(options: &HubOptions, repository: &Repository) -> PathBuf {
    options.stores.of_repository(repository).join("refs").join(&repository.revision)
}

/// Stores the commit that a revision pointed to when a store was downloaded.
pub fn remember_commit(options: &HubOptions, repository: &Repository, commit: &str) -> Result<()> {
    let path = commit_file(options, repository);
    let failed = |error| HubError::file("write", &path, error);
    path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
    std::fs::write(&path, commit).map_err(failed)
}

fn known_commit(options: &HubOptions, repository: &Repository) -> Option<String> {
    // Default: without a stored commit, the revision itself may be a commit.
    let text = std::fs::read_to_string(commit_file(options, repository)).unwrap_or_default();
    let commit = if text.is_empty() { &repository.revision } else { text.trim() };
    is_commit(commit).then(|| commit.into())
}

/// Returns a downloaded store of a repository, complete or partial.
pub fn downloaded(reference: &Reference, options: &HubOptions) -> Option<PathBuf> {
    let cache = reference.repository.cache(options.downloads.clone());
    CachedRepository { reference, cache: &cache, options }.downloaded().map(|found| found.store)
}

/// Returns the error for a model that is not cached while the network is disabled.
pub fn not_cached(reference: &Reference) -> HubError {
    HubError::new(format!("{reference} is not complete in the cache, and the network is off"))
        .advise("run the same command once without --offline (and without HF_HUB_OFFLINE)")
}

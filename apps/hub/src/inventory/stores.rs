//! Stores in Nestling's cache.

use super::{
    CachedKind, CachedModel, Caches, Source, bytes_of, entries, name_of, repository_of,
    root_entries,
};
use crate::made_of::{self, MadeOf, SourceState};
use crate::names::is_commit;
use crate::origin::Origin;
use crate::store_address;
use nestling_convert::convert::QUANTIZER_VERSION;
use nestling_formats::store::Store;
use std::path::{Path, PathBuf};

/// Folder of stores converted from local files.
const OF_FILES: &str = "gguf";

/// Suffixes of auxiliary files of a store.
const BESIDE: [&str; 2] = [made_of::ENDING, ".origin.json"];

/// Returns all stores; the shards of a store count as one.
pub fn all(caches: &Caches) -> Vec<CachedModel> {
    let mut found = Vec::new();
    for folder in root_entries(&caches.stores.folder) {
        let name = name_of(&folder);
        for path in entries(&folder) {
            if is_store(&path) {
                found.push(match name.as_str() {
                    OF_FILES => of_file(&path),
                    store_address::FOLDER => of_address(&path),
                    _ => of_repository(caches, &path, &name),
                });
            } else if is_commit(&name_of(&path)) {
                let stores = entries(&path).into_iter().filter(|path| is_store(path));
                found.extend(stores.map(|store| downloaded(&store, &name, &name_of(&path))));
            }
        }
    }
    mark_older(&mut found);
    found
}

/// Returns true for a store or the first of its shards.
fn is_store(path: &Path) -> bool {
    let name = name_of(path);
    let is_first = shard(&name).is_none_or(|(_, number, _)| number == 1);
    name.ends_with(".nest") && !name.starts_with('.') && is_first && path.is_file()
}

/// Splits the name of a shard into its common name, its number starting at 1, and the number of shards.
fn shard(name: &str) -> Option<(&str, u32, u32)> {
    let stem = name.strip_suffix(".nest")?;
    let (start, total) = stem.rsplit_once("-of-")?;
    let (start, number) = start.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number(number) || !is_number(total) {
        return None;
    }
    Some((start, number.parse().ok()?, total.parse().ok()?))
}

/// Returns the files of a store, and its auxiliary files.
pub fn files_of(store: &Path) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let mut files = vec![store.to_path_buf()];
    if let Some((start, _, total)) = shard(&name_of(store)) {
        let shards = (2..=total).map(|number| format!("{start}-{number:05}-of-{total:05}.nest"));
        files.extend(shards.map(|name| store.with_file_name(name)));
        files.retain(|path| path.is_file());
    }
    let beside = BESIDE.iter().map(|ending| {
        let mut name = store.as_os_str().to_owned();
        name.push(ending);
        PathBuf::from(name)
    });
    (files, beside.filter(|path| path.is_file()).collect())
}

fn model(name: String, kind: CachedKind, path: &Path) -> CachedModel {
    let mut model = CachedModel::new(name, kind, path.into());
    let (files, beside) = files_of(path);
    let sum = |files: &[PathBuf]| files.iter().map(|path| bytes_of(path)).sum();
    (model.bytes, model.beside_bytes) = (sum(&files), sum(&beside));
    match Store::open(path) {
        Ok(store) => model.level = Some(store.level().bits()),
        Err(error) => model.damage = Some(error.to_string()),
    }
    model
}

fn of_file(path: &Path) -> CachedModel {
    let name = name_of(path);
    let name = name.strip_suffix(".nest").unwrap_or(&name).to_owned();
    let mut model = model(name, CachedKind::Converted, path);
    if let Some(made_of) = MadeOf::of(path) {
        let state = made_of.state();
        model.is_outdated = state == SourceState::Changed;
        model.source = Some(Source::File { path: made_of.path, state });
    }
    model
}

/// Returns the complete copy of a store on the web.
fn of_address(path: &Path) -> CachedModel {
    let name = name_of(path);
    // Default: the name of every store has the ending.
    let name = name.strip_suffix(".nest").unwrap_or(&name).to_owned();
    model(name, CachedKind::Store, path)
}

fn of_repository(caches: &Caches, path: &Path, folder: &str) -> CachedModel {
    let file = name_of(path);
    // Default: a folder that does not belong to a repository keeps its name.
    let id = repository_of(folder).unwrap_or_else(|| folder.into());
    let mut model = model(id.clone(), CachedKind::Converted, path);
    let commit = file.split('-').next().filter(|commit| is_commit(commit));
    model.source = commit.map(|commit| {
        let repository = caches.downloads.join(format!("models--{folder}"));
        let is_here = !entries(&repository.join("snapshots").join(commit)).is_empty();
        Source::Repository { id, commit: commit.into(), is_here }
    });
    model
}

fn downloaded(path: &Path, folder: &str, commit: &str) -> CachedModel {
    let origin = Origin::of(path).map(|origin| origin.repository);
    // Default: without a record of its origin, the repository is derived from the folder's name.
    let id = origin.or_else(|| repository_of(folder)).unwrap_or_else(|| folder.into());
    let mut model = model(id, CachedKind::Store, path);
    model.commits = vec![commit.into()];
    model
}

/// Splits a store's name into the name without the quantizer version, and the version.
fn version(path: &Path) -> Option<(PathBuf, u32)> {
    let name = name_of(path);
    let (start, calibration) = name.rsplit_once('-')?;
    let (start, version) = start.rsplit_once("-q")?;
    let version = version.parse().ok()?;
    Some((path.with_file_name(format!("{start}-{calibration}")), version))
}

/// Marks stores of older quantizers as outdated if a store of the current quantizer exists.
fn mark_older(found: &mut [CachedModel]) {
    let newest: Vec<PathBuf> = found
        .iter()
        .filter(|model| model.damage.is_none())
        .filter_map(|model| version(&model.path))
        .filter(|(_, version)| *version == QUANTIZER_VERSION)
        .map(|(name, _)| name)
        .collect();
    for model in found.iter_mut().filter(|model| model.kind == CachedKind::Converted) {
        let is_older = version(&model.path)
            .is_some_and(|(name, version)| version < QUANTIZER_VERSION && newest.contains(&name));
        model.is_outdated |= is_older;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_shards_and_versions() {
        assert_eq!(shard("a-b-00002-of-00003.nest"), Some(("a-b", 2, 3)));
        for name in ["a.nest", "a-2-of-3.nest", "a-00001-of-00002.gguf", "of-00001.nest"] {
            assert_eq!(shard(name), None, "{name}");
        }
        let found = version(Path::new("x/abc-model-q3-prose1.nest"));
        assert_eq!(found, Some((PathBuf::from("x/abc-model-prose1.nest"), 3)));
        assert_eq!(version(Path::new("model.nest")), None);
    }
}

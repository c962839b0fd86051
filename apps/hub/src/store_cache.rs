//! Nestling's cache of stores: their paths, and conversions that run once across processes.

use crate::error::{HubError, Result};
use crate::gguf::GgufFiles;
use crate::identity::Identity;
use crate::made_of::MadeOf;
use crate::observer::{Notice, Observer, Task};
use crate::repository::{Repository, RepositoryCache};
use crate::room::on_disk;
use crate::turn::Turn;
use nestling_convert::convert::QUANTIZER_VERSION;
use nestling_import::gguf::part_names;
use std::path::{Path, PathBuf};

/// Calibration name of exact stores, which contain the bits of their source file.
const EXACT: &str = "exact";

/// Number of characters of a file name used to search its stores. Store names contain more of it.
const STEM_SHOWN: usize = 80;

/// Number of digits of an obsolete identity, which is too weak to be trusted.
const OLD_IDENTITY_DIGITS: usize = 12;

/// A local checkpoint or GGUF file, and the store converted from it.
#[derive(Debug)]
pub struct ConvertedModel {
    /// Path of the checkpoint folder or the first GGUF file. It may be missing if the store exists.
    pub checkpoint: PathBuf,
    /// Path of the store, which may not exist yet.
    pub store: PathBuf,
}

impl ConvertedModel {
    /// Returns true if the store exists.
    pub fn is_converted(&self) -> bool {
        self.store.is_file()
    }
}

/// Folders of converted stores, and the calibrations that are part of their names.
#[derive(Clone, Debug)]
pub struct StoreCache {
    /// Folder of the stores.
    pub folder: PathBuf,
    /// Folder of the locks that serialize processes.
    pub locks: PathBuf,
    /// Calibration of conversions from checkpoints, as a part of the store's name.
    pub calibration: String,
    /// Calibration of conversions from GGUF files, as a part of the store's name.
    pub gguf_calibration: String,
}

impl StoreCache {
    /// Returns the store of a local GGUF file.
    ///
    /// # Errors
    /// Returns an error if the file or one of its parts cannot be read.
    pub fn of_gguf(&self, path: &Path, observer: &dyn Observer) -> Result<ConvertedModel> {
        let Identity { stem, hash } = Identity::of(path)?;
        let folder = self.folder.join("gguf");
        let store = self.calibrated(&folder, &format!("{stem}-{hash}"));
        if !store.is_file() {
            tell_of_old(&folder, &stem, observer);
        }
        Ok(ConvertedModel { checkpoint: path.into(), store })
    }

    /// Returns the exact store of a GGUF file, which background conversions write.
    ///
    /// # Errors
    /// Returns an error if the file or one of its parts cannot be read.
    pub fn exact_of_gguf(&self, path: &Path) -> Result<ConvertedModel> {
        let Identity { stem, hash } = Identity::of(path)?;
        let store = self.folder.join("gguf").join(format!("{stem}-{hash}-{}", ending(EXACT)));
        Ok(ConvertedModel { checkpoint: path.into(), store })
    }

    /// Returns true if an exact store of a file with that name exists. This check is much cheaper than
    /// computing the file's identity.
    pub fn has_exact(&self, path: &Path) -> bool {
        let end = format!("-{}", ending(EXACT));
        // Default: a path without a file name has no store.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(parts) = part_names(&name) else { return false };
        // Default: a file that is not split is its own first part.
        let first = Path::new(parts.first().map_or(&*name, String::as_str)).file_stem();
        // Default: a path without a file name has no store.
        let stem = first.unwrap_or_default().to_string_lossy();
        let start: String = stem.chars().take(STEM_SHOWN).collect();
        let names = std::fs::read_dir(self.folder.join("gguf")).into_iter().flatten().flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(&start) && name.ends_with(&end))
    }

    /// Calls `convert` for a missing store, unless another process is converting it. Returns true if the
    /// store exists afterwards.
    ///
    /// # Errors
    /// Returns errors of `convert`, or an error if the lock file cannot be written.
    pub fn convert_if_free<E: From<HubError>>(
        &self,
        obtained: &ConvertedModel,
        convert: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let Some(turn) = Turn::take_if_free(&self.lock(&obtained.store))? else {
            return Ok(false);
        };
        let converted = make(obtained, convert);
        drop(turn);
        converted.map(|()| true)
    }

    /// Calls `convert` for a missing store, or waits for the process that is converting it.
    ///
    /// # Errors
    /// Returns errors of `convert`, or an error if the lock file cannot be written.
    pub fn convert_once<E: From<HubError>>(
        &self,
        obtained: &ConvertedModel,
        observer: &dyn Observer,
        convert: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if obtained.is_converted() {
            return Ok(());
        }
        let mut progress = None;
        let turn = Turn::take(&self.lock(&obtained.store), &mut || {
            let (written, total) = written(&obtained.store).unzip();
            if progress.is_none() {
                observer.notice(&Notice::WaitForConversion);
            }
            // Default: the length is unknown until the conversion starts to write.
            let total = total.unwrap_or(0);
            let task =
                progress.get_or_insert_with(|| observer.begin(Task::WaitForConversion, total, 0));
            if let Some(written) = written {
                task.set_of(written, total);
            }
        })?;
        drop(progress);
        // If the other process did not finish, the conversion resumes here.
        let converted = make(obtained, convert);
        drop(turn);
        converted
    }

    /// Returns the lock of a store. It is in a separate folder, because folders of stores contain only stores
    /// and partial files.
    pub(crate) fn lock(&self, store: &Path) -> PathBuf {
        let name = |path: Option<&Path>| {
            // Default: a store in a root folder has no folder name.
            let name = path.and_then(Path::file_name).unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        self.locks.join(format!("{}--{}.lock", name(store.parent()), name(Some(store))))
    }

    /// Returns the path of a store converted from a GGUF file, by the start of its name.
    fn calibrated(&self, folder: &Path, start: &str) -> PathBuf {
        let stored = |calibration: &str| folder.join(format!("{start}-{}", ending(calibration)));
        // An existing store that was calibrated is preferred.
        let better = stored(&self.calibration);
        if better.is_file() { better } else { stored(&self.gguf_calibration) }
    }

    /// Returns the folder of a repository's stores.
    pub(crate) fn of_repository(&self, repository: &Repository) -> PathBuf {
        self.folder.join(repository.folder())
    }

    /// Returns a checkpoint and the store that a conversion writes.
    pub(crate) fn converted(&self, cache: &RepositoryCache, commit: &str) -> ConvertedModel {
        // The name contains quantizer version and calibration, so that other stores are not mistaken for this
        // one.
        let name = format!("{commit}-{}", ending(&self.calibration));
        let store = self.of_repository(cache.repository()).join(name);
        ConvertedModel { checkpoint: cache.snapshot(commit), store }
    }

    /// Returns a model in GGUF files and the store that a conversion writes.
    pub(crate) fn converted_gguf(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        files: &GgufFiles,
    ) -> ConvertedModel {
        let first = files.parts.first().map_or("", |part| &part.name);
        let file = files.name.rsplit('/').next().unwrap_or(&files.name);
        let start = format!("{commit}-{}", file.trim_end_matches(".gguf"));
        let store = self.calibrated(&self.of_repository(cache.repository()), &start);
        ConvertedModel { checkpoint: cache.snapshot(commit).join(first), store }
    }

    /// Returns a store that is downloaded.
    pub(crate) fn downloaded(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        first: &str,
    ) -> ConvertedModel {
        let file = first.rsplit('/').next().unwrap_or(first);
        let store = self.of_repository(cache.repository()).join(commit).join(file);
        ConvertedModel { checkpoint: cache.snapshot(commit), store }
    }
}

/// Converts a missing store and records its local source file.
fn make<E: From<HubError>>(
    obtained: &ConvertedModel,
    convert: &mut dyn FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    if obtained.is_converted() {
        return Ok(());
    }
    convert()?;
    if obtained.checkpoint.is_file() && obtained.is_converted() {
        // The record is only informative, so errors are ignored.
        let _ = MadeOf::remember(&obtained.checkpoint, &obtained.store);
    }
    Ok(())
}

/// Returns the suffix of the names of stores with a calibration.
pub(crate) fn ending(calibration: &str) -> String {
    format!("q{QUANTIZER_VERSION}-{calibration}.nest")
}

/// Reports stores of a file with an obsolete form of identity, which no lookup finds.
fn tell_of_old(folder: &Path, stem: &str, observer: &dyn Observer) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-'));
        let identity = rest.and_then(|rest| rest.split_once("-q")).map(|(identity, _)| identity);
        let is_old = identity.is_some_and(|identity| {
            identity.len() == OLD_IDENTITY_DIGITS && identity.bytes().all(|b| b.is_ascii_hexdigit())
        });
        if is_old && name.ends_with(".nest") {
            let bytes = entry.metadata().map_or(0, |data| data.len());
            observer.notice(&Notice::OutdatedStore { path: &entry.path(), bytes });
        }
    }
}

/// Returns the number of bytes that a running conversion has written, and the total.
fn written(store: &Path) -> Option<(u64, u64)> {
    let mut partial = store.as_os_str().to_owned();
    partial.push(".partial");
    let data = std::fs::metadata(partial).ok()?;
    // The partial file has its full length from the start, with holes.
    Some((on_disk(&data).min(data.len()), data.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observer::NoObserver;
    use std::fs::File;

    fn cache(root: &Path) -> StoreCache {
        StoreCache {
            folder: root.join("stores"),
            locks: root.join("locks"),
            calibration: "prose1".into(),
            gguf_calibration: "none".into(),
        }
    }

    #[test]
    fn a_store_in_the_making_says_how_far_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("a.nest");
        assert_eq!(written(&store), None);
        let file = File::create(folder.path().join("a.nest.partial")).unwrap();
        file.set_len(1 << 24).unwrap();
        let (done, total) = written(&store).unwrap();
        assert!(done <= total && total == 1 << 24);
    }

    #[test]
    fn one_of_several_converts_and_the_others_find_the_store() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().join("a.nest");
        let obtained = ConvertedModel { checkpoint: root.path().into(), store: store.clone() };
        let conversions = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut convert = || -> Result<()> {
                        conversions.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(50));
                        std::fs::write(&store, "a store").unwrap();
                        Ok(())
                    };
                    cache(root.path()).convert_once(&obtained, &NoObserver, &mut convert).unwrap();
                });
            }
        });
        assert_eq!(conversions.into_inner(), 1);
    }

    #[test]
    fn a_failed_conversion_leaves_the_turn_to_the_next() {
        let root = tempfile::tempdir().unwrap();
        let obtained =
            ConvertedModel { checkpoint: root.path().into(), store: root.path().join("a") };
        let mut fails = || Err(HubError::new("no"));
        for _ in 0..2 {
            cache(root.path()).convert_once(&obtained, &NoObserver, &mut fails).unwrap_err();
        }
    }

    #[test]
    fn a_store_that_was_calibrated_is_the_better_one() {
        let root = tempfile::tempdir().unwrap();
        let cache = cache(root.path());
        let plain = cache.calibrated(root.path(), "a");
        assert!(plain.ends_with(format!("a-{}", ending("none"))));
        std::fs::write(root.path().join(format!("a-{}", ending("prose1"))), "").unwrap();
        assert!(cache.calibrated(root.path(), "a").ends_with(format!("a-{}", ending("prose1"))));
    }
}

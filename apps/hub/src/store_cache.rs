//! Nestling's cache of stores: where each lies, and how one that is not there is made once.

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

/// What stores are called that hold the bits of their file.
const EXACT: &str = "exact";

/// Characters of a file's name by which its stores are looked for, fewer than their names have of it.
const STEM_SHOWN: usize = 80;

/// Digits of an identity that says too little to be believed.
const OLD_IDENTITY_DIGITS: usize = 12;

/// A checkpoint or a GGUF file on this machine, and the store that is made of it.
#[derive(Debug)]
pub struct Obtained {
    /// Folder with the checkpoint, or the first GGUF file; it may be gone if the store is there.
    pub checkpoint: PathBuf,
    /// Where the store is, or is to be written.
    pub store: PathBuf,
}

impl Obtained {
    /// Whether the store is there.
    pub fn is_converted(&self) -> bool {
        self.store.is_file()
    }
}

/// Where converted stores lie, and what their names say of how they were made.
#[derive(Clone, Debug)]
pub struct StoreCache {
    /// Folder of the stores.
    pub folder: PathBuf,
    /// Folder of the locks by which processes take turns.
    pub locks: PathBuf,
    /// What a conversion is calibrated with, as a part of the store's name.
    pub calibration: String,
    /// The same of a conversion from a GGUF file.
    pub gguf_calibration: String,
}

impl StoreCache {
    /// The store of a GGUF file that lies on this machine.
    ///
    /// # Errors
    /// If the file or one of its parts cannot be read.
    pub fn of_gguf(&self, path: &Path, observer: &dyn Observer) -> Result<Obtained> {
        let Identity { stem, hash } = Identity::of(path)?;
        let folder = self.folder.join("gguf");
        let store = self.calibrated(&folder, &format!("{stem}-{hash}"));
        if !store.is_file() {
            tell_of_old(&folder, &stem, observer);
        }
        Ok(Obtained { checkpoint: path.into(), store })
    }

    /// The store of a GGUF file's own bits, as one is made beside a chat.
    ///
    /// # Errors
    /// If the file or one of its parts cannot be read.
    pub fn exact_of_gguf(&self, path: &Path) -> Result<Obtained> {
        let Identity { stem, hash } = Identity::of(path)?;
        let store = self.folder.join("gguf").join(format!("{stem}-{hash}-{}", ending(EXACT)));
        Ok(Obtained { checkpoint: path.into(), store })
    }

    /// Whether such a store of a file of that name is there, so that it pays to look which file it is.
    pub fn has_exact(&self, path: &Path) -> bool {
        let end = format!("-{}", ending(EXACT));
        // Default: a path without a name has no store.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let Ok(parts) = part_names(&name) else { return false };
        // Default: a file in one part is its own first.
        let first = Path::new(parts.first().map_or(&*name, String::as_str)).file_stem();
        // Default: a path without a name has no store.
        let stem = first.unwrap_or_default().to_string_lossy();
        let start: String = stem.chars().take(STEM_SHOWN).collect();
        let names = std::fs::read_dir(self.folder.join("gguf")).into_iter().flatten().flatten();
        let mut names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.any(|name| name.starts_with(&start) && name.ends_with(&end))
    }

    /// Has `convert` make a store that is not there, unless another process makes it. Whether the store
    /// is there now.
    ///
    /// # Errors
    /// Those of `convert`; a lock that cannot be written.
    pub fn convert_if_free<E: From<HubError>>(
        &self,
        obtained: &Obtained,
        convert: &mut dyn FnMut() -> std::result::Result<(), E>,
    ) -> std::result::Result<bool, E> {
        let Some(turn) = Turn::take_if_free(&self.lock(&obtained.store))? else {
            return Ok(false);
        };
        let converted = make(obtained, convert);
        drop(turn);
        converted.map(|()| true)
    }

    /// Has `convert` make a store that is not there, or waits for the process that makes it.
    ///
    /// # Errors
    /// Those of `convert`; a lock that cannot be written.
    pub fn convert_once<E: From<HubError>>(
        &self,
        obtained: &Obtained,
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
            // Default: its length is not known before its conversion has begun to write.
            let total = total.unwrap_or(0);
            let task =
                progress.get_or_insert_with(|| observer.begin(Task::WaitForConversion, total, 0));
            if let Some(written) = written {
                task.set_of(written, total);
            }
        })?;
        drop(progress);
        // What the other process did not finish goes on where it stopped.
        let converted = make(obtained, convert);
        drop(turn);
        converted
    }

    /// The lock of a store: not beside it, where everything is a store or about to be one.
    pub(crate) fn lock(&self, store: &Path) -> PathBuf {
        let name = |path: Option<&Path>| {
            // Default: a store in a root folder has a folder without a name.
            let name = path.and_then(Path::file_name).unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        self.locks.join(format!("{}--{}.lock", name(store.parent()), name(Some(store))))
    }

    /// A store that was made of a GGUF file, by the start of its name.
    fn calibrated(&self, folder: &Path, start: &str) -> PathBuf {
        let stored = |calibration: &str| folder.join(format!("{start}-{}", ending(calibration)));
        // One that was calibrated on an earlier occasion is the better one.
        let better = stored(&self.calibration);
        if better.is_file() { better } else { stored(&self.gguf_calibration) }
    }

    /// Where the stores of a repository lie.
    pub(crate) fn of_repository(&self, repository: &Repository) -> PathBuf {
        self.folder.join(repository.folder())
    }

    /// A checkpoint, and the store that a conversion makes of it.
    pub(crate) fn converted(&self, cache: &RepositoryCache, commit: &str) -> Obtained {
        // A store of an older quantizer, or of another text, is not what a conversion would make.
        let name = format!("{commit}-{}", ending(&self.calibration));
        let store = self.of_repository(cache.repository()).join(name);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }

    /// A model in GGUF files, and the store that a conversion makes of it.
    pub(crate) fn converted_gguf(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        files: &GgufFiles,
    ) -> Obtained {
        let first = files.parts.first().map_or("", |part| &part.name);
        let file = files.name.rsplit('/').next().unwrap_or(&files.name);
        let start = format!("{commit}-{}", file.trim_end_matches(".gguf"));
        let store = self.calibrated(&self.of_repository(cache.repository()), &start);
        Obtained { checkpoint: cache.snapshot(commit).join(first), store }
    }

    /// A store that is downloaded as it is.
    pub(crate) fn downloaded(
        &self,
        cache: &RepositoryCache,
        commit: &str,
        first: &str,
    ) -> Obtained {
        let file = first.rsplit('/').next().unwrap_or(first);
        let store = self.of_repository(cache.repository()).join(commit).join(file);
        Obtained { checkpoint: cache.snapshot(commit), store }
    }
}

/// Makes a store that is not there, and notes which file of this machine it was made of.
fn make<E: From<HubError>>(
    obtained: &Obtained,
    convert: &mut dyn FnMut() -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    if obtained.is_converted() {
        return Ok(());
    }
    convert()?;
    if obtained.checkpoint.is_file() && obtained.is_converted() {
        // What cannot be noted is not told, and nothing else.
        let _ = MadeOf::remember(&obtained.checkpoint, &obtained.store);
    }
    Ok(())
}

/// How the names of stores end that were converted with such a calibration.
pub(crate) fn ending(calibration: &str) -> String {
    format!("q{QUANTIZER_VERSION}-{calibration}.nest")
}

/// Tells of stores of a file's name that have another form of identity, by which no file is found.
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

/// Bytes of a store that its conversion has written, and all that there will be.
fn written(store: &Path) -> Option<(u64, u64)> {
    let mut partial = store.as_os_str().to_owned();
    partial.push(".partial");
    let data = std::fs::metadata(partial).ok()?;
    // It has its full length from the start, and holes.
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
        let obtained = Obtained { checkpoint: root.path().into(), store: store.clone() };
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
        let obtained = Obtained { checkpoint: root.path().into(), store: root.path().join("a") };
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

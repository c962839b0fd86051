//! Contents of the caches: models with their sources, and unused files.

mod downloads;
mod leftovers;
mod stores;

use crate::first_reads::FirstReads;
use crate::made_of::SourceState;
use crate::store_cache::StoreCache;
use crate::uses::{KnownUse, Uses};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

pub(crate) use downloads::locks_of;
pub(crate) use leftovers::turn;
pub(crate) use stores::files_of;

/// Locations of all caches.
#[derive(Clone, Debug)]
pub struct Caches {
    /// Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of stores.
    pub stores: StoreCache,
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    /// Checksums of files in place, recorded at their first read.
    pub reads: FirstReads,
    /// Records of open and recently used models.
    pub uses: Uses,
}

/// Kind of a cached model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachedKind {
    /// Downloaded files of a repository: a checkpoint or GGUF files.
    Download,
    /// Downloaded store.
    Store,
    /// Converted store.
    Converted,
    /// GGUF file outside the caches that was run in place.
    InPlace,
}

impl Caches {
    /// Returns true if a path is below a cache's root and no folder in between is a link.
    pub(crate) fn contain(&self, path: &Path) -> bool {
        let roots = [
            &self.downloads,
            &self.stores.folder,
            &self.headers,
            self.reads.folder(),
            self.uses.folder(),
        ];
        let below = |root: &Path| {
            path != root
                && path.starts_with(root)
                && path.components().all(|part| part != Component::ParentDir)
        };
        roots.into_iter().filter(|root| below(root)).any(|root| {
            let folders = path.ancestors().skip(1).take_while(|folder| *folder != root);
            folders.into_iter().all(is_real_folder)
        })
    }
}

impl CachedKind {
    /// Returns the name shown in lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Store => "store",
            Self::Converted => "converted",
            Self::InPlace => "in place",
        }
    }
}

/// Source of a converted store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Files of a repository.
    Repository {
        /// Repository id, `owner/repo`.
        id: String,
        /// Commit of the repository.
        commit: String,
        /// True if the download of that commit is in the cache.
        is_here: bool,
    },
    /// Local file.
    File {
        /// Path of the file.
        path: PathBuf,
        /// Current state of the file.
        state: SourceState,
    },
}

/// A model in the caches.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// Display name: `owner/repo`, or the name of a store.
    pub name: String,
    /// Kind of the model.
    pub kind: CachedKind,
    /// Path to open: a store, the folder of a repository, or a file.
    pub path: PathBuf,
    /// Size of the model in bytes.
    pub bytes: u64,
    /// Size in bytes of auxiliary files that are useless without the model: headers, checksums and notes.
    pub beside_bytes: u64,
    /// Downloaded commits; empty unless it is a download.
    pub commits: Vec<String>,
    /// Source of the store, if known.
    pub source: Option<Source>,
    /// Highest complete level of a store. `None` if it is not a store or cannot be opened.
    pub level: Option<u8>,
    /// Reason why a store cannot be opened.
    pub damage: Option<String>,
    /// True if no command finds the store because its source or the quantizer has changed.
    pub is_outdated: bool,
    /// Time of last use, if known.
    pub last_used: Option<SystemTime>,
    /// True if a process has the model open.
    pub is_open: bool,
}

impl CachedModel {
    pub(crate) fn new(name: String, kind: CachedKind, path: PathBuf) -> Self {
        Self {
            name,
            kind,
            path,
            bytes: 0,
            beside_bytes: 0,
            commits: Vec::new(),
            source: None,
            level: None,
            damage: None,
            is_outdated: false,
            last_used: None,
            is_open: false,
        }
    }

    /// Returns true if a name refers to this model: `owner/repo`, a store's name with or without its
    /// extension, or its path.
    pub fn is_called(&self, name: &str) -> bool {
        let file = self.path.file_name().map(|name| name.to_string_lossy());
        let file = file.as_deref();
        let stem = file.and_then(|file| file.strip_suffix(".nest"));
        let same_path = || {
            let given = Path::new(name).canonicalize().ok();
            given.is_some() && given == self.path.canonicalize().ok()
        };
        self.name == name || file == Some(name) || stem == Some(name) || same_path()
    }

    fn note_uses(&mut self, uses: &[KnownUse]) {
        // Default: a missing file has no recorded uses.
        let Ok(path) = self.path.canonicalize() else { return };
        for known in uses.iter().filter(|known| known.path.starts_with(&path)) {
            self.last_used = self.last_used.max(known.last);
            self.is_open |= known.is_open;
        }
    }
}

/// An unused cache file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// Path of a file or of a whole folder.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Reason why it is unused.
    pub why: LeftoverKind,
}

/// Reason why a cache file is unused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftoverKind {
    /// Interrupted download.
    Download,
    /// Interrupted conversion.
    Conversion,
    /// Temporary file that was not renamed.
    Temporary,
    /// Store that no command finds, because its source or the quantizer has changed.
    OutdatedStore,
    /// Record of a deleted file.
    GoneFile,
}

impl LeftoverKind {
    /// Returns the name shown in lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "unfinished download",
            Self::Conversion => "unfinished conversion",
            Self::Temporary => "temporary file",
            Self::OutdatedStore => "outdated store",
            Self::GoneFile => "checksums of a file that is gone",
        }
    }
}

/// Contents of the caches.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Models, sorted by name.
    pub models: Vec<CachedModel>,
    /// Unused files.
    pub leftovers: Vec<Leftover>,
}

impl Inventory {
    /// Reads the caches. Unreadable entries are skipped.
    pub fn of(caches: &Caches) -> Self {
        let uses = caches.uses.all();
        let mut models = downloads::all(caches);
        models.extend(stores::all(caches));
        models.extend(in_place(&uses, &models));
        for model in &mut models {
            model.note_uses(&uses);
        }
        let key = |model: &CachedModel| (model.name.to_lowercase(), model.path.clone());
        models.sort_by_key(key);
        let leftovers = leftovers::all(caches, &models, &uses);
        Self { models, leftovers }
    }

    /// Returns the models that a name refers to.
    pub fn called(&self, name: &str) -> Vec<&CachedModel> {
        self.models.iter().filter(|model| model.is_called(name)).collect()
    }
}

/// Returns files outside the caches whose checksums are recorded.
fn in_place(uses: &[KnownUse], cached: &[CachedModel]) -> Vec<CachedModel> {
    let folders: Vec<PathBuf> =
        cached.iter().filter_map(|model| model.path.canonicalize().ok()).collect();
    let mut found = Vec::new();
    for known in uses {
        let is_cached = folders.iter().any(|folder| known.path.starts_with(folder));
        let Some(reads) = known.reads.as_ref().filter(|_| !is_cached) else { continue };
        let Ok(data) = std::fs::metadata(&known.path) else { continue };
        let name = known.path.file_name().map(|name| name.to_string_lossy().into_owned());
        // Default: a path without a file name is shown in full.
        let name = name.unwrap_or_else(|| known.path.display().to_string());
        let mut model = CachedModel::new(name, CachedKind::InPlace, known.path.clone());
        model.bytes = data.len();
        model.beside_bytes = bytes_of(reads);
        found.push(model);
    }
    found
}

/// Returns the size in bytes of a file, or of all files below a folder. Links count as 0.
pub(crate) fn bytes_of(path: &Path) -> u64 {
    let Ok(data) = std::fs::symlink_metadata(path) else { return 0 };
    if data.is_file() {
        return data.len();
    }
    if !data.is_dir() {
        return 0;
    }
    entries(path).iter().map(|path| bytes_of(path)).sum()
}

/// Returns the entries of a cache's root folder, sorted, or nothing if it does not exist. The root itself may
/// be a link: the user decides where a cache is stored.
pub(crate) fn root_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the entries of a folder below a cache's root, sorted. Returns nothing if the folder does not exist
/// or is a link, since files behind a link are outside the caches.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    if is_real_folder(folder) { root_entries(folder) } else { Vec::new() }
}

/// Returns true for a folder that is not a link.
pub(crate) fn is_real_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

/// Returns the file name of a path as text.
pub(crate) fn name_of(path: &Path) -> String {
    // Default: a path without a file name matches nothing.
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Converts the folder name `owner--repo` to `owner/repo`.
fn repository_of(folder: &str) -> Option<String> {
    folder.split_once("--").map(|(owner, name)| format!("{owner}/{name}"))
}

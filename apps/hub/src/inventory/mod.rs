//! What the caches hold: models with what they were made of, and what no model needs.

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

/// Where everything lies that is cached.
#[derive(Clone, Debug)]
pub struct Caches {
    /// The Hub's cache of downloads.
    pub downloads: PathBuf,
    /// Nestling's cache of stores.
    pub stores: StoreCache,
    /// Nestling's cache of headers.
    pub headers: PathBuf,
    /// What extents of files in place were when they were read first.
    pub reads: FirstReads,
    /// Which models are open, and were.
    pub uses: Uses,
}

/// What a model of the caches is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CachedKind {
    /// Files of a repository as they are there: a checkpoint, or GGUF files.
    Download,
    /// A store that was downloaded as it is.
    Store,
    /// A store that was made of something.
    Converted,
    /// A GGUF file outside the caches that was run where it lies.
    InPlace,
}

impl Caches {
    /// Whether a path is below one of the caches' roots with no link among the folders between the root and the path.
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
    /// Its name in lists.
    pub fn name(self) -> &'static str {
        match self {
            Self::Download => "download",
            Self::Store => "store",
            Self::Converted => "converted",
            Self::InPlace => "in place",
        }
    }
}

/// What a store was made of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Files of a repository.
    Repository {
        /// `owner/repo`.
        id: String,
        /// The commit.
        commit: String,
        /// Whether the download of that commit is here.
        is_here: bool,
    },
    /// A file on this machine.
    File {
        /// Its path.
        path: PathBuf,
        /// What has become of it.
        state: SourceState,
    },
}

/// A model that takes room of the caches.
#[derive(Clone, Debug)]
pub struct CachedModel {
    /// What people call it: `owner/repo`, or a store's name.
    pub name: String,
    /// What it is.
    pub kind: CachedKind,
    /// What is opened: a store, the folder of a repository, or a file.
    pub path: PathBuf,
    /// Bytes of the model.
    pub bytes: u64,
    /// Bytes beside it that are of no use without it: headers, checksums, notes.
    pub beside_bytes: u64,
    /// Commits that are here, of a download.
    pub commits: Vec<String>,
    /// What it was made of, where that is known.
    pub source: Option<Source>,
    /// Highest level of a store that is complete; none where it is no store, or cannot be opened.
    pub level: Option<u8>,
    /// Why a store cannot be opened.
    pub damage: Option<String>,
    /// Whether no command finds the store any more, since its source or the quantizer has changed.
    pub is_outdated: bool,
    /// When it was opened last, where that is known.
    pub last_used: Option<SystemTime>,
    /// Whether some process has it open.
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

    /// Whether a name means this model: `owner/repo`, a store's name with or without its ending, or its path.
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
        // Default: what is not there was not opened.
        let Ok(path) = self.path.canonicalize() else { return };
        for known in uses.iter().filter(|known| known.path.starts_with(&path)) {
            self.last_used = self.last_used.max(known.last);
            self.is_open |= known.is_open;
        }
    }
}

/// Something that no model needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftover {
    /// A file, or a folder with all that is in it.
    pub path: PathBuf,
    /// Bytes that it takes.
    pub bytes: u64,
    /// Why nothing needs it.
    pub why: LeftoverKind,
}

/// Why nothing needs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftoverKind {
    /// A download that was interrupted.
    Download,
    /// A conversion that was interrupted.
    Conversion,
    /// A file that was written under another name first.
    Temporary,
    /// A store that no command finds any more.
    OutdatedStore,
    /// What is remembered of a file that is gone.
    GoneFile,
}

impl LeftoverKind {
    /// Its name in lists.
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

/// What the caches hold.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Models, by name.
    pub models: Vec<CachedModel>,
    /// What no model needs.
    pub leftovers: Vec<Leftover>,
}

impl Inventory {
    /// Looks into the caches. What cannot be read is left out.
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

    /// The models that a name means.
    pub fn called(&self, name: &str) -> Vec<&CachedModel> {
        self.models.iter().filter(|model| model.is_called(name)).collect()
    }
}

/// Files outside the caches of which checksums are kept.
fn in_place(uses: &[KnownUse], cached: &[CachedModel]) -> Vec<CachedModel> {
    let folders: Vec<PathBuf> =
        cached.iter().filter_map(|model| model.path.canonicalize().ok()).collect();
    let mut found = Vec::new();
    for known in uses {
        let is_cached = folders.iter().any(|folder| known.path.starts_with(folder));
        let Some(reads) = known.reads.as_ref().filter(|_| !is_cached) else { continue };
        let Ok(data) = std::fs::metadata(&known.path) else { continue };
        let name = known.path.file_name().map(|name| name.to_string_lossy().into_owned());
        // Default: a path without a name is its own name.
        let name = name.unwrap_or_else(|| known.path.display().to_string());
        let mut model = CachedModel::new(name, CachedKind::InPlace, known.path.clone());
        model.bytes = data.len();
        model.beside_bytes = bytes_of(reads);
        found.push(model);
    }
    found
}

/// Bytes of a file, or of all files below a folder; links count nothing.
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

/// Returns the entries of a cache's root folder, sorted, or nothing if it does not exist. The root itself may be a link:
/// the user decides where a cache is stored.
pub(crate) fn root_entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// Returns the entries of a folder below a cache's root, sorted. Returns nothing if the folder does not exist or is a link,
/// since files behind a link are outside the caches.
pub(crate) fn entries(folder: &Path) -> Vec<PathBuf> {
    if is_real_folder(folder) { root_entries(folder) } else { Vec::new() }
}

/// Whether a path is a folder and not a link to one.
pub(crate) fn is_real_folder(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|data| data.is_dir())
}

/// The last part of a path as text.
pub(crate) fn name_of(path: &Path) -> String {
    // Default: a path without a name matches nothing that is looked for.
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// `owner/repo` of a folder that is called `owner--repo`.
fn repository_of(folder: &str) -> Option<String> {
    folder.split_once("--").map(|(owner, name)| format!("{owner}/{name}"))
}

//! Names of repositories and their folders in the Hub's standard cache.

use crate::error::{HubError, Result};
use crate::listing::RemoteFile;
use crate::names::{is_commit, is_name, is_path};
use std::path::{Path, PathBuf};
use std::{fmt, io};

/// A repository `owner/repo` at a revision. The names are safe in paths and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    /// Repository id, `owner/repo`.
    pub id: String,
    /// Branch, tag or commit.
    pub revision: String,
}

/// A repository with an optional file or quantization, as given by `-hf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Repository and revision.
    pub repository: Repository,
    /// Text after the colon: a file, or a quantization such as `Q4_K_M`.
    pub wanted: Option<String>,
}

impl Reference {
    /// Parses `owner/repo`, `owner/repo:Q4_K_M` or `owner/repo:folder/file.gguf`.
    ///
    /// # Errors
    /// Returns [`HubError::Usage`] for other texts.
    pub fn parse(text: &str, revision: &str) -> Result<Self> {
        let trimmed = text.trim();
        let address = ["https://huggingface.co/", "https://hf.co/", "hf.co/", "hf://"];
        let plain = address.iter().find_map(|start| trimmed.strip_prefix(start));
        let (id, wanted) = match plain.unwrap_or(trimmed).split_once(':') {
            Some((id, wanted)) => (id, Some(wanted)),
            None => (plain.unwrap_or(trimmed), None),
        };
        if wanted.is_some_and(|wanted| !is_path(wanted)) {
            return Err(HubError::usage(format!(
                "`{text}`: what follows the colon is neither a file nor a quantization"
            ))
            .advise("write for example owner/repo:Q4_K_M or owner/repo:model-Q4_K_M.gguf"));
        }
        let repository = Repository::new(id, revision)?;
        Ok(Self { repository, wanted: wanted.map(str::to_owned) })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.wanted {
            None => self.repository.fmt(f),
            Some(wanted) => write!(f, "{}:{wanted}", self.repository),
        }
    }
}

impl Repository {
    /// Checks a name and a revision.
    ///
    /// # Errors
    /// Returns [`HubError::Usage`] if the text is not a repository name or the revision is invalid.
    pub fn new(text: &str, revision: &str) -> Result<Self> {
        let wrong = |advice: &str| {
            HubError::usage(format!("`{text}` is not a Hugging Face repository")).advise(advice)
        };
        let id = text.trim().trim_end_matches('/');
        match id.split_once('/') {
            Some((owner, name)) if is_name(owner) && is_name(name) => {}
            _ => return Err(wrong("write owner/repo, for example Qwen/Qwen3-30B-A3B")),
        }
        if revision.is_empty() || !revision.split('/').all(is_name) {
            return Err(HubError::usage(format!("`{revision}` is not a revision"))
                .advise("name a branch, a tag or a commit"));
        }
        Ok(Self { id: id.into(), revision: revision.into() })
    }

    /// Returns the folder name `owner--repo`.
    pub fn folder(&self) -> String {
        self.id.replace('/', "--")
    }

    /// Returns the folder of the repository in the standard cache at `root`.
    pub(crate) fn cache(&self, root: PathBuf) -> RepositoryCache {
        let folder = root.join(format!("models--{}", self.folder()));
        RepositoryCache { repository: self.clone(), root, folder }
    }
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.revision.as_str() {
            "main" => f.write_str(&self.id),
            revision => write!(f, "{} ({revision})", self.id),
        }
    }
}

/// Folder of one repository in the Hub's cache, with `blobs`, `refs` and `snapshots`.
#[derive(Debug)]
pub struct RepositoryCache {
    repository: Repository,
    pub root: PathBuf,
    pub folder: PathBuf,
}

impl RepositoryCache {
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub fn blob(&self, name: &str) -> PathBuf {
        self.folder.join("blobs").join(name)
    }

    /// Returns the commit of the revision at its last download.
    pub fn known_commit(&self) -> Option<String> {
        let path = self.folder.join("refs").join(Path::new(&self.repository.revision));
        // Default: without a recorded commit, the revision itself may be a commit.
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let commit = if text.is_empty() { &self.repository.revision } else { text.trim() };
        is_commit(commit).then(|| commit.into())
    }

    /// Returns the path of the lock that a program holds while it downloads a blob.
    pub fn lock(&self, blob: &str) -> PathBuf {
        let folder = format!("models--{}", self.repository.folder());
        self.root.join(".locks").join(folder).join(format!("{blob}.lock"))
    }

    /// Records the commit of the revision, in the format of the Hub's tools.
    pub fn set_revision(&self, commit: &str) -> Result<()> {
        let path = self.folder.join("refs").join(&self.repository.revision);
        let failed = |error| HubError::file("write", &path, error);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        std::fs::write(&path, commit).map_err(failed)
    }

    /// Adds a blob to a snapshot under its file name, as a link, or by moving it if links are not supported.
    pub fn link(&self, commit: &str, file: &RemoteFile) -> Result<()> {
        let path = self.snapshot(commit).join(&file.name);
        let failed = |error| HubError::file("write", &path, error);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(failed)?;
        if std::fs::symlink_metadata(&path).is_ok() {
            std::fs::remove_file(&path).map_err(failed)?;
        }
        let up = "../".repeat(2 + file.name.matches('/').count());
        let target = format!("{up}blobs/{}", file.blob);
        match symlink(Path::new(&target), &path) {
            // Another program has created the link.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) => std::fs::rename(self.blob(&file.blob), &path).map_err(failed),
            Ok(()) => Ok(()),
        }
    }
}

#[cfg(unix)]
use std::os::unix::fs::symlink;

#[cfg(windows)]
use std::os::windows::fs::symlink_file as symlink;

#[cfg(not(any(unix, windows)))]
fn symlink(_target: &Path, _link: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

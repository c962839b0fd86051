//! Names of repositories, and where the standard cache keeps them.

use crate::failure::{Failure, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// `owner/repo` at a revision, with a name that is safe in paths and addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    pub id: String,
    pub revision: String,
}

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with('.')
}

impl Repository {
    pub fn new(text: &str, revision: &str) -> Result<Self> {
        let wrong = |advice: &str| {
            Failure::usage(format!("`{text}` is not a Hugging Face repository")).advise(advice)
        };
        let id = text.trim().trim_start_matches("https://huggingface.co/").trim_end_matches('/');
        if id.contains(':') {
            return Err(wrong("leave out what follows the colon and choose bits with --level"));
        }
        match id.split_once('/') {
            Some((owner, name)) if is_name(owner) && is_name(name) => {}
            _ => return Err(wrong("write owner/repo, for example Qwen/Qwen3-30B-A3B")),
        }
        if revision.is_empty() || !revision.split('/').all(is_name) {
            return Err(Failure::usage(format!("`{revision}` is not a revision"))
                .advise("name a branch, a tag or a commit"));
        }
        Ok(Self { id: id.into(), revision: revision.into() })
    }

    /// `owner--repo`, as a directory is called.
    pub fn folder(&self) -> String {
        self.id.replace('/', "--")
    }

    pub fn hub(&self, revision: &str) -> hf_hub::Repo {
        let kind = hf_hub::RepoType::Model;
        hf_hub::Repo::with_revision(self.id.clone(), kind, revision.into())
    }

    pub fn cache(&self, root: PathBuf) -> RepositoryCache {
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

/// One repository's folder in the Hub's cache: `blobs`, `refs`, `snapshots`.
#[derive(Debug)]
pub struct RepositoryCache {
    repository: Repository,
    pub root: PathBuf,
    pub folder: PathBuf,
}

impl RepositoryCache {
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    pub fn blob(&self, name: &str) -> PathBuf {
        self.folder.join("blobs").join(name)
    }

    /// The commit that the revision meant when it was last downloaded.
    pub fn known_commit(&self) -> Option<String> {
        let path = self.folder.join("refs").join(Path::new(&self.repository.revision));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let commit = if text.is_empty() { &self.repository.revision } else { text.trim() };
        is_hash(commit).then(|| commit.into())
    }

    /// Notes what the revision means, as the Hub's own tools do.
    pub fn set_revision(&self, commit: &str) -> Result<()> {
        let cache = hf_hub::Cache::new(self.root.clone());
        let repo = self.repository.hub(&self.repository.revision);
        cache.repo(repo).create_ref(commit).map_err(|e| Failure::file("write to", &self.folder, &e))
    }
}

/// Whether text is a hash in hexadecimal, and so harmless as a file name.
pub fn is_hash(text: &str) -> bool {
    (32..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

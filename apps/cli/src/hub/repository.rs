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

/// Parts of the path of a repository's file.
pub const FOLDERS_MAX: usize = 4;

fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with('.')
}

/// What `-hf` names: a repository, and which of its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    pub repository: Repository,
    /// What follows the colon: a file, or a quantization such as `Q4_K_M`.
    pub wanted: Option<String>,
}

impl Reference {
    /// Reads `owner/repo`, `owner/repo:Q4_K_M` or `owner/repo:folder/file.gguf`.
    pub fn parse(text: &str, revision: &str) -> Result<Self> {
        let trimmed = text.trim();
        let address = ["https://huggingface.co/", "https://hf.co/", "hf.co/", "hf://"];
        let plain = address.iter().find_map(|start| trimmed.strip_prefix(start));
        let (id, wanted) = match plain.unwrap_or(trimmed).split_once(':') {
            Some((id, wanted)) => (id, Some(wanted)),
            None => (plain.unwrap_or(trimmed), None),
        };
        if wanted.is_some_and(|wanted| !is_path(wanted)) {
            return Err(Failure::usage(format!(
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

/// A path that stays inside its folder, whatever a server or a person says.
pub fn is_path(text: &str) -> bool {
    text.split('/').count() <= FOLDERS_MAX && text.split('/').all(is_file_name)
}

/// A name that stays inside its folder.
pub fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
}

impl Repository {
    pub fn new(text: &str, revision: &str) -> Result<Self> {
        let wrong = |advice: &str| {
            Failure::usage(format!("`{text}` is not a Hugging Face repository")).advise(advice)
        };
        let id = text.trim().trim_end_matches('/');
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
    pub fn repository(&self) -> &Repository {
        &self.repository
    }

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

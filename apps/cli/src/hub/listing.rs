//! What a repository holds, and which of it a conversion needs.

use super::repository::{FOLDERS_MAX, is_file_name, is_hash, is_path};
use crate::failure::{Failure, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const REQUIRED: [&str; 2] = ["config.json", "tokenizer.json"];
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// One file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    pub name: String,
    pub size: u64,
    /// Name of the file's blob in the cache: SHA-256 of a large file, git's hash of a small one.
    pub blob: String,
}

/// The files of one commit, as the Hub lists them.
#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    files: Vec<Wanted>,
}

fn unreadable(what: &str) -> Failure {
    Failure::new(format!("the Hub's answer makes no sense: {what}"))
        .advise("check HF_ENDPOINT, or try again later")
}

impl Listing {
    /// Reads the answer of `/api/models/{id}/revision/{revision}?blobs=true`.
    pub fn parse(answer: &Value) -> Result<Self> {
        let commit = answer["sha"].as_str().filter(|sha| is_hash(sha));
        let commit = commit.ok_or_else(|| unreadable("no commit"))?.to_owned();
        let siblings = answer["siblings"].as_array().ok_or_else(|| unreadable("no files"))?;
        let files = siblings.iter().filter_map(file).collect();
        Ok(Self { commit, files })
    }

    /// What lies in a snapshot of the cache, as if the Hub had listed it.
    pub fn of_snapshot(commit: &str, snapshot: &Path) -> Self {
        let mut files = Vec::new();
        add_files(snapshot, "", FOLDERS_MAX, &mut files);
        Self { commit: commit.into(), files }
    }

    /// All files whose names are safe.
    pub fn files(&self) -> &[Wanted] {
        &self.files
    }

    /// Whether there is a model in the transformers layout with weights that can be read.
    pub fn is_checkpoint(&self) -> bool {
        let has = |name: &str| self.files.iter().any(|file| file.name == name);
        has("config.json") && (has(INDEX) || has(SINGLE))
    }

    pub fn find(&self, name: &str) -> Option<Wanted> {
        self.files.iter().find(|file| file.name == name).cloned()
    }

    /// Configuration, tokenizer and index: small files that say what the large ones are.
    pub fn description(&self) -> Result<Vec<Wanted>> {
        let mut wanted = Vec::new();
        for name in REQUIRED {
            let file = self.find(name).ok_or_else(|| {
                let message = format!("the repository has no {name}");
                Failure::new(message).advise(
                    "name a repository in the transformers layout, such as Qwen/Qwen3-30B-A3B",
                )
            })?;
            wanted.push(file);
        }
        wanted.extend(OPTIONAL.iter().chain([&INDEX]).filter_map(|name| self.find(name)));
        Ok(wanted)
    }

    /// The weights: the shards that the downloaded index names, or the single file.
    pub fn weights(&self, checkpoint: &Path) -> Result<Vec<Wanted>> {
        let names = match self.find(INDEX) {
            Some(_) => shard_names(&checkpoint.join(INDEX))?,
            None => BTreeSet::from([SINGLE.to_owned()]),
        };
        let wanted = names.iter().map(|name| {
            self.find(name).ok_or_else(|| {
                Failure::new(format!("the repository has no {name}"))
                    .advise("name a repository with weights in the safetensors format")
            })
        });
        wanted.collect()
    }
}

/// Adds the files below a folder, with their names from the snapshot's root.
fn add_files(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<Wanted>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Files of a snapshot are links.
        let Ok(data) = std::fs::metadata(entry.path()) else { continue };
        if data.is_file() && is_path(&name) {
            files.push(Wanted { name, size: data.len(), blob: String::new() });
        } else if data.is_dir() && depth > 0 {
            add_files(&entry.path(), &format!("{name}/"), depth - 1, files);
        }
    }
}

fn file(sibling: &Value) -> Option<Wanted> {
    let name = sibling["rfilename"].as_str().filter(|name| is_path(name))?;
    let lfs = &sibling["lfs"];
    let size = sibling["size"].as_u64().or_else(|| lfs["size"].as_u64())?;
    let blob = lfs["sha256"].as_str().or_else(|| sibling["blobId"].as_str())?;
    is_hash(blob).then(|| Wanted { name: name.into(), size, blob: blob.into() })
}

fn shard_names(index: &Path) -> Result<BTreeSet<String>> {
    let wrong = |what: &str| {
        Failure::new(format!("{}: {what}", index.display()))
            .advise("delete the file and run the command again")
    };
    let text = std::fs::read(index).map_err(|e| Failure::file("read", index, &e))?;
    let json: Value =
        serde_json::from_slice(&text).map_err(|error| wrong(&format!("not JSON: {error}")))?;
    let map = json["weight_map"].as_object().ok_or_else(|| wrong("no weight_map"))?;
    let names = map.values().map(|name| {
        let name = name.as_str().filter(|name| is_file_name(name));
        name.map(str::to_owned).ok_or_else(|| wrong("weight_map has a name that is no file name"))
    });
    names.collect()
}

impl Wanted {
    /// SHA-256 of the content, where the Hub tells it.
    pub fn sha256(&self) -> Option<&str> {
        Some(self.blob.as_str()).filter(|blob| blob.len() == 64)
    }

    /// Whether a folder has every file that a conversion needs.
    pub fn all_present(checkpoint: &Path) -> bool {
        let has = |name: &str| checkpoint.join(name).is_file();
        let weights = match shard_names(&checkpoint.join(INDEX)) {
            Ok(names) => names.iter().all(|name| has(name)),
            Err(_) => has(SINGLE),
        };
        REQUIRED.iter().all(|name| has(name)) && weights
    }
}

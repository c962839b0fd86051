//! Listings of repositories, and selection of the files that a conversion needs.

use crate::error::{HubError, Result};
use crate::names::{FOLDERS_MAX, is_commit, is_file_name, is_hash, is_path};
use crate::refusals::cannot_run;
use nestling_import::limits::{MAX_ASSET_BYTES, MAX_SAFETENSORS_INDEX_BYTES, MAX_SHARDS};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{BufReader, Read};
use std::path::Path;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
/// Alternative to a tokenizer file in some models: byte strings with ranks, and the special tokens.
const RANKS: [&str; 2] = ["tiktoken.model", "tokenizer_config.json"];
const OPTIONAL: [&str; 5] = [
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
];

/// Maximum number of choices that an error message lists.
pub const LISTED_MAX: usize = 12;

/// Maximum size of a file in bytes. The sum over all files of a listing then stays below 2^63.
pub const FILE_BYTES_MAX: u64 = 1 << 44;

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteFile {
    pub name: String,
    pub size: u64,
    /// Name of the file's blob in the cache: SHA-256 of a large file, git's hash of a small one.
    pub blob: String,
}

/// The files of one commit, as the Hub lists them.
#[derive(Debug)]
pub struct Listing {
    pub commit: String,
    files: Vec<RemoteFile>,
    /// Indices of the files, sorted by name. A listing and an index may contain some hundred thousand names
    /// each.
    by_name: Vec<u32>,
}

impl Listing {
    /// Parses the response of `/api/models/{id}/revision/{revision}?blobs=true`, file by file. Unused parts
    /// are never held in memory.
    pub fn read(answer: impl Read) -> serde_json::Result<Self> {
        let answer: Answer = serde_json::from_reader(answer)?;
        if is_commit(&answer.sha) {
            return Ok(Self::new(answer.sha.to_ascii_lowercase(), answer.siblings.0));
        }
        let sha = answer.sha.chars().take(80).collect::<String>();
        Err(serde_json::Error::custom(format!("its commit is `{}`", sha.escape_debug())))
    }

    fn new(commit: String, files: Vec<RemoteFile>) -> Self {
        let mut by_name: Vec<u32> = (0u32..).zip(&files).map(|(number, _)| number).collect();
        // The first of several files with the same name is used.
        by_name.sort_by_key(|number| &files[*number as usize].name);
        Self { commit, files, by_name }
    }

    /// Lists a snapshot in the cache, as if the Hub had listed it.
    pub fn of_snapshot(commit: &str, snapshot: &Path) -> Self {
        let mut files = Vec::new();
        add_files(snapshot, "", FOLDERS_MAX, &mut files);
        Self::new(commit.into(), files)
    }

    /// Returns all files with safe names.
    pub fn files(&self) -> &[RemoteFile] {
        &self.files
    }

    /// Returns true if there is a model in the transformers layout with weights in a supported format.
    pub fn is_checkpoint(&self) -> bool {
        let has = |name: &str| self.get(name).is_some();
        has(CONFIG) && (has(INDEX) || has(SINGLE))
    }

    fn get(&self, name: &str) -> Option<&RemoteFile> {
        let of = |number: &u32| &self.files[*number as usize];
        let first = self.by_name.partition_point(|number| of(number).name.as_str() < name);
        self.by_name.get(first).map(of).filter(|file| file.name == name)
    }

    pub fn find(&self, name: &str) -> Option<RemoteFile> {
        self.get(name).cloned()
    }

    /// Returns configuration, tokenizer and index: the small files that describe the weights.
    pub fn description(&self) -> Result<Vec<RemoteFile>> {
        let mut wanted = Vec::new();
        let has = |name: &str| self.get(name).is_some();
        let required: &[&str] = match has(TOKENIZER) || !has(RANKS[0]) {
            true => &[CONFIG, TOKENIZER],
            false => &[CONFIG, RANKS[0], RANKS[1]],
        };
        for name in required {
            let file = self.find(name).ok_or_else(|| {
                let message = format!("the repository has no {name}");
                HubError::new(message).advise(
                    "name a repository in the transformers layout, such as Qwen/Qwen3-30B-A3B",
                )
            })?;
            wanted.push(file);
        }
        let optional = OPTIONAL.iter().chain([&INDEX]).filter(|name| !required.contains(name));
        wanted.extend(optional.filter_map(|name| self.find(name)));
        wanted.iter().try_for_each(check_size)?;
        Ok(wanted)
    }

    /// Returns the files with weights: the shards of the downloaded index, or the single file.
    pub fn weights(&self, checkpoint: &Path) -> Result<Vec<RemoteFile>> {
        let names = match self.find(INDEX) {
            Some(_) => shard_names(&checkpoint.join(INDEX))?,
            None => BTreeSet::from([SINGLE.to_owned()]),
        };
        let wanted = names.iter().map(|name| {
            self.find(name).ok_or_else(|| {
                HubError::new(format!("the repository has no {name}"))
                    .advise("name a repository with weights in the safetensors format")
            })
        });
        wanted.collect()
    }
}

/// Refuses a small file above the size limit of its kind. Small files are downloaded before the free disk
/// space is checked.
fn check_size(file: &RemoteFile) -> Result<()> {
    let limit = match file.name.as_str() {
        INDEX => MAX_SAFETENSORS_INDEX_BYTES,
        _ => MAX_ASSET_BYTES,
    };
    if file.size <= limit {
        return Ok(());
    }
    let (name, size, most) = (&file.name, file.size, limit >> 20);
    Err(cannot_run(&format!("its {name} has {size} bytes, more than {most} MiB")))
}

/// Adds the files below a folder, with paths relative to the snapshot.
fn add_files(folder: &Path, prefix: &str, depth: usize, files: &mut Vec<RemoteFile>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        // Files of a snapshot are links.
        let Ok(data) = std::fs::metadata(entry.path()) else { continue };
        if data.is_file() && is_path(&name) {
            files.push(RemoteFile { name, size: data.len(), blob: String::new() });
        } else if data.is_dir() && depth > 0 {
            add_files(&entry.path(), &format!("{name}/"), depth - 1, files);
        }
    }
}

/// The used fields of a listing response.
#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Files,
}

/// Files with valid names and hashes.
struct Files(Vec<RemoteFile>);

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    sha256: Option<String>,
    size: Option<u64>,
}

impl Sibling {
    /// Returns `None` for a file with an unsafe name or missing fields, and an error for invalid fields.
    fn into_file(self) -> std::result::Result<Option<RemoteFile>, String> {
        if !is_path(&self.rfilename) {
            return Ok(None);
        }
        let lfs = self.lfs.unwrap_or(Lfs { sha256: None, size: None });
        let is_large = lfs.sha256.is_some();
        let (Some(size), Some(blob)) = (self.size.or(lfs.size), lfs.sha256.or(self.blob)) else {
            return Ok(None);
        };
        if size > FILE_BYTES_MAX {
            return Err(format!("{} has an invalid size of {size} bytes", self.rfilename));
        }
        if blob.len() != if is_large { 64 } else { 40 } || !is_hash(&blob) {
            let blob = blob.chars().take(80).collect::<String>();
            return Err(format!("the hash of {} is `{}`", self.rfilename, blob.escape_debug()));
        }
        Ok(Some(RemoteFile { name: self.rfilename, size, blob: blob.to_ascii_lowercase() }))
    }
}

impl<'de> Deserialize<'de> for Files {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Files;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of files")
            }

            fn visit_seq<A: SeqAccess<'de>>(
                self,
                mut files: A,
            ) -> std::result::Result<Files, A::Error> {
                let mut found = Vec::new();
                while let Some(sibling) = files.next_element::<Sibling>()? {
                    found.extend(sibling.into_file().map_err(A::Error::custom)?);
                }
                Ok(Files(found))
            }
        }
        deserializer.deserialize_seq(ListVisitor)
    }
}

/// The index of a sharded checkpoint.
#[derive(Deserialize)]
struct Index {
    weight_map: Shards,
}

/// Names of the files in an index. The names of tensors are discarded while parsing.
struct Shards(BTreeSet<String>);

impl<'de> Deserialize<'de> for Shards {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct ListVisitor;
        impl<'de> Visitor<'de> for ListVisitor {
            type Value = Shards;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors to files")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Shards, A::Error> {
                let mut names = BTreeSet::new();
                while let Some((_, name)) = map.next_entry::<serde::de::IgnoredAny, String>()? {
                    if !is_file_name(&name) {
                        return Err(A::Error::custom("weight_map has an invalid file name"));
                    }
                    names.insert(name);
                    if names.len() > MAX_SHARDS {
                        let most = format!("weight_map has more than {MAX_SHARDS} files");
                        return Err(A::Error::custom(most));
                    }
                }
                Ok(Shards(names))
            }
        }
        deserializer.deserialize_map(ListVisitor)
    }
}

/// Returns the names of the files in an index.
pub fn read_shard_names(index: impl Read) -> serde_json::Result<BTreeSet<String>> {
    let index: Index = serde_json::from_reader(index)?;
    Ok(index.weight_map.0)
}

fn shard_names(index: &Path) -> Result<BTreeSet<String>> {
    let file = std::fs::File::open(index).map_err(|e| HubError::file("read", index, e))?;
    read_shard_names(BufReader::new(file)).map_err(|error| {
        HubError::new(format!("{}: not an index of weights: {error}", index.display()))
            .advise("delete the file and run the command again")
    })
}

impl RemoteFile {
    /// Returns true if a folder contains every file that a conversion needs.
    pub fn all_present(checkpoint: &Path) -> bool {
        let has = |name: &str| checkpoint.join(name).is_file();
        let weights = match shard_names(&checkpoint.join(INDEX)) {
            Ok(names) => names.iter().all(|name| has(name)),
            Err(_) => has(SINGLE),
        };
        let tokenizer = has(TOKENIZER) || RANKS.iter().all(|name| has(name));
        has(CONFIG) && tokenizer && weights
    }

    /// Returns true for the vocabulary, which does not affect the model's size.
    pub fn is_vocabulary(&self) -> bool {
        self.name == TOKENIZER || self.name == RANKS[0]
    }
}

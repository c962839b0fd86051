//! The weight files of a checkpoint: discovery, headers and reads.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::json::UniqueMap;
use crate::limits::{MAX_SAFETENSORS_INDEX_BYTES, MAX_SHARDS, MAX_TENSORS};
use crate::read_at::SourceFile;
use crate::safetensors::{PREFIX_BYTES, SafetensorsHeader, header_length};
use crate::{ElementType, ImportError};
use nestling_formats::memory::try_zeroed;

const SINGLE_FILE: &str = "model.safetensors";
const INDEX_FILE: &str = "model.safetensors.index.json";

/// Location of a tensor in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Element type.
    pub element: ElementType,
    /// Dimensions, outermost first.
    pub shape: Vec<u64>,
    /// Index of the file in the checkpoint's file list.
    pub file: usize,
    /// Byte offset of the tensor in the file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
}

impl TensorInfo {
    /// Returns the number of elements.
    pub fn elements(&self) -> u64 {
        self.length / self.element.block_bytes() as u64 * self.element.block_elements() as u64
    }
}

pub(crate) fn io_error(path: &Path, action: &'static str, source: io::Error) -> ImportError {
    ImportError::Io { file: path.display().to_string(), action, source }
}

/// Reads from a weight file. A file that became shorter is reported as changed.
pub(crate) fn read_source(
    file: &SourceFile,
    offset: u64,
    out: &mut [u8],
) -> Result<(), ImportError> {
    file.read_exact_at(offset, out).map_err(|source| read_error(file, source))
}

/// Converts a read error, and reports a changed file as such.
pub(crate) fn read_error(file: &SourceFile, source: io::Error) -> ImportError {
    if source.kind() == io::ErrorKind::UnexpectedEof || !file.is_unchanged() {
        ImportError::Changed { file: file.path().display().to_string() }
    } else {
        io_error(file.path(), "read", source)
    }
}

/// Reads a file of at most `limit` bytes. Returns `None` if it does not exist.
pub(crate) fn read_small(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, ImportError> {
    let file = match SourceFile::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        Err(error) => return Err(io_error(path, "open", error)),
    };
    if file.length() > limit {
        return Err(ImportError::Limit {
            file: path.display().to_string(),
            what: "its size in bytes".into(),
            found: file.length(),
            limit,
        });
    }
    let mut bytes = try_zeroed("a file of the checkpoint", file.length() as usize)?;
    read_source(&file, 0, &mut bytes)?;
    Ok(Some(bytes))
}

/// Returns the error for a directory without `config.json`, which describes the directory instead.
pub(crate) fn not_a_checkpoint(directory: &Path) -> ImportError {
    let problem = if !directory.exists() {
        "there is no such directory".into()
    } else if !directory.is_dir() {
        "it is a file; give the directory that holds `config.json`".into()
    } else {
        "it has no `config.json`".into()
    };
    ImportError::NotACheckpoint { directory: directory.display().to_string(), problem }
}

pub(crate) type Weights = (Vec<SourceFile>, BTreeMap<String, TensorInfo>);

pub(crate) fn open_weights(directory: &Path) -> Result<Weights, ImportError> {
    let index_path = directory.join(INDEX_FILE);
    let single = || open_files(directory, &[SINGLE_FILE.to_owned()]);
    if directory.join(SINGLE_FILE).exists() {
        return single();
    }
    let Some(bytes) = read_small(&index_path, MAX_SAFETENSORS_INDEX_BYTES)? else {
        // The header file alone may be available.
        let is_absent = SourceFile::open(&directory.join(SINGLE_FILE)).is_err();
        return if is_absent { Err(no_weights(directory)) } else { single() };
    };
    let index = index_path.display().to_string();
    let weight_map = parse_index(&index, &bytes)?;
    let names: BTreeSet<&String> = weight_map.values().collect();
    let names: Vec<String> = names.into_iter().cloned().collect();
    if names.len() > MAX_SHARDS {
        let (found, limit) = (names.len() as u64, MAX_SHARDS as u64);
        let what = "the number of files".into();
        return Err(ImportError::Limit { file: index, what, found, limit });
    }
    let (files, tensors) = open_files(directory, &names)?;
    for (tensor, file) in &weight_map {
        let found = tensors.get(tensor).and_then(|info| names.get(info.file));
        if found != Some(file) {
            let file = directory.join(file).display().to_string();
            return Err(ImportError::MissingTensor { file, tensor: tensor.clone() });
        }
    }
    match tensors.keys().find(|name| !weight_map.contains_key(*name)) {
        None => Ok((files, tensors)),
        Some(name) => Err(ImportError::MissingTensor { file: index, tensor: name.clone() }),
    }
}

fn no_weights(directory: &Path) -> ImportError {
    let other = ["pytorch_model.bin", "pytorch_model.bin.index.json"];
    let problem = match other.iter().find(|name| directory.join(name).exists()) {
        Some(name) => format!("its weights are in `{name}`; only safetensors can be read"),
        None => format!("it has neither `{SINGLE_FILE}` nor `{INDEX_FILE}`"),
    };
    ImportError::NotACheckpoint { directory: directory.display().to_string(), problem }
}

/// Parses `model.safetensors.index.json` and returns the file name of each tensor.
fn parse_index(file: &str, bytes: &[u8]) -> Result<BTreeMap<String, String>, ImportError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: UniqueMap<String>,
    }
    let index: Index = serde_json::from_slice(bytes)
        .map_err(|source| ImportError::Json { file: file.into(), source })?;
    for (tensor, shard) in &index.weight_map.0 {
        // File names must be plain, so that no path leads out of the directory.
        let plain = shard.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
        if !plain || !shard.ends_with(".safetensors") || shard.starts_with('.') {
            return Err(ImportError::Value {
                file: file.into(),
                key: format!("weight_map: {tensor}"),
                expected: "the plain name of a .safetensors file".into(),
                found: format!("{:?}", shard.chars().take(60).collect::<String>()),
            });
        }
    }
    Ok(index.weight_map.0.into_iter().collect())
}

fn open_files(directory: &Path, names: &[String]) -> Result<Weights, ImportError> {
    let mut files = Vec::new();
    let mut tensors = BTreeMap::new();
    for (file_index, name) in names.iter().enumerate() {
        let path = directory.join(name);
        let file = SourceFile::open(&path).map_err(|e| io_error(&path, "open", e))?;
        for (name, entry) in read_header(&file)?.tensors {
            let info = TensorInfo {
                element: entry.dtype.into(),
                shape: entry.shape,
                file: file_index,
                offset: entry.offset,
                length: entry.length,
            };
            let offset = info.offset;
            if tensors.insert(name.clone(), info).is_some() {
                return Err(ImportError::Malformed {
                    file: path.display().to_string(),
                    what: format!("tensor `{name}`"),
                    offset,
                    expected: "a name that no other file has".into(),
                    found: "a second one of the name".into(),
                });
            }
        }
        if tensors.len() > MAX_TENSORS {
            return Err(ImportError::Limit {
                file: directory.display().to_string(),
                what: "the number of tensors".into(),
                found: tensors.len() as u64,
                limit: MAX_TENSORS as u64,
            });
        }
        files.push(file);
    }
    Ok((files, tensors))
}

fn read_header(file: &SourceFile) -> Result<SafetensorsHeader, ImportError> {
    let label = file.path().display().to_string();
    let mut prefix = [0; PREFIX_BYTES as usize];
    if file.length() < PREFIX_BYTES {
        return Err(ImportError::Malformed {
            file: label,
            what: "header length".into(),
            offset: 0,
            expected: format!("{PREFIX_BYTES} bytes"),
            found: format!("a file of {} bytes", file.length()),
        });
    }
    read_source(file, 0, &mut prefix)?;
    let length = header_length(&label, prefix, file.length())?;
    let mut json = try_zeroed("the header of a safetensors file", length as usize)?;
    read_source(file, PREFIX_BYTES, &mut json)?;
    SafetensorsHeader::parse(&label, &json, file.length())
}

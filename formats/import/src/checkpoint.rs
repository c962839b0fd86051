//! A checkpoint: a directory with `config.json` and safetensors files, or a GGUF file.

use nestling_formats::Invariant;
use nestling_formats::memory::{try_reserve, try_zeroed};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::Xxh3;

use crate::limits::{MAX_ASSET_BYTES, MAX_CONFIG_BYTES};
use crate::names::{self, Naming};
use crate::read_at::{ByteSource, RUN_ROOM, SourceFile};
use crate::tiktoken;
use crate::weight_files::{not_a_checkpoint, open_weights, read_error, read_small, read_source};
use crate::{ElementType, GenerationDefaults, ImportError, ModelConfig, ModelShape};

mod companions;
mod fetched;
mod gguf;
mod scaled;
mod slices;
mod tensor_checks;
mod unknown;

use companions::Companion;

pub use crate::weight_files::TensorInfo;
pub use fetched::{FetchedRuns, SourceRun};
pub use scaled::{ScaledScratch, ScaledTile};
pub use slices::{FloatPlace, MatrixPlace};

/// Names of the small files that a store copies from the checkpoint, if present.
pub const ASSET_FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "LICENSE",
    "README.md",
];

const TOKENIZER: &str = "tokenizer.json";

/// Number of elements in the largest block of any type.
const BLOCK_ELEMENTS_MAX: usize = 256;

/// Read size in bytes for hashing and conversion.
const CHUNK_BYTES: usize = 1 << 20;

/// A small file that accompanies the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// File name in the checkpoint.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// Source of the small files.
#[derive(Debug)]
enum SmallFiles {
    /// Files of the directory.
    Files,
    /// Files generated from the metadata of a GGUF file.
    Written(Vec<Asset>),
}

/// An open checkpoint with all weights of the model, in valid shapes and types.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    small: SmallFiles,
    config: ModelConfig,
    generation: GenerationDefaults,
    shape: ModelShape,
    naming: Naming,
    files: Vec<SourceFile>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Hash of the headers of GGUF files.
    headers_hash: Option<u128>,
    /// Scale tensors of NVFP4 tensors, keyed by the name of the scaled tensor.
    companions: BTreeMap<String, Companion>,
}

impl Checkpoint {
    /// Opens a directory, or a GGUF file (or any part of one). Reads all headers and checks each tensor
    /// against the configuration.
    ///
    /// ```
    /// use nestling_import::Checkpoint;
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let directory = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
    /// let file = Checkpoint::open(format!("{data}/gguf/qwen3-moe.gguf"))?;
    /// assert_eq!(directory.config().architecture, file.config().architecture);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an [`ImportError`] that names the file, key or tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImportError> {
        let path = path.as_ref();
        if gguf::is_gguf(path) { gguf::open(path) } else { Self::open_directory(path) }
    }

    /// Opens a GGUF file that is not on the disk: the parts of a split file in their order, or a single one.
    ///
    /// ```
    /// use nestling_import::{ByteSource, Checkpoint};
    /// use std::io;
    /// use std::sync::Arc;
    ///
    /// struct Bytes(Vec<u8>);
    ///
    /// impl ByteSource for Bytes {
    ///     fn name(&self) -> String {
    ///         "bytes".into()
    ///     }
    ///
    ///     fn length(&self) -> u64 {
    ///         self.0.len() as u64
    ///     }
    ///
    ///     fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
    ///         let rest = self.0.get(offset as usize..).and_then(|rest| rest.get(..out.len()));
    ///         out.copy_from_slice(rest.ok_or(io::ErrorKind::UnexpectedEof)?);
    ///         Ok(())
    ///     }
    /// }
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let bytes = Bytes(std::fs::read(format!("{data}/gguf/qwen3-moe.gguf"))?);
    /// let checkpoint = Checkpoint::from_gguf(vec![Arc::new(bytes) as Arc<dyn ByteSource>])?;
    /// assert!(checkpoint.is_whole());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an [`ImportError`] that names the source, key or tensor.
    pub fn from_gguf(parts: Vec<Arc<dyn ByteSource>>) -> Result<Self, ImportError> {
        // Default: without parts there is no name to report either.
        let name = parts.first().map(|part| part.name()).unwrap_or_default();
        gguf::of_parts(Path::new(&name), parts.into_iter().map(SourceFile::of_source).collect())
    }

    fn open_directory(directory: &Path) -> Result<Self, ImportError> {
        let config_bytes = read_small(&directory.join("config.json"), MAX_CONFIG_BYTES)?
            .ok_or_else(|| not_a_checkpoint(directory))?;
        let label = directory.join("config.json").display().to_string();
        let config = ModelConfig::of_folder(&label, &config_bytes)
            .map_err(|error| unknown::explained(directory, &config_bytes, error))?;
        let generation_path = directory.join("generation_config.json");
        let generation = match read_small(&generation_path, MAX_CONFIG_BYTES)? {
            Some(bytes) => {
                GenerationDefaults::from_json(&generation_path.display().to_string(), &bytes)?
            }
            None => GenerationDefaults::default(),
        };
        let (files, tensors) = open_weights(directory)?;
        let shape = ModelShape::new(&config);
        let directory = directory.to_owned();
        let shape_of = |name: &str| tensors.get(name).map(|tensor: &TensorInfo| &tensor.shape[..]);
        let naming = names::in_checkpoint(&config, shape_of);
        let checkpoint = Self {
            directory,
            small: SmallFiles::Files,
            config,
            generation,
            shape,
            naming,
            files,
            tensors,
            headers_hash: None,
            companions: BTreeMap::new(),
        };
        checkpoint.check_tensors()?;
        Ok(checkpoint)
    }

    /// Returns the path of the open directory or GGUF file.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the model's hyperparameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the sampling defaults of `generation_config.json`; empty if the file is missing.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Returns the model's weights and their shapes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// Returns the paths of the weight files, in the order of [`TensorInfo::file`].
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(SourceFile::path)
    }

    /// Returns the total size of the weight files in bytes.
    pub fn weight_bytes(&self) -> u64 {
        self.files.iter().map(SourceFile::length).sum()
    }

    /// Returns true if the weight files are complete. Returns false if only their headers are available.
    pub fn is_whole(&self) -> bool {
        self.files.iter().all(SourceFile::is_whole)
    }

    /// Enables or disables direct reads of matrix blocks, which bypass the page cache. Direct reads are used
    /// if the system supports them and the bytes are not cached. They help a caller that keeps the weights in
    /// its own memory while memory is short.
    pub fn pass_page_cache(&self, passes: bool) {
        self.files.iter().for_each(|file| file.pass_page_cache(passes));
    }

    /// Returns true if direct reads are enabled and supported for all files.
    pub fn passes_page_cache(&self) -> bool {
        !self.files.is_empty() && self.files.iter().all(SourceFile::passes_page_cache)
    }

    /// Returns the XXH3-128 hash of the GGUF headers, which include all metadata. Returns `None` for a
    /// directory.
    pub fn headers_hash(&self) -> Option<u128> {
        self.headers_hash
    }

    /// Returns all tensors by name, including tensors that the model does not use.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Returns the location of a tensor.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Reads a tensor's bytes as stored in the file: elements or blocks, row by row.
    ///
    /// # Errors
    /// [`ImportError::Io`] or [`ImportError::Changed`].
    pub fn read_bytes(&self, tensor: &TensorInfo) -> Result<Vec<u8>, ImportError> {
        let mut bytes = try_zeroed("a tensor", self.buffer_length(tensor.length)?)?;
        self.read_into(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads a tensor's elements as f32, row by row.
    ///
    /// ```
    /// use nestling_import::Checkpoint;
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let checkpoint = Checkpoint::open(format!("{data}/tiny-qwen3-moe"))?;
    /// let norm = checkpoint.tensor("model.norm.weight").ok_or("no final norm")?;
    /// let values = checkpoint.read_f32(norm)?;
    /// assert_eq!(values.len(), checkpoint.config().hidden_size);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`], [`ImportError::NotFinite`] for an infinite or NaN
    /// weight, or [`ImportError::BlockScale`] for a block with such weights.
    pub fn read_f32(&self, tensor: &TensorInfo) -> Result<Vec<f32>, ImportError> {
        let mut values = try_zeroed("a tensor", self.buffer_length(tensor.elements())?)?;
        self.read_f32_from(tensor, 0, &mut values)?;
        Ok(values)
    }

    /// Fills `out` with elements of a tensor, starting at the element `first`.
    ///
    /// # Errors
    /// The errors of [`Self::read_f32`], and [`ImportError::Limit`] if the tensor ends before `out` is full.
    pub fn read_f32_from(
        &self,
        tensor: &TensorInfo,
        first: u64,
        out: &mut [f32],
    ) -> Result<(), ImportError> {
        let decode = |bytes: &[u8], out: &mut [f32]| tensor.element.decode(bytes, out);
        self.read_decoded(tensor, first, out, &decode)
    }

    /// Reads like [`Self::read_f32_from`], with another function that decodes whole blocks.
    fn read_decoded(
        &self,
        tensor: &TensorInfo,
        first: u64,
        out: &mut [f32],
        decode: &dyn Fn(&[u8], &mut [f32]),
    ) -> Result<(), ImportError> {
        let end = first.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > tensor.elements()) {
            return Err(ImportError::Limit {
                file: self.file_name(tensor.file),
                what: "the end of a read".into(),
                found: end.unwrap_or(u64::MAX),
                limit: tensor.elements(),
            });
        }
        let (size, width) = (tensor.element.block_elements(), tensor.element.block_bytes());
        let blocks_max = CHUNK_BYTES / width;
        let blocks = blocks_max.min(out.len().div_ceil(size));
        let mut chunk = try_zeroed("a part of a tensor", width * blocks)?;
        let mut cut = [0.0; BLOCK_ELEMENTS_MAX];
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            // Elements of the block before the requested ones. The cast cannot overflow: the value is less
            // than `size`.
            let skipped = (at % size as u64) as usize;
            let whole = if skipped == 0 { (rest.len() / size).min(blocks_max) } else { 0 };
            let bytes = &mut chunk[..width * whole.max(1)];
            self.read_into(tensor, at / size as u64 * width as u64, bytes)?;
            let count = if whole > 0 { whole * size } else { rest.len().min(size - skipped) };
            let (part, later) = rest.split_at_mut(count);
            if whole > 0 {
                decode(bytes, part);
            } else {
                decode(bytes, &mut cut[..size]);
                part.copy_from_slice(&cut[skipped..skipped + count]);
            }
            if let Some(index) = part.iter().position(|value| !value.is_finite()) {
                return Err(self.not_finite(tensor, at + index as u64, part[index]));
            }
            (at, rest) = (at + count as u64, later);
        }
        Ok(())
    }

    fn buffer_length(&self, length: u64) -> Result<usize, ImportError> {
        usize::try_from(length).map_err(|_| ImportError::Limit {
            file: self.directory.display().to_string(),
            what: "the length of a tensor".into(),
            found: length,
            limit: usize::MAX as u64,
        })
    }

    fn read_into(
        &self,
        tensor: &TensorInfo,
        start: u64,
        out: &mut [u8],
    ) -> Result<(), ImportError> {
        read_source(self.file_of(tensor)?, tensor.offset + start, out)
    }

    /// Reads like [`Self::read_into`] into a growable buffer. Returns the range of the buffer that holds the
    /// bytes.
    fn read_run(
        &self,
        tensor: &TensorInfo,
        start: u64,
        length: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<Range<usize>, ImportError> {
        let file = self.file_of(tensor)?;
        let more = length.saturating_add(RUN_ROOM).saturating_sub(buffer.len());
        try_reserve(buffer, "blocks of a file", more)?;
        file.read_run(tensor.offset + start, length, buffer)
            .map_err(|source| read_error(file, source))
    }

    fn file_of(&self, tensor: &TensorInfo) -> Result<&SourceFile, ImportError> {
        self.file_at(tensor.file)
    }

    fn file_at(&self, number: usize) -> Result<&SourceFile, ImportError> {
        self.files.get(number).ok_or_else(|| ImportError::MissingTensor {
            file: self.directory.display().to_string(),
            tensor: format!("of file {number}"),
        })
    }

    fn not_finite(&self, tensor: &TensorInfo, index: u64, found: f32) -> ImportError {
        let name = self.tensors.iter().find(|(_, info)| *info == tensor);
        let name = name.map_or_else(String::new, |(name, _)| name.clone());
        if let ElementType::Block(kind) = tensor.element {
            return self.wrong_scale(name, tensor, index / kind.elements() as u64, found);
        }
        ImportError::NotFinite { file: self.file_name(tensor.file), tensor: name, index, found }
    }

    /// Returns the error for a block whose scale does not give finite weights.
    fn wrong_scale(
        &self,
        name: String,
        tensor: &TensorInfo,
        block: u64,
        found: f32,
    ) -> ImportError {
        let bytes = tensor.element.block_bytes() as u64;
        ImportError::BlockScale {
            file: self.file_name(tensor.file),
            tensor: name,
            block,
            offset: tensor.offset.saturating_add(block.saturating_mul(bytes)),
            found,
        }
    }

    fn file_name(&self, file: usize) -> String {
        self.files.get(file).map_or_else(String::new, |file| file.path().display().to_string())
    }

    /// Returns the small files of the model, in the order of [`ASSET_FILES`].
    ///
    /// ```
    /// use nestling_import::Checkpoint;
    ///
    /// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data");
    /// let checkpoint = Checkpoint::open(format!("{data}/tiny-tied"))?;
    /// let assets = checkpoint.assets()?;
    /// assert!(assets.iter().any(|asset| asset.name == "tokenizer.json"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Limit`] for a file that is too large, or an [`ImportError`] for an
    /// invalid `tiktoken.model`.
    pub fn assets(&self) -> Result<Vec<Asset>, ImportError> {
        let mut assets = Vec::new();
        for name in ASSET_FILES {
            if let Some(bytes) = self.asset(name)? {
                assets.push(Asset { name: (*name).into(), bytes });
            }
        }
        Ok(assets)
    }

    /// Returns a small file of the checkpoint, if present. A missing `tokenizer.json` is generated from the
    /// `tiktoken.model` of Kimi-K2 and similar models.
    ///
    /// # Errors
    /// The errors of [`Self::assets`].
    pub fn asset(&self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        match &self.small {
            SmallFiles::Files => match read_small(&self.directory.join(name), MAX_ASSET_BYTES)? {
                None if name == TOKENIZER => tiktoken::tokenizer_json(&self.directory),
                found => Ok(found),
            },
            SmallFiles::Written(assets) => {
                let asset = assets.iter().find(|asset| asset.name == name);
                Ok(asset.map(|asset| asset.bytes.clone()))
            }
        }
    }

    /// Returns the XXH3-128 hash of names, lengths and contents of the weight files and assets. The hash does
    /// not depend on the checkpoint's location. All files are read once; `progress` receives the number of
    /// bytes read since its last call.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`], or [`ImportError::Cancelled`] if `progress` breaks.
    pub fn source_hash(
        &self,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<u128, ImportError> {
        let mut hash = Xxh3::new();
        for asset in self.assets()? {
            begin_file(&mut hash, &asset.name, asset.bytes.len() as u64);
            hash.update(&asset.bytes);
        }
        let mut chunk = try_zeroed("a part of a file", CHUNK_BYTES)?;
        for file in &self.files {
            let name = file.path().file_name().invariant("an opened file has a name")?;
            begin_file(&mut hash, &name.to_string_lossy(), file.length());
            let mut offset = 0;
            while offset < file.length() {
                let rest = usize::try_from(file.length() - offset).unwrap_or(usize::MAX);
                let part = &mut chunk[..rest.min(CHUNK_BYTES)];
                read_source(file, offset, part)?;
                hash.update(part);
                offset += part.len() as u64;
                if progress(part.len() as u64).is_break() {
                    return Err(ImportError::Cancelled);
                }
            }
        }
        self.check_unchanged()?;
        Ok(hash.digest128())
    }

    /// Checks that no weight file was replaced or modified since it was opened.
    ///
    /// # Errors
    /// [`ImportError::Changed`] for the first changed file.
    pub fn check_unchanged(&self) -> Result<(), ImportError> {
        match self.files.iter().find(|file| !file.is_unchanged()) {
            None => Ok(()),
            Some(file) => Err(ImportError::Changed { file: file.path().display().to_string() }),
        }
    }
}

/// Hashes the name and length of a file, so that different checkpoints never hash the same byte stream.
fn begin_file(hash: &mut Xxh3, name: &str, length: u64) {
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(&length.to_le_bytes());
}

//! A checkpoint: a directory with `config.json` and safetensors files, or a GGUF file.

use nestling_formats::Invariant;
use nestling_formats::memory::{try_reserve, try_zeroed};
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::limits::{MAX_ASSET_BYTES, MAX_CONFIG_BYTES};
use crate::names::{self, Naming};
use crate::read_at::{RUN_ROOM, SourceFile};
use crate::tiktoken;
use crate::weight_files::{not_a_checkpoint, open_weights, read_error, read_small, read_source};
use crate::{ElementType, GenerationDefaults, ImportError, ModelConfig, ModelShape};

mod gguf;
mod scaled;
mod slices;
mod tensor_checks;
mod unknown;

pub use crate::weight_files::TensorInfo;
pub use scaled::ScaledScratch;
pub use slices::{FloatPlace, MatrixPlace};

/// The files besides the weights that a store takes over, where the checkpoint has them.
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

/// Elements of the largest block of any type.
const BLOCK_ELEMENTS_MAX: usize = 256;

/// Read size while hashing and converting.
const CHUNK_BYTES: usize = 1 << 20;

/// A small file that travels with the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asset {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// Where the small files are.
#[derive(Debug)]
enum Small {
    /// In the directory.
    Files,
    /// Nowhere: they were written out of what a GGUF file says.
    Written(Vec<Asset>),
}

/// An opened checkpoint whose weights are all there, in the right shapes and types.
#[derive(Debug)]
pub struct Checkpoint {
    directory: PathBuf,
    small: Small,
    config: ModelConfig,
    generation: GenerationDefaults,
    shape: ModelShape,
    naming: Naming,
    files: Vec<SourceFile>,
    tensors: BTreeMap<String, TensorInfo>,
    /// Over the headers of GGUF files.
    headers_hash: Option<u128>,
}

impl Checkpoint {
    /// Opens a directory, or a GGUF file (or any part of one), reads all headers and checks every
    /// tensor against the configuration.
    ///
    /// # Errors
    /// [`ImportError`] that names the file, key or tensor.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ImportError> {
        let path = path.as_ref();
        if gguf::is_gguf(path) { gguf::open(path) } else { Self::open_directory(path) }
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
            small: Small::Files,
            config,
            generation,
            shape,
            naming,
            files,
            tensors,
            headers_hash: None,
        };
        checkpoint.check_tensors()?;
        Ok(checkpoint)
    }

    /// The directory or GGUF file that was opened.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The model's hyper-parameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// What `generation_config.json` recommends; empty when there is none.
    pub fn generation(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// The model's weights and their sizes.
    pub fn shape(&self) -> &ModelShape {
        &self.shape
    }

    /// The weight files, in the order that [`TensorInfo::file`] counts.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(SourceFile::path)
    }

    /// Bytes of all weight files.
    pub fn weight_bytes(&self) -> u64 {
        self.files.iter().map(SourceFile::length).sum()
    }

    /// Whether all weights are here, and not only the beginnings of their files.
    pub fn is_whole(&self) -> bool {
        self.files.iter().all(SourceFile::is_whole)
    }

    /// Says whether blocks of matrices are read past the page cache from now on, where the system can
    /// and the cache does not have them: for who holds what it reads while memory is short.
    pub fn pass_page_cache(&self, passes: bool) {
        self.files.iter().for_each(|file| file.pass_page_cache(passes));
    }

    /// Whether they are.
    pub fn passes_page_cache(&self) -> bool {
        !self.files.is_empty() && self.files.iter().all(SourceFile::passes_page_cache)
    }

    /// XXH3-128 over the headers of GGUF files, with all that they say but the weights; none of a
    /// directory.
    pub fn headers_hash(&self) -> Option<u128> {
        self.headers_hash
    }

    /// All tensors by name, those that the model does not use included.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, &TensorInfo)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// Where the tensor of that name lies.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// A tensor's bytes as they are in the file: elements or blocks of them, row by row.
    ///
    /// # Errors
    /// [`ImportError::Io`] or [`ImportError::Changed`].
    pub fn read_bytes(&self, tensor: &TensorInfo) -> Result<Vec<u8>, ImportError> {
        let mut bytes = try_zeroed("a tensor", self.buffer_length(tensor.length)?)?;
        self.read_into(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// A tensor's elements as f32, row by row.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`], or [`ImportError::NotFinite`] for a weight
    /// that is infinite or not a number, of blocks [`ImportError::BlockScale`].
    pub fn read_f32(&self, tensor: &TensorInfo) -> Result<Vec<f32>, ImportError> {
        let mut values = try_zeroed("a tensor", self.buffer_length(tensor.elements())?)?;
        self.read_f32_from(tensor, 0, &mut values)?;
        Ok(values)
    }

    /// Fills `out` with a tensor's elements from the element `first` on.
    ///
    /// # Errors
    /// As [`Self::read_f32`]; [`ImportError::Limit`] if the tensor ends before `out` does.
    pub fn read_f32_from(
        &self,
        tensor: &TensorInfo,
        first: u64,
        out: &mut [f32],
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
            // Elements before the wanted ones in their block; no overflow: it is less than `size`.
            let skipped = (at % size as u64) as usize;
            let whole = if skipped == 0 { (rest.len() / size).min(blocks_max) } else { 0 };
            let bytes = &mut chunk[..width * whole.max(1)];
            self.read_into(tensor, at / size as u64 * width as u64, bytes)?;
            let count = if whole > 0 { whole * size } else { rest.len().min(size - skipped) };
            let (part, later) = rest.split_at_mut(count);
            if whole > 0 {
                tensor.element.decode(bytes, part);
            } else {
                tensor.element.decode(bytes, &mut cut[..size]);
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

    /// As [`Self::read_into`], into a buffer that grows; the bytes are in the returned range of it.
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
        self.files.get(tensor.file).ok_or_else(|| ImportError::MissingTensor {
            file: self.directory.display().to_string(),
            tensor: format!("of file {}", tensor.file),
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

    /// What is said of a block whose scale makes no weights.
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

    /// The small files that belong to the model, in the order of [`ASSET_FILES`].
    ///
    /// # Errors
    /// [`ImportError::Io`], or [`ImportError::Limit`] for a file that is too large; of a `tiktoken.model`
    /// also [`ImportError`] that names what it lacks.
    pub fn assets(&self) -> Result<Vec<Asset>, ImportError> {
        let mut assets = Vec::new();
        for name in ASSET_FILES {
            if let Some(bytes) = self.asset(name)? {
                assets.push(Asset { name: (*name).into(), bytes });
            }
        }
        Ok(assets)
    }

    /// One small file of the checkpoint, if it is there. Where there is no `tokenizer.json`, it is what the
    /// `tiktoken.model` of Kimi-K2 and its kin says.
    ///
    /// # Errors
    /// As [`Self::assets`].
    pub fn asset(&self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        match &self.small {
            Small::Files => match read_small(&self.directory.join(name), MAX_ASSET_BYTES)? {
                None if name == TOKENIZER => tiktoken::tokenizer_json(&self.directory),
                found => Ok(found),
            },
            Small::Written(assets) => {
                let asset = assets.iter().find(|asset| asset.name == name);
                Ok(asset.map(|asset| asset.bytes.clone()))
            }
        }
    }

    /// XXH3-128 over names, lengths and contents of the weight files and assets: the same wherever
    /// the checkpoint lies. Reads everything once; `progress` gets the bytes read since its last
    /// call.
    ///
    /// # Errors
    /// [`ImportError::Io`], [`ImportError::Changed`], or [`ImportError::Cancelled`] when `progress`
    /// breaks.
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
    /// [`ImportError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), ImportError> {
        match self.files.iter().find(|file| !file.is_unchanged()) {
            None => Ok(()),
            Some(file) => Err(ImportError::Changed { file: file.path().display().to_string() }),
        }
    }
}

/// Names and lengths are hashed too, so that no two checkpoints share a stream of bytes.
fn begin_file(hash: &mut Xxh3, name: &str, length: u64) {
    hash.update(&(name.len() as u64).to_le_bytes());
    hash.update(name.as_bytes());
    hash.update(&length.to_le_bytes());
}

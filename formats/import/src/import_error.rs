//! What can be wrong with a checkpoint.

use nestling_formats::memory::OutOfMemory;
use std::io;

/// A checkpoint that cannot be read, is malformed, or asks for something that is not supported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The operating system refused.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        file: String,
        /// What was tried.
        action: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The directory holds no checkpoint in a known format.
    #[error("{directory} is not a Hugging Face checkpoint: {problem}")]
    NotACheckpoint {
        /// The directory.
        directory: String,
        /// What is missing or found instead.
        problem: String,
    },
    /// A file is not the JSON it should be.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// Line, column and problem.
        source: serde_json::Error,
    },
    /// A key of a JSON file is missing or has a value that makes no sense.
    #[error("{file}: `{key}`: expected {expected}, found {found}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// What would do.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The model does something that this version cannot compute.
    #[error("{file}: `{key}` is {found}, which is not supported ({supported})")]
    Unsupported {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What is.
        supported: String,
    },
    /// A model without experts, of a family that is not known.
    #[error("{file}: {found} is a dense model; Nestling runs Mixture-of-Experts models only")]
    Dense {
        /// The file.
        file: String,
        /// The family.
        found: String,
    },
    /// An option that is not known, and so might change the model.
    #[error("{file}: `{key}` = {found} is not known and might change the model")]
    UnknownOption {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
    },
    /// Something is larger than any limit of [`crate::limits`].
    #[error("{file}: {what} is {found}, above the limit of {limit}")]
    Limit {
        /// The file.
        file: String,
        /// The size.
        what: String,
        /// Its value.
        found: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// The bytes of a safetensors file are wrong.
    #[error("{file}: {what} at byte {offset}: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        file: String,
        /// The field or tensor.
        what: String,
        /// Where, from the file's start.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// A tensor has not the type or shape that the configuration asks for.
    #[error("{file}: tensor `{tensor}` at byte {offset}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Where its data begins, from the file's start.
        offset: u64,
        /// What the configuration asks for.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The checkpoint lacks a tensor.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The checkpoint.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// The checkpoint has tensors that the architecture has no use for.
    #[error("{file}: {count} tensors have no place in this architecture, the first is `{tensor}`")]
    UnexpectedTensor {
        /// The checkpoint.
        file: String,
        /// The first of them.
        tensor: String,
        /// How many there are.
        count: usize,
    },
    /// Blocks have a further scale in another tensor, as llama.cpp writes it for NVFP4: without it their
    /// weights would be wrong.
    #[error(
        "{file}: {count} tensors scale the blocks of others, which is not supported, the first is \
         `{tensor}`"
    )]
    CompanionScale {
        /// The checkpoint.
        file: String,
        /// The first of them.
        tensor: String,
        /// How many there are.
        count: usize,
    },
    /// A weight is infinite or not a number.
    #[error("{file}: tensor `{tensor}`: element {index} is {found}, not a finite number")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Position in the tensor.
        index: u64,
        /// The value.
        found: f32,
    },
    /// The scale of a block is infinite, not a number, or makes such weights.
    #[error(
        "{file}: tensor `{tensor}`: block {block} at byte {offset} has scales that make no finite weights, such as {found}"
    )]
    BlockScale {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Position of the block in the tensor.
        block: u64,
        /// Where the block begins, from the file's start.
        offset: u64,
        /// The scale, or a weight that it makes.
        found: f32,
    },
    /// The file is no longer the one that was opened.
    #[error("{file} was changed while it was being read")]
    Changed {
        /// The file.
        file: String,
    },
    /// The caller's callback asked to stop.
    #[error("cancelled")]
    Cancelled,
    /// The system gave no memory for something whose size a file decides.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A condition of the program itself that does not hold.
    #[error(transparent)]
    Internal(#[from] nestling_formats::InternalError),
}

impl ImportError {
    /// Path of the file or folder that the error names, if it names one.
    pub fn file_mut(&mut self) -> Option<&mut String> {
        match self {
            Self::Io { file, .. }
            | Self::NotACheckpoint { directory: file, .. }
            | Self::Json { file, .. }
            | Self::Value { file, .. }
            | Self::Unsupported { file, .. }
            | Self::Dense { file, .. }
            | Self::UnknownOption { file, .. }
            | Self::Limit { file, .. }
            | Self::Malformed { file, .. }
            | Self::Tensor { file, .. }
            | Self::MissingTensor { file, .. }
            | Self::UnexpectedTensor { file, .. }
            | Self::CompanionScale { file, .. }
            | Self::NotFinite { file, .. }
            | Self::BlockScale { file, .. }
            | Self::Changed { file } => Some(file),
            Self::Cancelled | Self::Memory(_) | Self::Internal(_) => None,
        }
    }
}

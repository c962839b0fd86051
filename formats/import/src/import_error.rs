//! Errors of importing a checkpoint.

use nestling_formats::memory::OutOfMemory;
use std::io;

/// An error for a checkpoint that is unreadable, malformed or unsupported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// An I/O error.
    #[error("{file}: cannot {action}: {source}")]
    Io {
        /// File or directory.
        file: String,
        /// Attempted operation.
        action: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A directory without a checkpoint in a known format.
    #[error("{directory} is not a Hugging Face checkpoint: {problem}")]
    NotACheckpoint {
        /// The directory.
        directory: String,
        /// Missing or unexpected content.
        problem: String,
    },
    /// A file with invalid JSON.
    #[error("{file}: {source}")]
    Json {
        /// The file.
        file: String,
        /// Line, column and problem.
        source: serde_json::Error,
    },
    /// A missing or invalid value in a JSON file.
    #[error("{file}: `{key}`: expected {expected}, found {found}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Accepted values.
        expected: String,
        /// Value in the file.
        found: String,
    },
    /// An unsupported feature of the model.
    #[error("{file}: `{key}` is {found}, which is not supported ({supported})")]
    Unsupported {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Value of the key.
        found: String,
        /// Supported values.
        supported: String,
    },
    /// A dense model of a family that is not supported.
    #[error("{file}: {found} is not a supported family of dense models; supported: {supported}")]
    Dense {
        /// The file.
        file: String,
        /// Model family.
        found: String,
        /// Names of the supported dense families.
        supported: String,
    },
    /// An unknown option, which might change the model.
    #[error("{file}: `{key}` = {found} is unknown and might change the model's output")]
    UnknownOption {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Value of the key.
        found: String,
    },
    /// A size above one of [`crate::limits`].
    #[error("{file}: {what} is {found}, which exceeds the limit of {limit}")]
    Limit {
        /// The file.
        file: String,
        /// Name of the size.
        what: String,
        /// Found size.
        found: u64,
        /// Maximum accepted size.
        limit: u64,
    },
    /// A malformed safetensors or GGUF header.
    #[error("{file}: {what} at byte {offset}: expected {expected}, found {found}")]
    Malformed {
        /// The file.
        file: String,
        /// Field or tensor.
        what: String,
        /// Byte offset in the file.
        offset: u64,
        /// Expected content.
        expected: String,
        /// Found content.
        found: String,
    },
    /// A tensor whose type or shape contradicts the configuration.
    #[error("{file}: tensor `{tensor}` at byte {offset}: expected {expected}, found {found}")]
    Tensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Byte offset of the tensor's data in the file.
        offset: u64,
        /// Type or shape required by the configuration.
        expected: String,
        /// Found type or shape.
        found: String,
    },
    /// A missing tensor.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The checkpoint.
        file: String,
        /// The tensor.
        tensor: String,
    },
    /// Tensors that the architecture does not have.
    #[error("{file}: {count} tensors have no place in this architecture, the first is `{tensor}`")]
    UnexpectedTensor {
        /// The checkpoint.
        file: String,
        /// Name of the first such tensor.
        tensor: String,
        /// Number of such tensors.
        count: usize,
    },
    /// Scales in a separate tensor beside a tensor of a type other than NVFP4. Ignoring the scales would give
    /// wrong weights.
    #[error(
        "{file}: {count} tensors scale others that are not NVFP4, which is not supported, the first is \
         `{tensor}`"
    )]
    CompanionScale {
        /// The checkpoint.
        file: String,
        /// Name of the first such tensor.
        tensor: String,
        /// Number of such tensors.
        count: usize,
    },
    /// An infinite or NaN weight.
    #[error("{file}: tensor `{tensor}`: element {index} is {found}, not a finite number")]
    NotFinite {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Index of the element in the tensor.
        index: u64,
        /// The value.
        found: f32,
    },
    /// A block scale that is infinite, NaN, or gives infinite weights.
    #[error(
        "{file}: tensor `{tensor}`: block {block} at byte {offset} has scales that make no finite weights, such as {found}"
    )]
    BlockScale {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Index of the block in the tensor.
        block: u64,
        /// Byte offset of the block in the file.
        offset: u64,
        /// The scale, or a weight computed from it.
        found: f32,
    },
    /// A file that was changed after it was opened.
    #[error("{file} was changed while it was being read")]
    Changed {
        /// The file.
        file: String,
    },
    /// Cancelled by the caller's callback.
    #[error("cancelled")]
    Cancelled,
    /// Out of memory for data whose size is given by a file.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A violated invariant of the program.
    #[error(transparent)]
    Internal(#[from] nestling_formats::InternalError),
}

impl ImportError {
    /// Returns the path in the error, if the error has one, for replacement.
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

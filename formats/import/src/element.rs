//! Element types of tensors in checkpoints: floats, or blocks of quantized weights.

use crate::gguf::BlockType;
use nestling_formats::DType;
use nestling_formats::level::Level;

/// Element type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Individual floats.
    Float(DType),
    /// Quantized blocks along the rows.
    Block(BlockType),
}

impl ElementType {
    /// Returns the name of the type in its file format.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(dtype) => dtype.name(),
            Self::Block(block) => block.name(),
        }
    }

    /// Returns the number of elements per block; 1 for floats.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Block(block) => block.elements(),
        }
    }

    /// Returns the size of a block in bytes.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.bytes(),
            Self::Block(block) => block.bytes(),
        }
    }

    /// Returns the float type of the decoded elements: the type itself, or F32 for blocks.
    pub const fn float(self) -> DType {
        match self {
            Self::Float(dtype) => dtype,
            Self::Block(_) => DType::F32,
        }
    }

    /// Returns the highest level that has no more bits than the type's own codes.
    pub const fn level_max(self) -> Level {
        match self {
            Self::Float(_) => Level::L8,
            Self::Block(block) => match block.code_bits() {
                0..=2 => Level::L2,
                3 => Level::L3,
                4..=5 => Level::L4,
                6..=7 => Level::L6,
                _ => Level::L8,
            },
        }
    }

    /// Decodes whole blocks. Excess bytes or elements are ignored.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Float(dtype) => dtype.decode(bytes, out),
            Self::Block(block) => block.decode(bytes, out),
        }
    }
}

impl std::fmt::Display for ElementType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        Self::Float(dtype)
    }
}

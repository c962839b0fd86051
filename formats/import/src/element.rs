//! Element types of tensors in foreign files: floats, or blocks of quantized numbers.

use crate::gguf::BlockType;
use nestling_formats::DType;
use nestling_formats::level::Level;

/// How the numbers of a tensor are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Number by number.
    Float(DType),
    /// In blocks along the rows.
    Block(BlockType),
}

impl ElementType {
    /// What its format calls the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float(dtype) => dtype.name(),
            Self::Block(block) => block.name(),
        }
    }

    /// Numbers that are written together.
    pub const fn block_elements(self) -> usize {
        match self {
            Self::Float(_) => 1,
            Self::Block(block) => block.elements(),
        }
    }

    /// Bytes of those numbers.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::Float(dtype) => dtype.bytes(),
            Self::Block(block) => block.bytes(),
        }
    }

    /// The float type that holds the numbers as they are, or as single precision where none does.
    pub const fn float(self) -> DType {
        match self {
            Self::Float(dtype) => dtype,
            Self::Block(_) => DType::F32,
        }
    }

    /// The highest level that has no more bits than the numbers' own codes.
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

    /// Reads numbers of whole blocks. What one of the two has too much is left alone.
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

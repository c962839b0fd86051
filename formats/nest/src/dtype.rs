//! Element types of checkpoint tensors.

use half::{bf16, f16};

/// An element type that weights may have in a checkpoint.
///
/// ```
/// use nestling_formats::DType;
///
/// let mut bytes = Vec::new();
/// DType::Bf16.encode(&[1.0, -2.5], &mut bytes);
/// assert_eq!(bytes.len(), 2 * DType::Bf16.bytes());
///
/// let mut values = [0.0; 2];
/// DType::Bf16.decode(&bytes, &mut values);
/// assert_eq!(values, [1.0, -2.5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DType {
    /// IEEE single precision.
    F32 = 0,
    /// IEEE half precision.
    F16 = 1,
    /// The upper half of single precision.
    Bf16 = 2,
    /// Raw bytes of quantized weights, which have no meaning as single elements.
    U8 = 3,
}

impl DType {
    /// Returns the bytes per element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }

    /// Returns the name of the type in safetensors files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::U8 => "U8",
        }
    }

    /// Appends values as little-endian elements, rounded half to even.
    pub fn encode(self, values: &[f32], out: &mut Vec<u8>) {
        match self {
            Self::F32 => out.extend(values.iter().flat_map(|value| value.to_le_bytes())),
            Self::F16 => {
                out.extend(values.iter().flat_map(|&value| f16::from_f32(value).to_le_bytes()));
            }
            Self::Bf16 => {
                out.extend(values.iter().flat_map(|&value| bf16::from_f32(value).to_le_bytes()));
            }
            Self::U8 => out.extend(values.iter().map(|&value| value as u8)),
        }
    }

    /// Converts little-endian elements to f32.
    ///
    /// `bytes` should hold `out.len()` elements; surplus bytes or surplus output elements are ignored.
    pub fn decode(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f32::from_le_bytes(*bytes);
                }
            }
            Self::F16 => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = f16::from_le_bytes(*bytes).to_f32();
                }
            }
            Self::Bf16 => {
                for (value, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                    *value = bf16::from_le_bytes(*bytes).to_f32();
                }
            }
            Self::U8 => {
                out.iter_mut().zip(bytes).for_each(|(value, byte)| *value = f32::from(*byte))
            }
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

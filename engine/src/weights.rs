//! Weights as they lie in host memory: owned or mapped bytes with a shape.

use std::sync::Arc;

use crate::error::EngineError;

/// Part of some bytes that are kept alive together: an arena, a mapped file, a vector.
#[derive(Clone)]
pub struct ByteRegion {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    length: usize,
}

impl ByteRegion {
    /// The part of `owner` from `start`; none if the owner is shorter.
    pub fn new(
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Option<Self> {
        let end = start.checked_add(length)?;
        (*owner).as_ref().get(start..end)?;
        Some(Self { owner, start, length })
    }

    /// Bytes of its own.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { owner: Arc::new(bytes), start: 0, length }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        (*self.owner).as_ref().get(self.start..self.start + self.length).unwrap_or_default()
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl std::fmt::Debug for ByteRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ByteRegion({} bytes)", self.length)
    }
}

/// Element type of a float matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatDtype {
    /// 32 bits.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
}

impl FloatDtype {
    /// Bytes of one element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// A matrix of floats, row-major and little-endian; rows are outputs.
#[derive(Clone, Debug)]
pub struct FloatMatrix {
    rows: usize,
    cols: usize,
    dtype: FloatDtype,
    region: ByteRegion,
}

impl FloatMatrix {
    /// Binds a shape to bytes.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the region does not have exactly the bytes of the shape.
    pub fn new(
        rows: usize,
        cols: usize,
        dtype: FloatDtype,
        region: ByteRegion,
    ) -> Result<Self, EngineError> {
        let bytes = rows.checked_mul(cols).and_then(|count| count.checked_mul(dtype.bytes()));
        if bytes != Some(region.len()) {
            let expected = format!("[{rows}, {cols}] of {} bytes each", dtype.bytes());
            let found = format!("{} bytes", region.len());
            return Err(EngineError::mismatch("float matrix", expected, found));
        }
        Ok(Self { rows, cols, dtype, region })
    }

    /// A matrix of 32-bit floats.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if there are not `rows * cols` values.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Result<Self, EngineError> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(rows, cols, FloatDtype::F32, ByteRegion::from_vec(bytes))
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Element type.
    pub fn dtype(&self) -> FloatDtype {
        self.dtype
    }

    /// All elements, `[rows, cols]`.
    pub fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    /// Writes one row as 32-bit floats; `out` holds `cols` values. A row beyond the matrix is
    /// all zeros.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let size = self.dtype.bytes();
        let start = row * self.cols * size;
        let bytes = self.bytes().get(start..start + self.cols * size).unwrap_or_default();
        out.fill(0.0);
        for (value, element) in out.iter_mut().zip(bytes.chunks_exact(size)) {
            *value = match (self.dtype, element) {
                (FloatDtype::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
                (FloatDtype::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
                (FloatDtype::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
                _ => 0.0,
            };
        }
    }
}

/// How a nested matrix is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ActivationMode {
    /// Activations quantized to int8 per group of 32: the path that ships.
    #[default]
    Int8,
    /// Weights decoded to float, float activations: judges the weights alone.
    Float,
}

/// One matrix of a model, in any of the forms that a backend can take.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum MatrixWeights {
    /// Floats, multiplied with float activations.
    Float(FloatMatrix),
}

impl MatrixWeights {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.rows(),
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.cols(),
        }
    }
}

//! Weights as they lie in host memory: owned or mapped bytes with a shape.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use nestling_formats::memory::try_with_capacity;
use nestling_formats::nested::{
    CheckedSizes, Codec, InputTransform, Layout, NestedPlanes, NestedView,
};
use nestling_formats::{DType, Level};

use crate::arena::AlignedBytes;
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

    /// Aligned bytes of its own.
    pub fn from_aligned(bytes: AlignedBytes) -> Self {
        let length = bytes.as_ref().len();
        Self { owner: Arc::new(bytes), start: 0, length }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.length]
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

/// A matrix of floats, row-major and little-endian; rows are outputs.
#[derive(Clone, Debug)]
pub struct FloatMatrix {
    rows: usize,
    cols: usize,
    dtype: DType,
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
        dtype: DType,
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
        let mut bytes = try_with_capacity("a float matrix", values.len().saturating_mul(4))?;
        values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        Self::new(rows, cols, DType::F32, ByteRegion::from_vec(bytes))
    }

    /// The same values in half the memory where every one of them is a bfloat16, as in a router
    /// that was trained so.
    ///
    /// # Errors
    /// [`EngineError::Memory`].
    pub fn compact(self) -> Result<Self, EngineError> {
        let (words, rest) = self.bytes().as_chunks::<4>();
        let exact = words.iter().all(|word| word[0] == 0 && word[1] == 0) && rest.is_empty();
        if self.dtype != DType::F32 || !exact {
            return Ok(self);
        }
        let mut bytes = try_with_capacity("a float matrix", words.len() * 2)?;
        words.iter().for_each(|word| bytes.extend_from_slice(&[word[2], word[3]]));
        Ok(Self { dtype: DType::Bf16, region: ByteRegion::from_vec(bytes), ..self })
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
    pub fn dtype(&self) -> DType {
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
        // Default: a row beyond the matrix is all zeros.
        let bytes = self.bytes().get(start..start + self.cols * size).unwrap_or_default();
        out.fill(0.0);
        self.dtype.decode(bytes, out);
    }
}

/// The planes of a nested matrix that are held. P3 and P4 are held apart or merged.
#[derive(Clone, Debug)]
pub struct PlaneRegions {
    /// Plane P2, with scales and tables.
    pub p2: ByteRegion,
    /// Plane P3.
    pub p3: Option<ByteRegion>,
    /// Plane P4.
    pub p4: Option<ByteRegion>,
    /// P3 and P4 merged into one 2-bit digit.
    pub p34: Option<ByteRegion>,
    /// Plane P6.
    pub p6: Option<ByteRegion>,
    /// Plane P8.
    pub p8: Option<ByteRegion>,
}

impl PlaneRegions {
    /// Bytes that a prefix of the codes needs, scales and tables included.
    fn read_bytes(&self, prefix: Level) -> u64 {
        let length = |region: &Option<ByteRegion>| region.as_ref().map_or(0, ByteRegion::len);
        let middle = match (prefix, &self.p34) {
            (Level::L2, _) => 0,
            (_, Some(merged)) => merged.len(),
            (Level::L3, None) => length(&self.p3),
            (_, None) => length(&self.p3) + length(&self.p4),
        };
        let p6 = if prefix >= Level::L6 { length(&self.p6) } else { 0 };
        let p8 = if prefix >= Level::L8 { length(&self.p8) } else { 0 };
        (self.p2.len() + middle + p6 + p8) as u64
    }

    /// The bytes of each.
    pub fn planes(&self) -> NestedPlanes<'_> {
        fn bytes(region: Option<&ByteRegion>) -> Option<&[u8]> {
            region.map(ByteRegion::bytes)
        }
        NestedPlanes {
            p2: self.p2.bytes(),
            p3: bytes(self.p3.as_ref()),
            p4: bytes(self.p4.as_ref()),
            p34: bytes(self.p34.as_ref()),
            p6: bytes(self.p6.as_ref()),
            p8: bytes(self.p8.as_ref()),
        }
    }
}

/// A matrix of codes in planes; rows are outputs.
#[derive(Clone, Debug)]
pub struct NestedMatrix {
    codec: Codec,
    regions: PlaneRegions,
    levels: [Level; 5],
    sizes: Box<CheckedSizes>,
}

impl NestedMatrix {
    /// Binds a shape and a codec to planes. `levels` says which prefix of this matrix each level
    /// of the model means, in the order of [`Level::ALL`].
    ///
    /// # Errors
    /// [`EngineError::Nested`] if a plane does not have the length of the shape, or plane P2 holds
    /// a scale, step or table that cannot be.
    pub fn new(
        rows: usize,
        cols: usize,
        layout: Layout,
        codec: impl Into<Codec>,
        regions: PlaneRegions,
        levels: [Level; 5],
    ) -> Result<Self, EngineError> {
        let codec = codec.into();
        NestedView::new(rows, cols, layout, &codec, regions.planes())?.check()?;
        Self::known(rows, cols, layout, codec, regions, levels)
    }

    /// [`NestedMatrix::new`] with a plane P2 that went through it before: scales, steps and tables
    /// are not looked at again.
    ///
    /// # Errors
    /// [`EngineError::Nested`] if a plane does not have the length of the shape.
    pub fn known(
        rows: usize,
        cols: usize,
        layout: Layout,
        codec: impl Into<Codec>,
        regions: PlaneRegions,
        levels: [Level; 5],
    ) -> Result<Self, EngineError> {
        let codec = codec.into();
        let view = NestedView::new(rows, cols, layout, &codec, regions.planes())?;
        let sizes = Box::new(view.sizes().clone());
        Ok(Self { codec, regions, levels, sizes })
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.sizes.rows()
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.sizes.cols()
    }

    /// How the planes are laid out.
    pub fn layout(&self) -> Layout {
        self.sizes.layout()
    }

    /// The codec.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// The planes.
    pub fn regions(&self) -> &PlaneRegions {
        &self.regions
    }

    /// The prefix of this matrix that a level of the model means.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub fn prefix(&self, level: Level) -> Result<Level, EngineError> {
        let (prefix, held) = (self.levels[level.index()], self.sizes.level());
        if prefix <= held {
            return Ok(prefix);
        }
        Err(EngineError::LevelMissing { asked: prefix.bits(), held: held.bits() })
    }

    /// The prefix that each level of the model means, whether or not its planes are held.
    pub fn levels(&self) -> [Level; 5] {
        self.levels
    }

    /// The same matrix, of which every level of the model means at most the prefix of `level`.
    pub fn at_most(self, level: Level) -> Self {
        Self { levels: self.levels.map(|prefix| prefix.min(level)), ..self }
    }

    /// The same matrix, of which every level of the model means at most the planes that are there.
    pub fn at_most_held(self) -> Self {
        let held = self.sizes.level();
        self.at_most(held)
    }

    /// The same codes in other planes.
    ///
    /// # Errors
    /// As [`NestedMatrix::new`].
    pub fn with_layout(&self, layout: Layout, regions: PlaneRegions) -> Result<Self, EngineError> {
        Self::new(self.rows(), self.cols(), layout, self.codec.clone(), regions, self.levels)
    }

    /// The scalar reader of the planes.
    pub fn view(&self) -> NestedView<'_> {
        self.sizes.view(&self.codec, self.regions.planes())
    }
}

/// How a nested matrix is multiplied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationMode {
    /// Activations quantized to int8 per group of 32: the path that ships.
    #[default]
    Int8,
    /// Weights decoded to float, float activations: judges the weights alone.
    Float,
}

/// One matrix of a model, in any of the forms that a backend can take.
#[derive(Clone, Debug)]
pub enum MatrixWeights {
    /// Floats, multiplied with float activations.
    Float(FloatMatrix),
    /// Codes in planes, multiplied as the [`ActivationMode`] says.
    Nested(NestedMatrix),
}

impl MatrixWeights {
    /// Outputs.
    pub fn rows(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.rows(),
            Self::Nested(matrix) => matrix.rows(),
        }
    }

    /// What inputs go through before a product; backends do it where they take the inputs.
    pub fn inputs(&self) -> InputTransform {
        match self {
            Self::Float(_) => InputTransform::None,
            Self::Nested(matrix) => matrix.codec().inputs(),
        }
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.cols(),
            Self::Nested(matrix) => matrix.cols(),
        }
    }

    /// Bytes of the planes that a level uses, as a store holds them.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        match self {
            Self::Float(matrix) => matrix.bytes().len() as u64,
            Self::Nested(matrix) => {
                let prefix = matrix.prefix(level).unwrap_or(Level::L2);
                let planes = Level::ALL.into_iter().filter(|level| *level <= prefix);
                let (rows, cols, form) = (matrix.rows(), matrix.cols(), matrix.codec().form());
                let bytes = planes
                    .map(|level| form.plane_bytes(matrix.layout(), rows, cols, level.plane()))
                    // Default: a size that overflows was refused when the matrix was made.
                    .map(|bytes| bytes.unwrap_or(0) as u64);
                bytes.sum()
            }
        }
    }

    /// Bytes that a product reads of it at a level of the model; 0 for a level that is not held.
    pub fn read_bytes(&self, level: Level) -> u64 {
        match self {
            Self::Float(matrix) => matrix.bytes().len() as u64,
            Self::Nested(matrix) => {
                matrix.prefix(level).map_or(0, |prefix| matrix.regions().read_bytes(prefix))
            }
        }
    }
}

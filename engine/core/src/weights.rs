//! Weights in host memory: owned or mapped bytes with a shape.

use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use nestling_formats::memory::try_with_capacity;
use nestling_formats::nested::{
    CheckedSizes, Codec, InputTransform, Layout, NestedPlanes, NestedView, PlaneRows,
};
use nestling_formats::{DType, Invariant, Level, Plane};

use crate::arena::AlignedBytes;
use crate::error::EngineError;

/// A range of shared bytes with their owner: an arena, a mapped file or a vector.
#[derive(Clone)]
pub struct ByteRegion {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    length: usize,
}

impl ByteRegion {
    /// Returns `length` bytes of `owner` at `start`, or `None` if the owner is too short.
    pub fn new(
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
        length: usize,
    ) -> Option<Self> {
        let end = start.checked_add(length)?;
        (*owner).as_ref().get(start..end)?;
        Some(Self { owner, start, length })
    }

    /// Creates a region that owns a vector.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        Self { owner: Arc::new(bytes), start: 0, length }
    }

    /// Creates a region that owns aligned bytes.
    pub fn from_aligned(bytes: AlignedBytes) -> Self {
        let length = bytes.as_ref().len();
        Self { owner: Arc::new(bytes), start: 0, length }
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.length]
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
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
    /// Creates a matrix from a shape and bytes.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the length of the region does not match the shape.
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

    /// Creates a matrix of 32-bit floats.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if there are not `rows * cols` values.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Result<Self, EngineError> {
        let mut bytes = try_with_capacity("a float matrix", values.len().saturating_mul(4))?;
        values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
        Self::new(rows, cols, DType::F32, ByteRegion::from_vec(bytes))
    }

    /// Converts to bfloat16 if that is lossless for all values, as in a router trained in bfloat16; halves
    /// the memory.
    ///
    /// # Errors
    /// [`EngineError::Memory`] if the allocation fails.
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

    /// Copies some rows to a matrix of their own.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the matrix lacks a row, and [`EngineError::Memory`] if the allocation fails.
    pub fn copy_rows(&self, rows: Range<usize>) -> Result<Self, EngineError> {
        let of_row = self.cols * self.dtype.bytes();
        let bytes = self.bytes().get(rows.start * of_row..rows.end * of_row).ok_or_else(|| {
            let expected = format!("rows of {}", self.rows);
            EngineError::mismatch("rows of a matrix", expected, format!("{rows:?}"))
        })?;
        let mut out = AlignedBytes::zeroed("rows of a matrix", bytes.len())?;
        out.bytes_mut().copy_from_slice(bytes);
        Self::new(rows.len(), self.cols, self.dtype, ByteRegion::from_aligned(out))
    }

    /// Returns the number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of columns (inputs).
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns all elements, `[rows, cols]`.
    pub fn bytes(&self) -> &[u8] {
        self.region.bytes()
    }

    /// Reads one row as 32-bit floats into `out`, which holds `cols` values. A row beyond the matrix is all
    /// zeros.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let size = self.dtype.bytes();
        let start = row * self.cols * size;
        // Default: a row beyond the matrix is all zeros.
        let bytes = self.bytes().get(start..start + self.cols * size).unwrap_or_default();
        out.fill(0.0);
        self.dtype.decode(bytes, out);
    }
}

/// The available planes of a nested matrix, with P3 and P4 either apart or merged.
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
    /// Returns the bytes that a prefix of the codes reads, including scales and tables.
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

    /// Returns the bytes of each plane.
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
    /// Creates a matrix from a shape, a codec and planes. `levels` gives the prefix of this matrix for each
    /// level of the model, in the order of [`Level::ALL`].
    ///
    /// # Errors
    /// [`EngineError::Nested`] if the length of a plane does not match the shape, or plane P2 has an invalid
    /// scale, step or table.
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
        Self::new_checked(rows, cols, layout, codec, regions, levels)
    }

    /// Creates a matrix as [`NestedMatrix::new`] does, from a plane P2 that was checked before: scales, steps
    /// and tables are not checked again.
    ///
    /// # Errors
    /// [`EngineError::Nested`] if the length of a plane does not match the shape.
    pub fn new_checked(
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

    /// Returns the number of rows (outputs).
    pub fn rows(&self) -> usize {
        self.sizes.rows()
    }

    /// Returns the number of columns (inputs).
    pub fn cols(&self) -> usize {
        self.sizes.cols()
    }

    /// Returns the layout of the planes.
    pub fn layout(&self) -> Layout {
        self.sizes.layout()
    }

    /// Returns the codec.
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Returns the planes.
    pub fn regions(&self) -> &PlaneRegions {
        &self.regions
    }

    /// Returns the prefix of this matrix for a level of the model.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if the planes of the prefix are not available.
    pub fn prefix(&self, level: Level) -> Result<Level, EngineError> {
        let (prefix, held) = (self.levels[level.index()], self.sizes.level());
        if prefix <= held {
            return Ok(prefix);
        }
        Err(EngineError::LevelMissing { asked: prefix.bits(), held: held.bits() })
    }

    /// Returns the prefix for each level of the model, even if its planes are not available.
    pub fn levels(&self) -> [Level; 5] {
        self.levels
    }

    /// Limits the prefix for all levels of the model to `level`.
    pub fn at_most(self, level: Level) -> Self {
        Self { levels: self.levels.map(|prefix| prefix.min(level)), ..self }
    }

    /// Limits the prefix for all levels of the model to the available planes.
    pub fn at_most_held(self) -> Self {
        let held = self.sizes.level();
        self.at_most(held)
    }

    /// Returns the same codes in another layout.
    ///
    /// # Errors
    /// The errors of [`NestedMatrix::new`].
    pub fn with_layout(&self, layout: Layout, regions: PlaneRegions) -> Result<Self, EngineError> {
        Self::new(self.rows(), self.cols(), layout, self.codec.clone(), regions, self.levels)
    }

    /// Copies some rows, whole tiles, to a matrix of their own.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the rows are not whole tiles of the matrix, and [`EngineError::Memory`] if the
    /// allocation fails.
    pub fn copy_rows(&self, rows: Range<usize>) -> Result<Self, EngineError> {
        let held = &self.regions;
        let copy = |region: &ByteRegion, place: Option<PlaneRows>| {
            let expected = format!("whole tiles of {} rows", self.rows());
            let place = place.ok_or_else(|| {
                EngineError::mismatch("rows of a matrix", expected, format!("{rows:?}"))
            })?;
            copy_parts(region, &place)
        };
        let plane = |region: &Option<ByteRegion>, plane| {
            let place = || self.sizes.rows_of_plane(plane, rows.clone());
            region.as_ref().map(|region| copy(region, place())).transpose()
        };
        let merged = || self.sizes.rows_of_merged(rows.clone());
        let regions = PlaneRegions {
            p2: copy(&held.p2, self.sizes.rows_of_plane(Plane::P2, rows.clone()))?,
            p3: plane(&held.p3, Plane::P3)?,
            p4: plane(&held.p4, Plane::P4)?,
            p34: held.p34.as_ref().map(|region| copy(region, merged())).transpose()?,
            p6: plane(&held.p6, Plane::P6)?,
            p8: plane(&held.p8, Plane::P8)?,
        };
        let (cols, layout, codec) = (self.cols(), self.layout(), self.codec.clone());
        Self::new_checked(rows.len(), cols, layout, codec, regions, self.levels)
    }

    /// Returns a scalar reader of the planes.
    pub fn view(&self) -> NestedView<'_> {
        self.sizes.view(&self.codec, self.regions.planes())
    }
}

fn copy_parts(region: &ByteRegion, rows: &PlaneRows) -> Result<ByteRegion, EngineError> {
    let mut out = AlignedBytes::zeroed("rows of a matrix", rows.bytes)?;
    for (source, start) in &rows.copies {
        let bytes = region.bytes().get(source.clone());
        let bytes = bytes.invariant("a plane has the length of its matrix")?;
        out.bytes_mut()[*start..*start + bytes.len()].copy_from_slice(bytes);
    }
    Ok(ByteRegion::from_aligned(out))
}

/// Multiplication mode of nested matrices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActivationMode {
    /// Activations quantized to int8 per group of 32; the default for inference.
    #[default]
    Int8,
    /// Weights decoded to float, with float activations; for measuring the error of the weights alone.
    Float,
}

/// A matrix of a model, in any form that a backend supports.
#[derive(Clone, Debug)]
pub enum MatrixWeights {
    /// Floats, multiplied with float activations.
    Float(FloatMatrix),
    /// Codes in planes, multiplied according to the [`ActivationMode`].
    Nested(NestedMatrix),
}

impl MatrixWeights {
    /// Copies some rows to a matrix of their own; of codes, whole tiles.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the matrix lacks a row or a tile is cut, and [`EngineError::Memory`] if the
    /// allocation fails.
    pub fn copy_rows(&self, rows: Range<usize>) -> Result<Self, EngineError> {
        Ok(match self {
            Self::Float(matrix) => Self::Float(matrix.copy_rows(rows)?),
            Self::Nested(matrix) => Self::Nested(matrix.copy_rows(rows)?),
        })
    }

    /// Returns the number of rows (outputs).
    pub fn rows(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.rows(),
            Self::Nested(matrix) => matrix.rows(),
        }
    }

    /// Returns the transform of inputs before a product; backends apply it to the activations.
    pub fn inputs(&self) -> InputTransform {
        match self {
            Self::Float(_) => InputTransform::None,
            Self::Nested(matrix) => matrix.codec().inputs(),
        }
    }

    /// Returns the number of columns (inputs).
    pub fn cols(&self) -> usize {
        match self {
            Self::Float(matrix) => matrix.cols(),
            Self::Nested(matrix) => matrix.cols(),
        }
    }

    /// Returns the size in bytes of the planes that a level uses, as stored in a store.
    pub fn prefix_bytes(&self, level: Level) -> u64 {
        match self {
            Self::Float(matrix) => matrix.bytes().len() as u64,
            Self::Nested(matrix) => {
                let prefix = matrix.prefix(level).unwrap_or(Level::L2);
                let planes = Level::ALL.into_iter().filter(|level| *level <= prefix);
                let (rows, cols, form) = (matrix.rows(), matrix.cols(), matrix.codec().form());
                let bytes = planes
                    .map(|level| form.plane_bytes(matrix.layout(), rows, cols, level.plane()))
                    // Default: overflowing sizes were rejected when the matrix was created.
                    .map(|bytes| bytes.unwrap_or(0) as u64);
                bytes.sum()
            }
        }
    }

    /// Returns the bytes that a product reads at a level of the model; 0 if the level is not available.
    pub fn read_bytes(&self, level: Level) -> u64 {
        match self {
            Self::Float(matrix) => matrix.bytes().len() as u64,
            Self::Nested(matrix) => {
                matrix.prefix(level).map_or(0, |prefix| matrix.regions().read_bytes(prefix))
            }
        }
    }
}

//! Weight matrices in memory of the device.

use nestling_engine::EngineError;
use nestling_engine::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;
use nestling_formats::nested::InputTransform;

use crate::device::Gpu;
use crate::matrix_image::MatrixImage;
use crate::memory::word;
use crate::slabs::{Place, Slabs};

/// Weights with the way to multiply them.
#[derive(Debug)]
pub struct WgpuMatrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) kind: ProductKind,
    /// Whether its inputs are rotated before the product.
    pub(crate) rotated: bool,
    /// Ascending rows.
    pub(crate) parts: Vec<MatrixPart>,
    levels: [HeldLevel; 5],
}

/// What a matrix is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductKind {
    /// Activations in int8.
    Int8,
    /// Activations as they are.
    Float,
}

/// Rows of a matrix that lie together.
#[derive(Debug)]
pub(crate) struct MatrixPart {
    /// Where their image is.
    pub place: Place,
    /// The first row, a multiple of 16.
    pub first_row: usize,
    /// How many.
    pub rows: usize,
}

/// What a level of the model means for a matrix.
#[derive(Clone, Copy, Debug)]
struct HeldLevel {
    /// Place of the prefix among the levels, or what is asked for and held, in bits.
    prefix: Result<u32, (u8, u8)>,
    read_bytes: u64,
    prefix_bytes: u64,
}

impl WgpuMatrix {
    /// Uploads a matrix, before whatever is submitted next.
    ///
    /// # Errors
    /// A device whose memory is full; weights in a form that no kernel reads.
    pub(crate) fn new(
        (gpu, slabs): (&Gpu, &Slabs),
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        // Kernels count in 32 bits.
        word("elements of a row", weights.cols())?;
        word("rows of a matrix", weights.rows())?;
        let mut parts = Vec::new();
        let mut bytes = Vec::new();
        for image in MatrixImage::of(weights, gpu.binding_bytes_max())? {
            let place = slabs.place(gpu, image.bytes as u64)?;
            image.write(&mut bytes);
            gpu.write(&place.buffer, place.offset, &bytes);
            parts.push(MatrixPart { place, first_row: image.first_row, rows: image.rows });
        }
        let nested = matches!(weights, MatrixWeights::Nested(_));
        let int8 = nested && activations == ActivationMode::Int8;
        Ok(Self {
            rows: weights.rows(),
            cols: weights.cols(),
            kind: if int8 { ProductKind::Int8 } else { ProductKind::Float },
            rotated: weights.inputs() == InputTransform::Hadamard,
            parts,
            levels: Level::ALL.map(|level| HeldLevel::new(weights, level)),
        })
    }

    /// The prefix of its codes that a level of the model means, as its place among the levels.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`] if its planes are not held.
    pub(crate) fn prefix(&self, level: Level) -> Result<u32, EngineError> {
        let prefix = self.levels[level.index()].prefix;
        prefix.map_err(|(asked, held)| EngineError::LevelMissing { asked, held })
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn read_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].read_bytes
    }

    pub(crate) fn prefix_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].prefix_bytes
    }
}

impl HeldLevel {
    fn new(weights: &MatrixWeights, level: Level) -> Self {
        let prefix = match weights {
            MatrixWeights::Nested(matrix) => match matrix.prefix(level) {
                Ok(prefix) => Ok(prefix.index() as u32),
                Err(EngineError::LevelMissing { asked, held }) => Err((asked, held)),
                Err(_) => Err((level.bits(), 0)),
            },
            _ => Ok(level.index() as u32),
        };
        let (read_bytes, prefix_bytes) = (weights.read_bytes(level), weights.prefix_bytes(level));
        Self { prefix, read_bytes, prefix_bytes }
    }
}

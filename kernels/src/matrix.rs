//! Weight matrices in memory of the device.

use nestling_engine::EngineError;
use nestling_engine::weights::{ActivationMode, FloatMatrix, MatrixWeights, NestedMatrix};
use nestling_formats::nested::{GROUP, InputTransform, Layout, TILE_ROWS, base_parts};
use nestling_formats::{DType, Level};

use crate::driver::Address;
use crate::memory::word;
use crate::params::Matrix;
use crate::recorder::Recorder;
use crate::slabs::Place;

/// Bytes before the codec in a matrix's head: what kernels read first.
const CODEC_OFFSET: u64 = 256;

/// A prefix that is not held, as kernels read it.
const NO_PREFIX: u32 = 15;

/// Weights with the way to multiply them.
pub struct CudaMatrix {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) kind: ProductKind,
    /// Whether its inputs are rotated before the product.
    pub(crate) rotated: bool,
    /// What kernels read, as it is on the device too.
    pub(crate) described: Matrix,
    /// The description, then the codec.
    head: Place,
    /// What it names.
    _planes: Vec<Place>,
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

/// What a level of the model means for a matrix.
#[derive(Clone, Copy, Debug)]
struct HeldLevel {
    /// Place of the prefix among the levels, or what is asked for and held, in bits.
    prefix: Result<u32, (u8, u8)>,
    read_bytes: u64,
    prefix_bytes: u64,
}

/// How a matrix lies in memory, as kernels number it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Form {
    F32 = 0,
    F16 = 1,
    Bf16 = 2,
    Tile16 = 3,
    RowMajor = 4,
}

impl CudaMatrix {
    /// Uploads a matrix, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device whose memory is full; weights in a form that no kernel reads.
    pub(crate) fn new(
        recorder: &mut Recorder,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let levels = Level::ALL.map(|level| HeldLevel::new(weights, level));
        let mut described = Matrix {
            rows: word("rows of a matrix", weights.rows())?,
            cols: word("elements of a row", weights.cols())?,
            prefixes: prefixes(&levels),
            ..Matrix::default()
        };
        let (codec, planes) = match weights {
            MatrixWeights::Float(matrix) => {
                (Vec::new(), vec![float_plane(recorder, matrix, &mut described)?])
            }
            MatrixWeights::Nested(matrix) => {
                (matrix.codec().to_bytes(), nested_planes(recorder, matrix, &mut described)?)
            }
            _ => return Err(EngineError::mismatch("matrix", "floats or the nested code", "other")),
        };
        let head = recorder.place(CODEC_OFFSET as usize + codec.len())?;
        described.codec = head.address() + CODEC_OFFSET;
        recorder.fill(&head, 0, bytemuck::bytes_of(&described))?;
        recorder.fill(&head, CODEC_OFFSET, &codec)?;
        let nested = matches!(weights, MatrixWeights::Nested(_));
        let int8 = nested && activations == ActivationMode::Int8;
        Ok(Self {
            rows: weights.rows(),
            cols: weights.cols(),
            kind: if int8 { ProductKind::Int8 } else { ProductKind::Float },
            rotated: weights.inputs() == InputTransform::Hadamard,
            described,
            head,
            _planes: planes,
            levels,
        })
    }

    /// Where its description is.
    pub(crate) fn address(&self) -> Address {
        self.head.address()
    }

    /// Tiles of 16 rows.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Whether rows lie interleaved by 16.
    pub(crate) fn is_tiled(&self) -> bool {
        self.described.form == Form::Tile16 as u32
    }

    /// # Errors
    /// [`EngineError::LevelMissing`] for a level whose planes are not held.
    pub(crate) fn check(&self, level: Level) -> Result<(), EngineError> {
        let prefix = self.levels[level.index()].prefix;
        prefix.map(|_| ()).map_err(|(asked, held)| EngineError::LevelMissing { asked, held })
    }

    pub(crate) fn read_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].read_bytes
    }

    pub(crate) fn prefix_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].prefix_bytes
    }
}

/// The prefix of each level, four bits for each.
fn prefixes(levels: &[HeldLevel; 5]) -> u32 {
    let places = (0..).zip(levels).map(|(place, level)| (place, level.prefix.unwrap_or(NO_PREFIX)));
    places.fold(0, |all, (place, prefix)| all | prefix << (4 * place))
}

fn float_plane(
    recorder: &mut Recorder,
    matrix: &FloatMatrix,
    described: &mut Matrix,
) -> Result<Place, EngineError> {
    let form = match matrix.dtype() {
        DType::F32 => Form::F32,
        DType::F16 => Form::F16,
        DType::Bf16 => Form::Bf16,
        DType::U8 => return Err(EngineError::mismatch("float matrix", "floats", "bytes")),
    };
    let place = recorder.upload(matrix.bytes())?;
    (described.form, described.row_scales) = (form as u32, place.address());
    Ok(place)
}

/// Planes lie as a store has them.
fn nested_planes(
    recorder: &mut Recorder,
    matrix: &NestedMatrix,
    described: &mut Matrix,
) -> Result<Vec<Place>, EngineError> {
    let (layout, planes) = (matrix.layout(), matrix.regions().planes());
    let parts = base_parts(layout, matrix.rows(), matrix.cols());
    let parts = parts.ok_or_else(|| EngineError::mismatch("matrix", "a shape", "none"))?;
    let form = if layout == Layout::Tile16 { Form::Tile16 } else { Form::RowMajor };
    described.form = form as u32;
    described.groups = word("groups of a row", matrix.cols().div_ceil(GROUP))?;
    described.is_merged = u32::from(planes.p34.is_some());
    let base = recorder.upload(planes.p2)?;
    let at = |part: &std::ops::Range<usize>| base.address() + part.start as u64;
    described.row_scales = at(&parts.row_scales);
    described.tile_tables = at(&parts.tile_tables);
    described.steps = at(&parts.steps);
    described.step_high = at(&parts.step_high);
    described.p2 = at(&parts.codes);
    let mut places = vec![base];
    let p4 = if planes.p34.is_some() { None } else { planes.p4 };
    for (plane, address) in [
        (planes.p34.or(planes.p3), &mut described.p3),
        (p4, &mut described.p4),
        (planes.p6, &mut described.p6),
        (planes.p8, &mut described.p8),
    ] {
        let Some(plane) = plane else { continue };
        let place = recorder.upload(plane)?;
        *address = place.address();
        places.push(place);
    }
    Ok(places)
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

//! Weight matrices in memory of the device.

use nestling_engine::EngineError;
use nestling_engine::weights::{ActivationMode, MatrixWeights, NestedMatrix};
use nestling_formats::nested::{InputTransform, Layout, plane_bytes};
use nestling_formats::{Level, Plane};

use crate::device::Gpu;
use crate::matrix_image::MatrixImage;
use crate::memory::word;
use crate::recorder::Recorder;
use crate::slabs::{Place, Slabs};
use crate::slots::{PlanePlaces, Room};

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
    /// What is known of one in a slot, whose planes come one by one.
    slot: Option<InSlot>,
}

/// A nested matrix in a slot.
#[derive(Debug)]
struct InSlot {
    layout: Layout,
    /// Places of planes from the beginning of the matrix on, in bytes.
    planes: PlanePlaces,
    /// The highest level that the planes make which are there.
    held: Level,
    /// The prefix that each level of the model means once its planes are there.
    prefixes: [Level; 5],
}

/// What a matrix is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProductKind {
    /// Activations in int8.
    Int8,
    /// Activations as they are.
    Float,
}

impl ProductKind {
    pub(crate) fn of(nested: bool, activations: ActivationMode) -> Self {
        if nested && activations == ActivationMode::Int8 { Self::Int8 } else { Self::Float }
    }
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
        let levels = Level::ALL.map(|level| HeldLevel::new(weights, level));
        Ok(Self::of(weights, activations, (parts, levels)))
    }

    fn of(
        weights: &MatrixWeights,
        activations: ActivationMode,
        (parts, levels): (Vec<MatrixPart>, [HeldLevel; 5]),
    ) -> Self {
        let nested = matches!(weights, MatrixWeights::Nested(_));
        Self {
            rows: weights.rows(),
            cols: weights.cols(),
            kind: ProductKind::of(nested, activations),
            rotated: weights.inputs() == InputTransform::Hadamard,
            parts,
            levels,
            slot: None,
        }
    }

    /// Puts a matrix into a slot, with the planes that it has, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that does not fit its place; a device that is lost.
    pub(crate) fn in_slot(
        recorder: &mut Recorder,
        room: Room,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        let image = MatrixImage::base(weights, &room.planes)?;
        let first_plane = room.planes.into_iter().find(|place| *place > 0);
        if image.bytes > first_plane.unwrap_or(room.bytes) {
            let (expected, found) = (format!("{} bytes", room.bytes), image.bytes);
            return Err(EngineError::mismatch("a matrix in a slot", expected, found));
        }
        let mut bytes = Vec::new();
        image.write(&mut bytes);
        recorder.upload(Some(room.slot), (&room.buffer, room.offset), &bytes)?;
        let place = Place::of_slot(room.slab, room.buffer, (room.slot, room.offset));
        let rows = image.rows;
        let parts = vec![MatrixPart { place, first_row: 0, rows }];
        let levels = Level::ALL.map(|level| HeldLevel::new(weights, level));
        let mut matrix = Self::of(weights, activations, (parts, levels));
        if let MatrixWeights::Nested(nested) = weights {
            matrix.slot = Some(InSlot {
                layout: nested.layout(),
                planes: room.planes,
                held: Level::L2,
                prefixes: nested.levels(),
            });
            matrix.add_held(recorder, nested)?;
        }
        Ok(matrix)
    }

    /// Adds the planes above the first that a matrix has.
    fn add_held(
        &mut self,
        recorder: &mut Recorder,
        matrix: &NestedMatrix,
    ) -> Result<(), EngineError> {
        let held = matrix.regions().planes();
        for (plane, bytes) in Plane::ALL[1..].iter().zip([held.p3, held.p4, held.p6, held.p8]) {
            let Some(bytes) = bytes else { break };
            self.add_plane(recorder, *plane, bytes)?;
        }
        self.set_levels();
        Ok(())
    }

    /// Puts one plane more into the slot, behind all that was recorded.
    ///
    /// # Errors
    /// A matrix that is in no slot or lacks the plane before; a plane of another size or without a
    /// place; a device that is lost.
    pub(crate) fn add_plane(
        &mut self,
        recorder: &mut Recorder,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        let (rows, cols) = (self.rows, self.cols);
        let (Some(slot), [part]) = (&mut self.slot, self.parts.as_slice()) else {
            return Err(EngineError::mismatch(
                "plane of a matrix",
                "a matrix in a slot",
                "another",
            ));
        };
        let place = slot.planes[plane.index()];
        if slot.held.index() + 1 != plane.index() || place == 0 {
            let expected = format!("the one after level {}", slot.held.bits());
            return Err(EngineError::mismatch("plane of a matrix", expected, format!("{plane:?}")));
        }
        let expected = plane_bytes(slot.layout, rows, cols, plane).unwrap_or(0);
        if bytes.len() != expected {
            return Err(EngineError::mismatch("bytes of a plane", expected, bytes.len()));
        }
        let to = (&part.place.buffer, part.place.offset + place as u64);
        recorder.upload(part.place.slot, to, bytes)?;
        slot.held = plane.level();
        self.set_levels();
        Ok(())
    }

    /// What levels of the model mean with the planes that are there.
    fn set_levels(&mut self) {
        let Some(slot) = &self.slot else { return };
        let bytes = |plane| plane_bytes(slot.layout, self.rows, self.cols, plane).unwrap_or(0);
        self.levels = slot.prefixes.map(|prefix| {
            let prefix = prefix.min(slot.held);
            let planes = Plane::ALL.into_iter().filter(|plane| plane.level() <= prefix);
            let bytes = planes.map(|plane| bytes(plane) as u64).sum();
            HeldLevel { prefix: Ok(prefix.index() as u32), read_bytes: bytes, prefix_bytes: bytes }
        });
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

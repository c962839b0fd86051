//! Layout of streamed experts in slots. Each matrix and each of its planes has a fixed position, so an
//! arriving plane is written without moving other data.

use nestling_core::EngineError;
use nestling_core::backend::{ExpertShape, MatrixForm, MatrixShape};
use nestling_formats::Plane;

/// Alignment of slots in bytes.
pub const SLOT_ALIGN: u64 = 256;

/// Layout of a matrix and its planes in a slot.
pub trait MatrixLayout: Copy + Send + Sync {
    /// Places a matrix at byte `start` or after it. Returns `None` if sizes overflow.
    fn of(shape: &MatrixShape, start: u64) -> Option<Self>;

    /// Returns the end of the matrix, in bytes from the start of the slot.
    fn end(&self) -> u64;
}

/// Sizes in bytes of the planes that a matrix may have. A float matrix has all its elements in the first
/// plane.
#[derive(Clone, Copy, Debug)]
pub struct PlaneSizes([Option<usize>; Plane::ALL.len()]);

impl PlaneSizes {
    /// Returns the sizes for a shape, or `None` if they overflow.
    pub fn of(shape: &MatrixShape) -> Option<Self> {
        let mut sizes = [None; Plane::ALL.len()];
        match shape.form {
            MatrixForm::Float(dtype) => {
                let count = shape.rows.checked_mul(shape.cols)?;
                sizes[0] = Some(count.checked_mul(dtype.bytes())?);
            }
            MatrixForm::Nested { planes, layout, level, .. } => {
                for plane in Plane::ALL.into_iter().filter(|plane| plane.level() <= level) {
                    let bytes = planes.plane_bytes(layout, shape.rows, shape.cols, plane)?;
                    sizes[plane.index()] = Some(bytes);
                }
            }
        }
        Some(Self(sizes))
    }

    /// Returns the size of the first plane in bytes.
    pub fn first(&self) -> Option<usize> {
        self.0[0]
    }

    /// Calls `take` with the size of each present plane, in order, and returns the results by plane.
    pub fn rooms<T>(
        &self,
        mut take: impl FnMut(usize) -> Option<T>,
    ) -> Option<[Option<T>; Plane::ALL.len()]> {
        let mut rooms = [const { None }; Plane::ALL.len()];
        for (room, size) in rooms.iter_mut().zip(self.0) {
            if let Some(bytes) = size {
                *room = Some(take(bytes)?);
            }
        }
        Some(rooms)
    }

    /// Returns the sizes without the first plane.
    #[must_use]
    pub fn above_first(mut self) -> Self {
        self.0[0] = None;
        self
    }
}

/// Shape of a layer's experts and their layout in a slot.
#[derive(Clone, Copy, Debug)]
struct LayerRooms<R> {
    shape: ExpertShape,
    rooms: [R; 3],
}

impl<R: MatrixLayout> LayerRooms<R> {
    fn of(shape: &ExpertShape) -> Option<Self> {
        let [gate, up, down] = &shape.matrices;
        let gate = R::of(gate, 0)?;
        let up = if shape.activation.has_gate() { R::of(up, gate.end())? } else { gate };
        let down = R::of(down, up.end())?;
        Some(Self { shape: *shape, rooms: [gate, up, down] })
    }
}

/// Layout of a model's streamed experts in slots of equal size.
#[derive(Clone, Debug)]
pub struct SlotLayout<R> {
    layers: Vec<Option<LayerRooms<R>>>,
    slot_bytes: u64,
}

impl<R: MatrixLayout> SlotLayout<R> {
    /// Creates a layout. `None` is a layer without streamed experts.
    ///
    /// # Errors
    /// Returns an error if sizes overflow.
    pub fn of(shapes: &[Option<ExpertShape>]) -> Result<Self, EngineError> {
        let overflow = || EngineError::mismatch("sizes of experts", "sizes that fit", "more");
        let rooms = |shape: &ExpertShape| LayerRooms::<R>::of(shape).ok_or_else(overflow);
        let layers = shapes.iter().map(|shape| shape.as_ref().map(rooms).transpose());
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        let ends = layers.iter().flatten().map(|layer| layer.rooms[2].end());
        let largest = ends.max().unwrap_or(1);
        let slot_bytes = largest.checked_next_multiple_of(SLOT_ALIGN).ok_or_else(overflow)?;
        Ok(Self { layers, slot_bytes })
    }

    /// Returns the size of a slot in bytes, which fits any expert.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// Returns the shape of a layer's experts.
    pub fn shape(&self, layer: usize) -> Option<&ExpertShape> {
        self.layers.get(layer)?.as_ref().map(|layer| &layer.shape)
    }

    /// Returns the layout of a matrix of a layer's experts: 0 is gate, 1 is up, 2 is down.
    pub fn room(&self, layer: usize, matrix: usize) -> Option<&R> {
        self.layers.get(layer)?.as_ref()?.rooms.get(matrix)
    }

    /// Returns the number of slots in a budget of `bytes` bytes, at least one.
    pub fn slots_in(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.slot_bytes).unwrap_or(usize::MAX).max(1)
    }
}

//! How streamed experts lie in slots: each matrix has room of its own, and so has each of its planes. A plane
//! that arrives is written where it belongs, and nothing else of the expert is.

use nestling_core::EngineError;
use nestling_core::backend::{ExpertShape, MatrixForm, MatrixShape};
use nestling_formats::Plane;

/// Slots begin at multiples of so many bytes.
pub const SLOT_ALIGN: u64 = 256;

/// Where a matrix and its planes lie in a slot.
pub trait MatrixRoom: Copy + Send + Sync {
    /// Room behind what ends at `start`; none for sizes that overflow.
    fn of(shape: &MatrixShape, start: u64) -> Option<Self>;

    /// Where it ends, in bytes from the slot's beginning.
    fn end(&self) -> u64;
}

/// Bytes of each plane that a matrix of a shape may have. All elements of a float matrix are its first.
#[derive(Clone, Copy, Debug)]
pub struct PlaneSizes([Option<usize>; Plane::ALL.len()]);

impl PlaneSizes {
    /// None for sizes that overflow.
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

    /// The first plane's bytes.
    pub fn first(&self) -> Option<usize> {
        self.0[0]
    }

    /// Each plane's room, which `take` gives to those that there are, in their order.
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

    /// Those of the planes above the first.
    #[must_use]
    pub fn above_first(mut self) -> Self {
        self.0[0] = None;
        self
    }
}

/// How a layer's experts look, and how they lie in a slot.
#[derive(Clone, Copy, Debug)]
struct LayerRooms<R> {
    shape: ExpertShape,
    rooms: [R; 3],
}

impl<R: MatrixRoom> LayerRooms<R> {
    fn of(shape: &ExpertShape) -> Option<Self> {
        let [gate, up, down] = &shape.matrices;
        let gate = R::of(gate, 0)?;
        let up = R::of(up, gate.end())?;
        let down = R::of(down, up.end())?;
        Some(Self { shape: *shape, rooms: [gate, up, down] })
    }
}

/// How the streamed experts of a model lie in slots of one size.
#[derive(Clone, Debug)]
pub struct SlotLayout<R> {
    layers: Vec<Option<LayerRooms<R>>>,
    slot_bytes: u64,
}

impl<R: MatrixRoom> SlotLayout<R> {
    /// That of these layers; none is a layer without streamed experts.
    ///
    /// # Errors
    /// Sizes that overflow.
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

    /// Bytes of a slot, which has room for any expert.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// How the experts of a layer look.
    pub fn shape(&self, layer: usize) -> Option<&ExpertShape> {
        self.layers.get(layer)?.as_ref().map(|layer| &layer.shape)
    }

    /// Where a matrix of a layer's experts lies: gate, up or down.
    pub fn room(&self, layer: usize, matrix: usize) -> Option<&R> {
        self.layers.get(layer)?.as_ref()?.rooms.get(matrix)
    }

    /// Slots of a budget, at least one.
    pub fn slots_in(&self, bytes: u64) -> usize {
        usize::try_from(bytes / self.slot_bytes).unwrap_or(usize::MAX).max(1)
    }
}

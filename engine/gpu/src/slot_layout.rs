//! How streamed experts lie in slots: each matrix has a fixed place, and so has each of its planes. A plane
//! that arrives is written where it belongs, and nothing else of the expert is.

use nestling_core::EngineError;
use nestling_core::backend::{ExpertShape, MatrixShape};

/// Slots begin at multiples of so many bytes.
pub const SLOT_ALIGN: u64 = 256;

/// Where a matrix and its planes lie in a slot.
pub trait MatrixRoom: Copy + Send + Sync {
    /// Room behind what ends at `start`; none for sizes that overflow.
    fn of(shape: &MatrixShape, start: u64) -> Option<Self>;

    /// Where it ends, in bytes from the slot's beginning.
    fn end(&self) -> u64;
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

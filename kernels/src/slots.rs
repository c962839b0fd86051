//! Memory for streamed experts: slots, each with room for one expert at its highest level.
//!
//! An expert's matrices and their planes have fixed places in a slot, so a plane that arrives is
//! written where it belongs and nothing else of the expert is.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::{ExpertShape, MatrixForm, MatrixShape, SlotPlace};
use nestling_formats::Plane;
use nestling_formats::nested::plane_bytes;

use crate::driver::{Address, DeviceMemory, Driver};
use crate::error::CudaError;
use crate::matrix::CODEC_OFFSET;
use crate::recorder::Recorder;

/// Places in a slot are multiples of so many bytes.
const ALIGN: u64 = 256;

/// Allocations that the slots of one budget are divided among: a smaller budget gives whole ones back.
const PIECES: usize = 8;

/// Where a matrix lies in its slot, in bytes from the slot's beginning.
#[derive(Clone, Copy, Debug)]
struct MatrixRoom {
    head: u64,
    /// All elements of a float matrix are in the place of the first plane.
    planes: [Option<u64>; Plane::ALL.len()],
    head_bytes: u64,
    end: u64,
}

impl MatrixRoom {
    /// Room behind what ends at `start`; none for sizes that overflow.
    fn of(shape: &MatrixShape, start: u64) -> Option<Self> {
        let mut end = start;
        let mut place = |bytes: usize| {
            let start = end.checked_next_multiple_of(ALIGN)?;
            end = start.checked_add(bytes as u64)?;
            Some(start)
        };
        let mut planes = [None; Plane::ALL.len()];
        let codec_bytes = match shape.form {
            MatrixForm::Float(_) => 0,
            MatrixForm::Nested { codec_bytes, .. } => codec_bytes,
        };
        let head_bytes = CODEC_OFFSET as usize + codec_bytes;
        let head = place(head_bytes)?;
        match shape.form {
            MatrixForm::Float(dtype) => {
                let count = shape.rows.checked_mul(shape.cols)?;
                planes[0] = Some(place(count.checked_mul(dtype.bytes())?)?);
            }
            MatrixForm::Nested { layout, level, .. } => {
                for plane in Plane::ALL.into_iter().filter(|plane| plane.level() <= level) {
                    let bytes = plane_bytes(layout, shape.rows, shape.cols, plane)?;
                    planes[plane.index()] = Some(place(bytes)?);
                }
            }
        }
        Some(Self { head, planes, head_bytes: head_bytes as u64, end })
    }
}

/// The three matrices of a layer's experts.
fn rooms(shape: &ExpertShape) -> Option<[MatrixRoom; 3]> {
    let [gate, up, down] = &shape.matrices;
    let gate = MatrixRoom::of(gate, 0)?;
    let up = MatrixRoom::of(up, gate.end)?;
    let down = MatrixRoom::of(down, up.end)?;
    Some([gate, up, down])
}

/// How a layer's experts look, and how they lie in a slot.
#[derive(Clone, Copy)]
struct Layer {
    shape: ExpertShape,
    rooms: [MatrixRoom; 3],
}

/// Slots that lie in one allocation.
struct Piece {
    memory: DeviceMemory,
    first: usize,
    count: usize,
}

/// Where a slot's matrix lies in memory of the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Its description and codec, and their bytes.
    pub head: Address,
    pub head_bytes: u64,
    /// Its planes.
    pub planes: [Option<Address>; Plane::ALL.len()],
}

/// Slots for the streamed experts of a model.
pub struct CudaSlots {
    driver: Arc<Driver>,
    layers: Vec<Option<Layer>>,
    slot_bytes: u64,
    /// Slots of a whole piece.
    per_piece: usize,
    pieces: Vec<Piece>,
}

impl CudaSlots {
    /// As many slots as `bytes` are enough for, at least one, or fewer where memory is full.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`] if there is no room for one.
    pub(crate) fn new(
        driver: &Arc<Driver>,
        layers: &[Option<ExpertShape>],
        bytes: u64,
    ) -> Result<Self, EngineError> {
        let layers = rooms_of(layers)?;
        let slot_bytes = bytes_of(&layers);
        let count = slots_in(bytes, slot_bytes);
        let (driver, per_piece) = (Arc::clone(driver), count.div_ceil(PIECES));
        let mut slots = Self { driver, layers, slot_bytes, per_piece, pieces: Vec::new() };
        slots.grow(count)?;
        Ok(slots)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.pieces.last().map_or(0, |piece| piece.first + piece.count)
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// How the experts of a layer look.
    pub(crate) fn shape(&self, layer: usize) -> Option<&ExpertShape> {
        self.layers.get(layer)?.as_ref().map(|layer| &layer.shape)
    }

    /// Slots that keep what lies in them when there are to be as many as fit `bytes`: those of whole
    /// pieces.
    pub(crate) fn kept(&self, bytes: u64) -> usize {
        let count = slots_in(bytes, self.slot_bytes);
        let stays = |piece: &&Piece| piece.first + piece.count <= count;
        let kept = self.pieces.iter().take_while(stays).last();
        kept.map_or(0, |piece| piece.first + piece.count)
    }

    /// Makes the slots as many as fit `bytes`, or fewer where memory is full. Those that are not
    /// [`CudaSlots::kept`] lose what lies in them.
    ///
    /// # Errors
    /// [`CudaError::OutOfMemory`] or [`CudaError::OverBudget`] if no slot is left; a device that is lost.
    pub(crate) fn resize(&mut self, recorder: &mut Recorder, bytes: u64) -> Result<(), CudaError> {
        // What was recorded may still read what is given back.
        recorder.finish_all()?;
        let kept = self.kept(bytes);
        self.pieces.retain(|piece| piece.first + piece.count <= kept);
        self.grow(slots_in(bytes, self.slot_bytes))
    }

    /// Adds pieces until there are so many slots, or no memory is left.
    fn grow(&mut self, count: usize) -> Result<(), CudaError> {
        let mut most = self.per_piece;
        // What steps and sessions work with has its room.
        let left = self.driver.budget_left().saturating_sub(self.driver.work_kept());
        let more = usize::try_from(left / self.slot_bytes).unwrap_or(usize::MAX);
        let count = count.min(self.count().saturating_add(more)).max(1);
        loop {
            let first = self.count();
            let count = count.saturating_sub(first).min(most);
            if count == 0 {
                return Ok(());
            }
            match self.driver.allocate("experts", count as u64 * self.slot_bytes) {
                Ok(memory) => self.pieces.push(Piece { memory, first, count }),
                Err(error) if error.is_full() && count > 1 => most = count / 2,
                Err(error) if error.is_full() && first > 0 => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    /// Some bytes of slots: what is written there is gone once something is put into them.
    pub(crate) fn room_for_copies(&self) -> Option<(Address, u64)> {
        let piece = self.pieces.first()?;
        Some((piece.memory.address(), piece.memory.bytes()))
    }

    /// Where a matrix lies.
    ///
    /// # Errors
    /// A slot or a layer that there is not.
    pub(crate) fn room(&self, place: SlotPlace) -> Result<Room, EngineError> {
        let SlotPlace { slot, layer, matrix } = place;
        let missing = || EngineError::mismatch("slot of an expert", "one that is there", slot);
        let of_layer = self.layers.get(layer).and_then(Option::as_ref);
        let room = of_layer.and_then(|layer| layer.rooms.get(matrix)).ok_or_else(missing)?;
        let at = self.pieces.partition_point(|piece| piece.first + piece.count <= slot);
        let piece = self.pieces.get(at).ok_or_else(missing)?;
        let start = piece.memory.address() + (slot - piece.first) as u64 * self.slot_bytes;
        Ok(Room {
            head: start + room.head,
            head_bytes: room.head_bytes,
            planes: room.planes.map(|plane| plane.map(|plane| start + plane)),
        })
    }
}

/// How experts lie in slots.
///
/// # Errors
/// Sizes that overflow.
fn rooms_of(layers: &[Option<ExpertShape>]) -> Result<Vec<Option<Layer>>, EngineError> {
    let overflow = || EngineError::mismatch("sizes of experts", "sizes that fit", "more");
    let layer = |shape: &Option<ExpertShape>| match shape {
        Some(shape) => {
            let rooms = rooms(shape).ok_or_else(overflow)?;
            Ok(Some(Layer { shape: *shape, rooms }))
        }
        None => Ok(None),
    };
    layers.iter().map(layer).collect()
}

/// Bytes of a slot that has room for any of them.
fn bytes_of(layers: &[Option<Layer>]) -> u64 {
    let ends = layers.iter().flatten().map(|layer| layer.rooms[2].end);
    ends.max().unwrap_or(1).next_multiple_of(ALIGN)
}

/// Bytes of a slot for the experts of these layers.
///
/// # Errors
/// Sizes that overflow.
pub(crate) fn slot_bytes(layers: &[Option<ExpertShape>]) -> Result<u64, EngineError> {
    Ok(bytes_of(&rooms_of(layers)?))
}

/// Slots of a budget, at least one.
fn slots_in(bytes: u64, slot_bytes: u64) -> usize {
    usize::try_from(bytes / slot_bytes.max(1)).unwrap_or(usize::MAX).max(1)
}

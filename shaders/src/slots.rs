//! Memory for streamed experts: slabs of slots, each with room for one expert at its highest level.
//!
//! An expert's matrices and their planes have fixed places in a slot, so a plane that arrives is
//! written where it belongs and nothing else of the expert is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nestling_core::EngineError;
use nestling_core::backend::{ExpertShape, MatrixForm, MatrixShape, SlotPlace};
use nestling_formats::Plane;
use nestling_formats::nested::{base_parts, plane_bytes};

use crate::device::Memory;
use crate::error::WgpuError;
use crate::matrix_image::{ALIGN, HEADER_BYTES};
use crate::storage::SharedGpu;

/// Slots begin at multiples of so many bytes.
const SLOT_ALIGN: usize = 256;

/// Slabs of slots are told from other slabs by numbers from here on.
pub(crate) const FIRST_SLAB: usize = 1 << 24;

/// Slabs that the slots of one budget are divided among where a binding allows it. Each is one
/// dispatch more for every product, and what a smaller budget costs at once.
const SLABS: usize = 2;

/// Where the planes of a matrix lie from its place on, in bytes; 0 for those without a place.
pub(crate) type PlanePlaces = [usize; Plane::ALL.len()];

/// Where a matrix lies in its slot.
#[derive(Clone, Copy, Debug)]
struct MatrixRoom {
    offset: usize,
    planes: PlanePlaces,
    end: usize,
}

impl MatrixRoom {
    /// Room behind what ends at `start`; none for sizes that overflow.
    fn of(shape: &MatrixShape, start: usize) -> Option<Self> {
        let offset = start.checked_next_multiple_of(SLOT_ALIGN)?;
        let mut planes = PlanePlaces::default();
        let mut bytes = HEADER_BYTES;
        let mut place = |length: usize| {
            let start = bytes.checked_next_multiple_of(ALIGN)?;
            bytes = start.checked_add(length)?;
            Some(start)
        };
        match shape.form {
            MatrixForm::Float(dtype) => {
                place(shape.rows.checked_mul(shape.cols)?.checked_mul(dtype.bytes())?)?;
            }
            MatrixForm::Nested { layout, codec_bytes, level, .. } => {
                let parts = base_parts(layout, shape.rows, shape.cols)?;
                let base = [parts.row_scales, parts.tile_tables, parts.steps, parts.step_high];
                place(codec_bytes)?;
                for range in base.into_iter().chain([parts.codes]) {
                    place(range.len().next_multiple_of(4))?;
                }
                for plane in Plane::ALL.into_iter().skip(1) {
                    if plane.level() <= level {
                        let length = plane_bytes(layout, shape.rows, shape.cols, plane)?;
                        planes[plane.index()] = place(length)?;
                    }
                }
            }
        }
        Some(Self { offset, planes, end: offset.checked_add(bytes)? })
    }
}

/// How a layer's experts lie in their slots.
#[derive(Clone, Debug)]
struct Layer {
    shape: ExpertShape,
    rooms: [MatrixRoom; 3],
}

impl Layer {
    fn of(shape: &ExpertShape) -> Option<Self> {
        let [gate, up, down] = &shape.matrices;
        let gate = MatrixRoom::of(gate, 0)?;
        let up = MatrixRoom::of(up, gate.end)?;
        let down = MatrixRoom::of(down, up.end)?;
        Some(Self { shape: *shape, rooms: [gate, up, down] })
    }

    /// Those of a model.
    ///
    /// # Errors
    /// Sizes that overflow.
    fn of_all(shapes: &[Option<ExpertShape>]) -> Result<Vec<Option<Self>>, EngineError> {
        let overflow = || EngineError::mismatch("sizes of experts", "sizes that fit", "more");
        let layer = |shape: &Option<ExpertShape>| match shape {
            Some(shape) => Self::of(shape).map(Some).ok_or_else(overflow),
            None => Ok(None),
        };
        shapes.iter().map(layer).collect()
    }
}

/// Bytes of a slot for any expert of a model.
fn largest(layers: &[Option<Layer>]) -> u64 {
    let ends = layers.iter().flatten().map(|layer| layer.rooms[2].end);
    ends.max().unwrap_or(1).next_multiple_of(SLOT_ALIGN) as u64
}

/// The same from shapes.
///
/// # Errors
/// Sizes that overflow.
pub(crate) fn slot_bytes(shapes: &[Option<ExpertShape>]) -> Result<u64, EngineError> {
    Ok(largest(&Layer::of_all(shapes)?))
}

/// Slots that lie in one buffer.
#[derive(Debug)]
struct Slab {
    memory: Memory,
    first: usize,
    count: usize,
}

/// The slabs as tables see them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotSlabs(Arc<Mutex<Vec<Slab>>>);

impl SlotSlabs {
    fn lock(&self) -> MutexGuard<'_, Vec<Slab>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The buffers that shaders see, in the order of their numbers.
    pub fn buffers(&self) -> Vec<wgpu::Buffer> {
        self.lock().iter().map(|slab| slab.memory.raw.clone()).collect()
    }

    fn count(&self) -> usize {
        self.lock().last().map_or(0, |slab| slab.first + slab.count)
    }
}

/// Where a slot's matrix lies.
pub(crate) struct Room {
    /// Number of the slot.
    pub slot: usize,
    /// Number of the slab, from [`FIRST_SLAB`] on.
    pub slab: usize,
    pub buffer: wgpu::Buffer,
    /// First byte, a multiple of 256.
    pub offset: u64,
    /// Bytes that there are.
    pub bytes: usize,
    pub planes: PlanePlaces,
}

/// Slots for the streamed experts of a model.
pub struct WgpuSlots {
    gpu: SharedGpu,
    layers: Vec<Option<Layer>>,
    slot_bytes: u64,
    /// Slots of a whole slab.
    per_slab: usize,
    slabs: SlotSlabs,
}

impl WgpuSlots {
    /// As many slots as `bytes` are enough for, at least one, or fewer where memory is full.
    ///
    /// # Errors
    /// [`WgpuError::OutOfMemory`] or [`WgpuError::OverBudget`] if there is no room for one; [`WgpuError::Limit`] for an expert that
    /// is larger than what a shader sees at once.
    pub(crate) fn new(
        gpu: &SharedGpu,
        layers: &[Option<ExpertShape>],
        bytes: u64,
    ) -> Result<Self, EngineError> {
        let layers = Layer::of_all(layers)?;
        let slot_bytes = largest(&layers);
        let limit = gpu.binding_bytes_max();
        if slot_bytes > limit {
            let what = "bytes of an expert";
            return Err(WgpuError::Limit { what, limit, found: slot_bytes }.into());
        }
        let count = slots_in(bytes, slot_bytes);
        let per_slab = count.div_ceil(SLABS).clamp(1, (limit / slot_bytes) as usize);
        let slabs = SlotSlabs::default();
        let gpu = SharedGpu::clone(gpu);
        let mut slots = Self { gpu, layers, slot_bytes, per_slab, slabs };
        slots.grow(count)?;
        Ok(slots)
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.slabs.count()
    }

    pub(crate) fn slot_bytes(&self) -> u64 {
        self.slot_bytes
    }

    /// How the experts of a layer look, and the slabs that they may lie in.
    pub(crate) fn layer(&self, layer: usize) -> Option<(&ExpertShape, &SlotSlabs)> {
        let layer = self.layers.get(layer).and_then(Option::as_ref)?;
        Some((&layer.shape, &self.slabs))
    }

    /// Slots that keep what lies in them when there are to be as many as fit `bytes`: those of whole
    /// slabs.
    pub(crate) fn kept(&self, bytes: u64) -> usize {
        let count = slots_in(bytes, self.slot_bytes);
        let slabs = self.slabs.lock();
        let stays = |slab: &&Slab| {
            slab.first + slab.count <= count
                && (slab.count == self.per_slab || slab.first + slab.count == count)
        };
        slabs.iter().take_while(stays).last().map_or(0, |slab| slab.first + slab.count)
    }

    /// Makes the slots as many as fit `bytes`, or fewer where memory is full. Those that are not
    /// [`WgpuSlots::kept`] lose what lies in them.
    ///
    /// # Errors
    /// [`WgpuError::OutOfMemory`] or [`WgpuError::OverBudget`] if no slot is left.
    pub(crate) fn resize(&mut self, bytes: u64) -> Result<(), WgpuError> {
        let kept = self.kept(bytes);
        self.slabs.lock().retain(|slab| slab.first + slab.count <= kept);
        self.grow(slots_in(bytes, self.slot_bytes))
    }

    /// Adds slabs until there are so many slots, or no memory is left.
    fn grow(&mut self, count: usize) -> Result<(), WgpuError> {
        let mut most = self.per_slab;
        loop {
            let there = self.count();
            let wanted = count.saturating_sub(there).min(most);
            if wanted == 0 {
                return Ok(());
            }
            match self.gpu.slots(wanted as u64 * self.slot_bytes) {
                Ok(memory) => self.slabs.lock().push(Slab { memory, first: there, count: wanted }),
                Err(error) if error.is_full() && wanted > 1 => most = wanted / 2,
                Err(error) if error.is_full() && there > 0 => return Ok(()),
                Err(error) => return Err(error),
            }
        }
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
        let slabs = self.slabs.lock();
        let at = slabs.partition_point(|slab| slab.first + slab.count <= slot);
        let slab = slabs.get(at).ok_or_else(missing)?;
        let offset = (slot - slab.first) as u64 * self.slot_bytes + room.offset as u64;
        Ok(Room {
            slot,
            slab: FIRST_SLAB + at,
            buffer: slab.memory.raw.clone(),
            offset,
            bytes: room.end - room.offset,
            planes: room.planes,
        })
    }
}

/// Slots of a budget, at least one.
fn slots_in(bytes: u64, slot_bytes: u64) -> usize {
    usize::try_from(bytes / slot_bytes.max(1)).unwrap_or(usize::MAX).max(1)
}

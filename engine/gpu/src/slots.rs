//! Memory for streamed experts. Slabs are divided into slots, each with space for one expert at its highest
//! level.

use std::error::Error;

use nestling_core::EngineError;
use nestling_core::backend::{
    Backend, CopyFence, ExpertBiases, ExpertShape, FeedForward, HostLink, HostPlane, MatrixShape,
    PlanePart, SlotMemory, SlotPlace,
};
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Plane;

use crate::StepEncoder;
use crate::allocation::Allocation;
use crate::device::Device;
use crate::error::GpuError;
use crate::expert_form::ExpertForm;
use crate::expert_table::{GpuExpertTable, TableEntries, TableExperts};
use crate::matrix::GpuMatrix;
use crate::plane_memory::{PlaneMemory, SlotPlane, SlotRegion};
use crate::slot_layout::SlotLayout;
use crate::slot_slabs::{SlotSlab, SlotSlabs};

/// Layout of a matrix in a slot of a device.
type MatrixLayout<D> = <<D as Device>::Weights as PlaneMemory>::MatrixLayout;

/// A device that supports slots for streamed experts.
pub trait SlotDevice: Device {
    /// Number of slabs for the slots of one budget, unless allocations are limited to a smaller size.
    /// Reducing the budget frees whole slabs.
    const SLABS: usize;

    /// True if a slab smaller than the others is kept when it is not the last one.
    const KEEPS_SMALLER_SLABS: bool;

    /// Returns whether matrices of this shape can be stored in slots.
    fn takes_in_slots(shape: &MatrixShape) -> bool;

    /// Returns the number of bytes available for additional slots.
    fn slot_bytes_left(&self) -> u64;

    /// Allocates memory for slots.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn allocate_slots(&mut self, bytes: u64) -> Result<SlotAllocation<Self::Memory>, EngineError>;

    /// Completes or submits all recorded commands that may use slots about to be released.
    ///
    /// # Errors
    /// Returns an error if the device is lost or refuses a command.
    fn release_slots(&mut self) -> Result<(), EngineError>;

    /// Implements [`SlotMemory::fetch_plane`]. Returns `None` if the device cannot copy from host memory
    /// asynchronously.
    ///
    /// # Errors
    /// Fails like [`SlotMemory::fetch_plane`].
    fn fetch_plane(
        &mut self,
        weights: &FeedForward<Self>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        let _ = (weights, parts, bytes);
        Ok(None)
    }

    /// Implements [`SlotMemory::begin_async_copies`]. Does nothing if all copies run in order.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn begin_async_copies(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Implements [`SlotMemory::end_async_copies`].
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn end_async_copies(&mut self) -> Result<CopyFence, EngineError> {
        Ok(CopyFence::default())
    }

    /// Implements [`SlotMemory::completed_copies`].
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn completed_copies(&mut self, awaited: CopyFence) -> Result<CopyFence, EngineError> {
        Ok(awaited)
    }

    /// Implements [`SlotMemory::host_link`] by measuring copies into the memory of empty slots.
    ///
    /// # Errors
    /// Returns an error if the device is lost.
    fn host_link(
        &mut self,
        slots: Self::Binding,
        bytes: u64,
    ) -> Result<Option<HostLink>, EngineError> {
        let _ = (slots, bytes);
        Ok(None)
    }
}

/// Result of an allocation for slots.
#[derive(Debug)]
pub enum SlotAllocation<M> {
    /// Allocated memory.
    Allocated(M),
    /// The device's memory or budget is exhausted. A smaller allocation may succeed.
    Full(EngineError),
}

impl<M> SlotAllocation<M> {
    /// Converts the result of a device allocation.
    ///
    /// # Errors
    /// Returns all errors except exhausted memory.
    pub fn of<B: Error + Send + Sync + 'static>(
        result: Result<M, GpuError<B>>,
    ) -> Result<Self, EngineError> {
        match result {
            Ok(memory) => Ok(Self::Allocated(memory)),
            Err(error) if error.is_full() => Ok(Self::Full(error.into())),
            Err(error) => Err(error.into()),
        }
    }
}

/// Slots for the streamed experts of a model.
pub struct GpuSlots<D: SlotDevice> {
    layout: SlotLayout<MatrixLayout<D>>,
    /// Slots of a full-size slab.
    per_slab: usize,
    slabs: SlotSlabs<D::Memory>,
}

impl<D: SlotDevice> GpuSlots<D> {
    /// Allocates the slots that fit in `bytes` bytes, at least one, or fewer if memory runs out. Returns
    /// `None` if an expert has a matrix that cannot be stored in a slot.
    ///
    /// # Errors
    /// Returns an error if there is no memory for one slot. Fails with [`EngineError::Limit`] if an expert
    /// exceeds the largest allocation.
    pub fn new(
        device: &mut D,
        layers: &[Option<ExpertShape>],
        bytes: u64,
    ) -> Result<Option<Self>, EngineError> {
        let mut shapes = layers.iter().flatten().flat_map(|shape| &shape.matrices);
        if !shapes.all(D::takes_in_slots) {
            return Ok(None);
        }
        let layout = SlotLayout::of(layers)?;
        let (limit, found) = (device.allocation_bytes_max(), layout.slot_bytes());
        if found > limit {
            return Err(EngineError::Limit { what: "bytes of an expert", limit, found });
        }
        let count = layout.slots_in(bytes);
        let per_slab = count.div_ceil(D::SLABS).min(layout.slots_in(limit));
        let mut slots = Self { layout, per_slab, slabs: SlotSlabs::default() };
        slots.grow(device, count)?;
        Ok(Some(slots))
    }

    /// Returns the number of slots kept when the budget changes to `bytes` bytes.
    fn slots_kept(&self, bytes: u64) -> usize {
        let count = self.layout.slots_in(bytes);
        let slabs = self.slabs.lock();
        let is_whole = |slab: &SlotSlab<_>| slab.count == self.per_slab || slab.end() == count;
        let stays =
            |slab: &&SlotSlab<_>| slab.end() <= count && (D::KEEPS_SMALLER_SLABS || is_whole(slab));
        slabs.iter().take_while(stays).last().map_or(0, SlotSlab::end)
    }

    /// Adds slabs until there are `count` slots or memory runs out.
    fn grow(&mut self, device: &mut D, count: usize) -> Result<(), EngineError> {
        let slot_bytes = self.layout.slot_bytes();
        let mut most = self.per_slab;
        let more = usize::try_from(device.slot_bytes_left() / slot_bytes).unwrap_or(usize::MAX);
        let count = count.min(self.slabs.count().saturating_add(more)).max(1);
        loop {
            let first = self.slabs.count();
            let count = count.saturating_sub(first).min(most);
            if count == 0 {
                return Ok(());
            }
            match device.allocate_slots(count as u64 * slot_bytes)? {
                SlotAllocation::Allocated(memory) => {
                    self.slabs.lock().push(SlotSlab { memory, first, count });
                }
                SlotAllocation::Full(_) if count > 1 => most = count / 2,
                SlotAllocation::Full(_) if first > 0 => return Ok(()),
                SlotAllocation::Full(error) => return Err(error),
            }
        }
    }

    /// Returns the memory of a matrix.
    ///
    /// # Errors
    /// Returns an error if the slot or the layer does not exist.
    fn room(
        &self,
        place: SlotPlace,
    ) -> Result<SlotRegion<D::Binding, MatrixLayout<D>>, EngineError> {
        let SlotPlace { slot, layer, matrix } = place;
        let missing = || EngineError::mismatch("slot of an expert", "one that is there", slot);
        let matrix = *self.layout.room(layer, matrix).ok_or_else(missing)?;
        let slabs = self.slabs.lock();
        let at = slabs.partition_point(|slab| slab.end() <= slot);
        let slab = slabs.get(at).ok_or_else(missing)?;
        let bytes = self.layout.slot_bytes();
        let binding = slab.memory.range((slot - slab.first) as u64 * bytes, bytes);
        Ok(SlotRegion { slot, slab: at, binding, matrix })
    }
}

impl<D: SlotDevice> SlotMemory<D> for GpuSlots<D>
where
    for<'a> D: Backend<Encoder<'a> = StepEncoder<'a, D>>,
{
    fn count(&self) -> usize {
        self.slabs.count()
    }

    fn slot_bytes(&self) -> u64 {
        self.layout.slot_bytes()
    }

    fn kept(&self, bytes: u64) -> usize {
        self.slots_kept(bytes)
    }

    fn resize(&mut self, encoder: &mut StepEncoder<'_, D>, bytes: u64) -> Result<(), EngineError> {
        let device = &mut *encoder.inner().inner().device;
        device.release_slots()?;
        let kept = self.slots_kept(bytes);
        self.slabs.lock().retain(|slab| slab.end() <= kept);
        self.grow(device, self.layout.slots_in(bytes))
    }

    fn expert_table(
        &self,
        backend: &mut D,
        layer: usize,
        num_experts: usize,
        biases: Option<&ExpertBiases>,
    ) -> Result<Option<GpuExpertTable<D>>, EngineError> {
        // Ranks exchange the rows of experts that the host has chosen from the routing.
        if backend.state().ranks.is_some() {
            return Ok(None);
        }
        let form = self.layout.shape(layer).and_then(ExpertForm::of_shape);
        let Some(form) = form.filter(D::TableEntries::takes) else { return Ok(None) };
        let biases = biases.map(ExpertBiases::joined);
        let streamed = TableExperts::Streamed { count: num_experts, slabs: &self.slabs };
        let Some(entries) = D::TableEntries::new(backend, streamed)? else { return Ok(None) };
        GpuExpertTable::streamed(backend, form, num_experts, entries, biases.as_deref()).map(Some)
    }

    fn place_matrix(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        place: SlotPlace,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<D::Matrix, EngineError> {
        let room = self.room(place)?;
        GpuMatrix::in_slot(encoder.inner().inner().device.recorder(), &room, weights, activations)
    }

    fn add_plane(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        matrix: &mut D::Matrix,
        plane: Plane,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        matrix.add_plane(encoder.inner().inner().device.recorder(), SlotPlane { plane, bytes })
    }

    fn fetch_plane(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        weights: &FeedForward<D>,
        parts: &[PlanePart],
        bytes: u64,
    ) -> Result<Option<HostPlane>, EngineError> {
        encoder.inner().inner().device.fetch_plane(weights, parts, bytes)
    }

    fn begin_async_copies(&mut self, encoder: &mut StepEncoder<'_, D>) -> Result<(), EngineError> {
        encoder.inner().inner().device.begin_async_copies()
    }

    fn end_async_copies(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
    ) -> Result<CopyFence, EngineError> {
        encoder.inner().inner().device.end_async_copies()
    }

    fn completed_copies(
        &mut self,
        encoder: &mut StepEncoder<'_, D>,
        awaited: CopyFence,
    ) -> Result<CopyFence, EngineError> {
        encoder.inner().inner().device.completed_copies(awaited)
    }

    fn host_link(&mut self, backend: &mut D) -> Result<Option<HostLink>, EngineError> {
        let slabs = self.slabs.lock();
        match slabs.first() {
            Some(slab) => backend.host_link(slab.memory.binding(), slab.memory.bytes()),
            None => Ok(None),
        }
    }
}

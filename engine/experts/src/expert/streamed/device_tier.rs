//! Experts in the form that the device computes with. Experts are bound where their planes arrived, or copied
//! to slots in device memory. Tables list the resident experts for the device. Some experts may be on their
//! way from host memory.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{ExpertId, InternalError, Invariant, MatrixKind, Plane};

use super::builder::ExpertBuilder;
use super::fetcher::ExtentTable;
use crate::expert::store::Scan;
use crate::reads::ArrivedPlane;
use crate::residency::PlaneId;
use nestling_core::backend::{
    Backend, CopyFence, DeviceRouting, FeedForward, HeldExpert, HostLink, HostPlane, PlanePart,
    SlotMemory,
};
use nestling_core::error::EngineError;

/// Reason why each plane known to residency has an entry.
const KNOWN: &str = "planes are of the experts that the model has";

pub(super) struct DeviceTier<B: Backend> {
    builder: Arc<ExpertBuilder>,
    experts: Vec<Vec<ExpertSlot<B>>>, // [layers][experts], no experts in a dense layer
    /// Slots in device memory; `None` if planes are in host memory.
    memory: Option<DeviceMemory<B>>,
}

/// Slots of a device, and pending changes to its tables.
struct DeviceMemory<B: Backend> {
    slots: B::ExpertSlots,
    /// Free slots; the last one is taken first.
    free: Vec<usize>,
    /// Experts whose table entry is out of date.
    changed: Vec<ExpertId>,
    /// Experts with arrived planes that are not in a slot yet.
    arrived: Vec<ExpertId>,
    /// Experts being copied from host memory, in the order of their copies.
    promotions: VecDeque<Promotion<B>>,
}

/// An expert being copied to a slot. Its planes stay in host memory until the copies are done.
struct Promotion<B: Backend> {
    id: ExpertId,
    planes: usize,
    slot: usize,
    weights: FeedForward<B>,
    /// Fence after the copies.
    fence: CopyFence,
}

/// A promoted expert and its number of planes.
pub(super) struct PromotedExpert {
    pub id: ExpertId,
    pub planes: usize,
}

impl<B: Backend> DeviceTier<B> {
    /// Creates a tier without resident experts. `experts` gives the number of experts per layer.
    pub fn new(builder: Arc<ExpertBuilder>, experts: impl Iterator<Item = usize>) -> Self {
        let slots = |count| (0..count).map(|_| ExpertSlot::empty()).collect();
        Self { builder, experts: experts.map(slots).collect(), memory: None }
    }

    /// Allocates slots in device memory, if the device supports them. Returns the expert table of each layer,
    /// `None` for layers without experts.
    ///
    /// # Errors
    /// Returns an error if device memory does not fit one slot.
    pub fn enable_slots(
        &mut self,
        backend: &mut B,
        budget_bytes: u64,
    ) -> Result<Vec<Option<B::ExpertTable>>, EngineError> {
        let Self { builder, experts, .. } = self;
        let shape = |layer| builder.source().expert_shape(layer, builder.activations());
        let Ok(shapes) = (0..experts.len()).map(shape).collect::<Result<Vec<_>, _>>() else {
            // The experts have no common slot shape.
            return Ok(Vec::new());
        };
        let Some(slots) = backend.expert_slots(&shapes, budget_bytes)? else {
            return Ok(Vec::new());
        };
        let layers = experts.iter().map(Vec::len).zip(builder.biases()).enumerate();
        let tables = layers.map(|(layer, (experts, biases))| match experts {
            0 => Ok(None),
            _ => slots.expert_table(backend, layer, experts, biases.as_ref()),
        });
        let tables = tables.collect::<Result<_, _>>()?;
        let free = (0..slots.count()).rev().collect();
        let (changed, arrived, promotions) = (Vec::new(), Vec::new(), VecDeque::new());
        self.memory = Some(DeviceMemory { slots, free, changed, arrived, promotions });
        Ok(tables)
    }

    /// Returns the number of slots, or `None` without slots.
    pub fn slot_count(&self) -> Option<usize> {
        self.memory.as_ref().map(|memory| memory.slots.count())
    }

    /// Returns the bytes of occupied slots, or `None` without slots.
    pub fn taken_bytes(&self) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let taken = memory.slots.count().saturating_sub(memory.free.len()) as u64;
        Some(taken * memory.slots.slot_bytes())
    }

    /// Returns the speed of filling slots from host memory. `None` if evicted planes are not kept there.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn host_link(&mut self, backend: &mut B) -> Result<Option<HostLink>, EngineError> {
        match &mut self.memory {
            Some(memory) => memory.slots.host_link(backend),
            None => Ok(None),
        }
    }

    /// Returns the experts whose slots will be lost when slots are limited to `bytes`.
    pub fn lost_at(&self, bytes: u64) -> Vec<ExpertId> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let kept = memory.slots.kept(bytes);
        let lost = (0..).zip(&self.experts).flat_map(|(layer, slots)| {
            let lost = (0..).zip(slots).filter(|(_, slot)| slot.slot() >= Some(kept));
            lost.map(move |(expert, _)| ExpertId { layer, expert })
        });
        lost.collect()
    }

    /// Resizes the slots to `bytes`. Slots of experts in [`DeviceTier::lost_at`] must be free.
    ///
    /// # Errors
    /// Returns an error if device memory does not fit one expert.
    pub fn resize(&mut self, bytes: u64, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let Self { experts, memory, .. } = self;
        let Some(memory) = memory else { return Ok(()) };
        let resized = memory.slots.resize(encoder, bytes);
        let taken: HashSet<usize> = experts.iter().flatten().filter_map(ExpertSlot::slot).collect();
        let all = (0..memory.slots.count()).rev();
        memory.free = all.filter(|slot| !taken.contains(slot)).collect();
        resized
    }

    fn slot_mut(&mut self, id: ExpertId) -> Result<&mut ExpertSlot<B>, InternalError> {
        slot_of(&mut self.experts, id)
    }

    /// Adds an arrived plane.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that the model does not have.
    pub fn put(&mut self, id: PlaneId, plane: ArrivedPlane) -> Result<(), InternalError> {
        self.slot_mut(id.expert_id())?.put(id.plane, plane);
        if let Some(memory) = &mut self.memory {
            memory.arrived.push(id.expert_id());
        }
        Ok(())
    }

    #[cfg(test)]
    pub fn holds(&self, id: PlaneId) -> bool {
        self.experts[id.layer as usize][id.expert as usize].holds(id.plane)
    }

    /// Evicts a plane. If it was in device memory, returns its expert: the plane can be copied from there
    /// until its slot is overwritten.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that the model does not have.
    pub fn evict(&mut self, id: PlaneId) -> Result<Option<Arc<FeedForward<B>>>, InternalError> {
        let Self { experts, memory, .. } = self;
        let slot = slot_of(experts, id.expert_id())?;
        let Some(memory) = memory else {
            slot.drop_plane(id.plane);
            return Ok(None);
        };
        let bound = slot.bound().filter(|(_, held)| id.plane.index() < *held);
        let left = bound.map(|(weights, _)| Arc::clone(weights));
        memory.free.extend(slot.drop_plane(id.plane));
        memory.changed.push(id.expert_id());
        Ok(left)
    }

    /// Returns the expert, built from all planes that have arrived, at least `planes`.
    ///
    /// # Errors
    /// Returns an error if the planes do not form an expert, no slot is free, or the device fails.
    pub fn acquire(
        &mut self,
        id: ExpertId,
        planes: usize,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Arc<FeedForward<B>>, EngineError> {
        let Self { builder, experts, memory } = self;
        let slot = slot_of(experts, id)?;
        match memory {
            None => slot.bind(id, planes, builder, encoder),
            Some(memory) => {
                memory.changed.push(id);
                slot.place(id, builder, &mut memory.slots, &mut memory.free, encoder)
            }
        }
    }

    pub fn bound(&self, id: ExpertId) -> Option<&Arc<FeedForward<B>>> {
        let slot = self.experts.get(id.layer as usize)?.get(id.expert as usize)?;
        slot.bound().map(|(weights, _)| weights)
    }

    /// Copies a plane from device memory to host memory. Returns `None` if host memory lacks space.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn fetch(
        &mut self,
        id: PlaneId,
        weights: &FeedForward<B>,
        bytes: u64,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Option<HostPlane>, EngineError> {
        let memory = self.memory.as_mut().invariant("planes leave slots of a device")?;
        let parts = self.builder.source().plane_parts(id.expert_id(), id.plane)?;
        memory.slots.fetch_plane(encoder, weights, &parts, bytes)
    }

    /// Copies prefetched planes into their slots.
    pub fn place_arrived(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), InternalError> {
        let Self { builder, experts, memory } = self;
        let Some(memory) = memory else { return Ok(()) };
        for id in std::mem::take(&mut memory.arrived) {
            let slot = slot_of(experts, id)?;
            if !slot.has_arrived() {
                continue;
            }
            let (slots, free) = (&mut memory.slots, &mut memory.free);
            // The error is returned when the expert is requested.
            if slot.place(id, builder, slots, free, encoder).is_ok() {
                memory.changed.push(id);
            }
        }
        Ok(())
    }

    /// Updates the device's tables with pending changes.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn publish(
        &mut self,
        tables: &mut [Option<B::ExpertTable>],
        extents: &ExtentTable,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let Self { experts, memory, .. } = self;
        let Some(memory) = memory else { return Ok(()) };
        while let Some(id) = memory.changed.last().copied() {
            let held = slot_of(experts, id)?.bound().and_then(|(weights, planes)| {
                let level = extents.level_of(id, planes)?;
                Some(HeldExpert { weights, level })
            });
            if let Some(Some(table)) = tables.get_mut(id.layer as usize) {
                table.set_expert(encoder, id.expert, held)?;
            }
            memory.changed.pop();
        }
        Ok(())
    }

    pub fn has_promotions(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.promotions.is_empty())
    }

    /// Returns the fence after an expert's promotion, if one is in progress.
    pub fn promotion_of(&self, id: ExpertId) -> Option<CopyFence> {
        let mut promotions = self.memory.as_ref()?.promotions.iter();
        promotions.find(|promotion| promotion.id == id).map(|promotion| promotion.fence)
    }

    /// Starts asynchronous copies of an expert's first planes from host memory to a slot, after the copies
    /// recorded by `before`. Returns false if the expert cannot be placed.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn promote(
        &mut self,
        id: ExpertId,
        planes: &[Arc<ArrivedPlane>],
        encoder: &mut B::Encoder<'_>,
        before: impl FnOnce(&mut Self, &mut B::Encoder<'_>) -> Result<(), EngineError>,
    ) -> Result<bool, EngineError> {
        let memory = self.memory.as_mut().invariant("experts are promoted to slots")?;
        memory.slots.begin_async_copies(encoder)?;
        let placed = before(self, encoder);
        let placed = placed.and_then(|()| self.start_promotion(id, planes, encoder));
        let memory = self.memory.as_mut().invariant("experts are promoted to slots")?;
        let fence = memory.slots.end_async_copies(encoder)?;
        match placed {
            Ok((slot, weights)) => {
                let planes = planes.len();
                memory.promotions.push_back(Promotion { id, planes, slot, weights, fence });
                Ok(true)
            }
            Err(error) => {
                tracing::debug!(%error, "an expert stays in memory of the host");
                // The next expert in this slot must wait for copies that were started.
                memory.slots.completed_copies(encoder, fence)?;
                Ok(false)
            }
        }
    }

    fn start_promotion(
        &mut self,
        id: ExpertId,
        planes: &[Arc<ArrivedPlane>],
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(usize, FeedForward<B>), EngineError> {
        let memory = self.memory.as_mut().invariant("experts are promoted to slots")?;
        // The CPU has already computed with these planes.
        let matrices = self.builder.source().bind_expert(id, planes, Scan::Known)?;
        let none =
            || EngineError::mismatch("slots of streamed experts", "one that is free", "none");
        let slot = memory.free.pop().ok_or_else(none)?;
        let placed = self.builder.place(id, matrices, slot, &mut memory.slots, encoder);
        if placed.is_err() {
            memory.free.push(slot);
        }
        placed.map(|weights| (slot, weights))
    }

    /// Returns the latest fence whose copies are complete for subsequently recorded work. That work waits for
    /// copies up to `awaited`.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn completed_copies(
        &mut self,
        awaited: CopyFence,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<CopyFence, EngineError> {
        let memory = self.memory.as_mut().invariant("experts are promoted to slots")?;
        memory.slots.completed_copies(encoder, awaited)
    }

    /// Completes the oldest promotion if its copies are done.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that the model does not have.
    pub fn land_promotion(
        &mut self,
        completed: CopyFence,
    ) -> Result<Option<PromotedExpert>, InternalError> {
        let Self { experts, memory, .. } = self;
        let Some(memory) = memory else { return Ok(None) };
        let Some(landed) = memory.promotions.pop_front_if(|first| first.fence <= completed) else {
            return Ok(None);
        };
        let Promotion { id, planes, slot, weights, .. } = landed;
        slot_of(experts, id)?.moved_in(slot, weights, planes);
        // Higher planes may have arrived during the copy.
        memory.arrived.push(id);
        memory.changed.push(id);
        Ok(Some(PromotedExpert { id, planes }))
    }
}

fn slot_of<B: Backend>(
    experts: &mut [Vec<ExpertSlot<B>>],
    id: ExpertId,
) -> Result<&mut ExpertSlot<B>, InternalError> {
    let layer = experts.get_mut(id.layer as usize);
    layer.and_then(|layer| layer.get_mut(id.expert as usize)).invariant(KNOWN)
}

/// Planes of one expert, and the expert bound to them.
struct ExpertSlot<B: Backend> {
    planes: [Option<Arc<ArrivedPlane>>; 5],
    /// The bound expert and its number of planes. With slots, these planes are in device memory and not in
    /// `planes`.
    bound: Option<(Arc<FeedForward<B>>, usize)>,
    slot: Option<usize>,
    scan: Scan,
}

impl<B: Backend> ExpertSlot<B> {
    fn empty() -> Self {
        Self { planes: Default::default(), bound: None, slot: None, scan: Scan::Check }
    }

    fn put(&mut self, plane: Plane, bytes: ArrivedPlane) {
        self.planes[plane.index()] = Some(Arc::new(bytes));
    }

    #[cfg(test)]
    fn holds(&self, plane: Plane) -> bool {
        self.planes[plane.index()].is_some()
    }

    /// Removes a plane. Returns the slot if it became empty.
    fn drop_plane(&mut self, plane: Plane) -> Option<usize> {
        let plane = plane.index();
        self.planes[plane] = None;
        if self.slot.is_none() || plane == 0 {
            self.bound = None;
            return self.slot.take();
        }
        if let Some((_, held)) = &mut self.bound {
            *held = plane.min(*held);
        }
        None
    }

    fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// Sets the expert as placed in a slot, built from `planes` planes.
    fn moved_in(&mut self, slot: usize, weights: FeedForward<B>, planes: usize) {
        self.scan = Scan::Known;
        self.slot = Some(slot);
        self.bound = Some((Arc::new(weights), planes));
    }

    /// Returns whether an arrived plane could be added to the slot.
    fn has_arrived(&self) -> bool {
        let held = self.bound.as_ref().map_or(0, |(_, held)| *held);
        self.planes.get(held).is_some_and(Option::is_some)
    }

    fn bound(&self) -> Option<(&Arc<FeedForward<B>>, usize)> {
        self.bound.as_ref().map(|(weights, held)| (weights, *held))
    }

    /// Returns the expert bound to all planes that have arrived, at least `planes`.
    ///
    /// # Errors
    /// Returns an error if the planes do not form an expert.
    fn bind(
        &mut self,
        id: ExpertId,
        planes: usize,
        builder: &ExpertBuilder,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Arc<FeedForward<B>>, EngineError> {
        if let Some((weights, held)) = &self.bound
            && *held >= planes
        {
            return Ok(Arc::clone(weights));
        }
        let arrived: Vec<_> = self.planes.iter().map_while(Clone::clone).collect();
        let matrices = builder.source().bind_expert(id, &arrived, self.scan)?;
        self.scan = Scan::Known;
        let weights = Arc::new(builder.bind(id, matrices, encoder)?);
        self.bound = Some((Arc::clone(&weights), arrived.len()));
        Ok(weights)
    }

    /// Moves all arrived planes to the expert's slot, taking one from `free` if it has none, and returns the
    /// expert. The host copies are dropped.
    ///
    /// # Errors
    /// Returns an error if the planes do not form an expert, no slot is free, or the device fails.
    fn place(
        &mut self,
        id: ExpertId,
        builder: &ExpertBuilder,
        slots: &mut B::ExpertSlots,
        free: &mut Vec<usize>,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Arc<FeedForward<B>>, EngineError> {
        if self.bound.is_none() {
            let first: Vec<_> = self.planes[0].iter().cloned().collect();
            let matrices = builder.source().bind_expert(id, &first, self.scan)?;
            self.scan = Scan::Known;
            let none =
                || EngineError::mismatch("slots of streamed experts", "one that is free", "none");
            let slot = self.slot.or_else(|| free.pop()).ok_or_else(none)?;
            self.slot = Some(slot);
            let weights = builder.place(id, matrices, slot, slots, encoder)?;
            self.bound = Some((Arc::new(weights), 1));
            self.planes[0] = None;
        }
        let (weights, held) = self.bound.as_mut().invariant("the expert is in its slot")?;
        while let Some(Some(arrived)) = self.planes.get(*held) {
            let in_use =
                || EngineError::mismatch(GroupId::Expert(id).to_string(), "unused", "in use");
            let expert = Arc::get_mut(weights).ok_or_else(in_use)?;
            for PlanePart { matrix, plane, range } in
                builder.source().plane_parts(id, Plane::ALL[*held])?
            {
                let part = || format!("{plane:?} of {}", GroupId::Expert(id));
                let short = || EngineError::mismatch(part(), "all of its bytes", "fewer");
                let bytes = (**arrived).as_ref().get(range).ok_or_else(short)?;
                let linear = match (matrix, &mut expert.gate) {
                    (MatrixKind::Gate, Some(gate)) => gate,
                    (MatrixKind::Down, _) => &mut expert.down,
                    _ => &mut expert.up,
                };
                slots.add_plane(encoder, &mut linear.matrix, plane, bytes)?;
            }
            self.planes[*held] = None;
            *held += 1;
        }
        Ok(Arc::clone(weights))
    }
}

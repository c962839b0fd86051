//! Experts as the device computes with them: made of planes where these arrived, or in slots of the
//! device's own memory, with tables that say what is there and experts on their way from host memory.

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

/// Why there is a slot for every plane that residency knows.
const KNOWN: &str = "planes are of the experts that the model has";

/// The experts of a device.
pub(super) struct DeviceTier<B: Backend> {
    builder: Arc<ExpertBuilder>,
    experts: Vec<Vec<ExpertSlot<B>>>, // [layers][experts], no experts in a dense layer
    /// Where planes lie, if not in memory of the host.
    memory: Option<DeviceMemory<B>>,
}

/// The slots of a device, and what the device has to be told of.
struct DeviceMemory<B: Backend> {
    slots: B::ExpertSlots,
    /// Slots that nothing is in, the first one last.
    free: Vec<usize>,
    /// Experts of which a table says something else than is true.
    changed: Vec<ExpertId>,
    /// Experts of which planes have arrived that are in no slot yet.
    arrived: Vec<ExpertId>,
    /// Experts on their way from host memory, in the order of their copies.
    promotions: VecDeque<Promotion<B>>,
}

/// An expert on its way to a slot. Its planes are in host memory until it is there.
struct Promotion<B: Backend> {
    id: ExpertId,
    planes: usize,
    slot: usize,
    weights: FeedForward<B>,
    /// The end of the copies.
    fence: CopyFence,
}

/// An expert that has come from host memory, and how many planes of it.
pub(super) struct Promoted {
    pub id: ExpertId,
    pub planes: usize,
}

impl<B: Backend> DeviceTier<B> {
    /// No expert is there yet; `experts` says how many each layer has.
    pub fn new(builder: Arc<ExpertBuilder>, experts: impl Iterator<Item = usize>) -> Self {
        let slots = |count| (0..count).map(|_| ExpertSlot::empty()).collect();
        Self { builder, experts: experts.map(slots).collect(), memory: None }
    }

    /// Experts lie in slots of the device's memory from now on, if it has such; gives the tables that
    /// say which, none for a layer without experts.
    ///
    /// # Errors
    /// A device whose memory has no room for one.
    pub fn enable_slots(
        &mut self,
        backend: &mut B,
        budget_bytes: u64,
    ) -> Result<Vec<Option<B::ExpertTable>>, EngineError> {
        let Self { builder, experts, .. } = self;
        let shape = |layer| builder.source().expert_shape(layer, builder.activations());
        let Ok(shapes) = (0..experts.len()).map(shape).collect::<Result<Vec<_>, _>>() else {
            // No slot fits all of them.
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

    /// How many slots the device has, if it has any.
    pub fn slot_count(&self) -> Option<usize> {
        self.memory.as_ref().map(|memory| memory.slots.count())
    }

    /// Bytes of the slots that something is in, if there are slots.
    pub fn taken_bytes(&self) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let taken = memory.slots.count().saturating_sub(memory.free.len()) as u64;
        Some(taken * memory.slots.slot_bytes())
    }

    /// How fast slots are filled from host memory; none where evicted planes are not held there.
    ///
    /// # Errors
    /// A failed device.
    pub fn host_link(&mut self, backend: &mut B) -> Result<Option<HostLink>, EngineError> {
        match &mut self.memory {
            Some(memory) => memory.slots.host_link(backend),
            None => Ok(None),
        }
    }

    /// Experts in slots that will be lost when slots take no more than `bytes`.
    pub fn lost_at(&self, bytes: u64) -> Vec<ExpertId> {
        let Some(memory) = &self.memory else { return Vec::new() };
        let kept = memory.slots.kept(bytes);
        let lost = (0..).zip(&self.experts).flat_map(|(layer, slots)| {
            let lost = (0..).zip(slots).filter(|(_, slot)| slot.slot() >= Some(kept));
            lost.map(move |(expert, _)| ExpertId { layer, expert })
        });
        lost.collect()
    }

    /// Makes the slots what `bytes` have room for; those of [`DeviceTier::lost_at`] are free.
    ///
    /// # Errors
    /// A device whose memory has no room for one expert.
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

    /// A plane has arrived.
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

    /// Whether a plane is here.
    #[cfg(test)]
    pub fn holds(&self, id: PlaneId) -> bool {
        self.experts[id.layer as usize][id.expert as usize].holds(id.plane)
    }

    /// Lets go of a plane. If it lay in device memory, gives the expert that it was part of: it can be
    /// copied from there until something else comes to its slot.
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

    /// The expert, made of all planes that have arrived, `planes` at least.
    ///
    /// # Errors
    /// Planes that do not make an expert; no slot; a failed device.
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

    /// The expert as the device has it.
    pub fn bound(&self, id: ExpertId) -> Option<&Arc<FeedForward<B>>> {
        let slot = self.experts.get(id.layer as usize)?.get(id.expert as usize)?;
        slot.bound().map(|(weights, _)| weights)
    }

    /// Copies a plane of an expert in device memory to host memory, where that has room for its bytes.
    ///
    /// # Errors
    /// A failed device.
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

    /// Puts planes that arrived ahead of their use into their slots.
    pub fn place_arrived(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), InternalError> {
        let Self { builder, experts, memory } = self;
        let Some(memory) = memory else { return Ok(()) };
        for id in std::mem::take(&mut memory.arrived) {
            let slot = slot_of(experts, id)?;
            if !slot.has_arrived() {
                continue;
            }
            let (slots, free) = (&mut memory.slots, &mut memory.free);
            // What is wrong with it is said where it is asked for.
            if slot.place(id, builder, slots, free, encoder).is_ok() {
                memory.changed.push(id);
            }
        }
        Ok(())
    }

    /// Tells the tables what has changed.
    ///
    /// # Errors
    /// A failed device.
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

    /// Whether experts are on their way.
    pub fn has_promotions(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| !memory.promotions.is_empty())
    }

    /// The end of the copies that bring an expert, if it is on its way.
    pub fn promotion_of(&self, id: ExpertId) -> Option<CopyFence> {
        let mut promotions = self.memory.as_ref()?.promotions.iter();
        promotions.find(|promotion| promotion.id == id).map(|promotion| promotion.fence)
    }

    /// Starts copies of an expert's first planes from host memory to a slot, beside the steps and after
    /// those of `before`; false where it cannot be.
    ///
    /// # Errors
    /// A failed device.
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
                // Whatever was copied, the next one in that slot comes after it.
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
        // The CPU has computed with them.
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

    /// The latest fence whose copies are done for what is recorded from now on, which waits for those up
    /// to `awaited`.
    ///
    /// # Errors
    /// A failed device.
    pub fn completed_copies(
        &mut self,
        awaited: CopyFence,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<CopyFence, EngineError> {
        let memory = self.memory.as_mut().invariant("experts are promoted to slots")?;
        memory.slots.completed_copies(encoder, awaited)
    }

    /// Takes in the first expert on its way whose copies are done.
    ///
    /// # Errors
    /// [`InternalError`] for an expert that the model does not have.
    pub fn land_promotion(
        &mut self,
        completed: CopyFence,
    ) -> Result<Option<Promoted>, InternalError> {
        let Self { experts, memory, .. } = self;
        let Some(memory) = memory else { return Ok(None) };
        let Some(landed) = memory.promotions.pop_front_if(|first| first.fence <= completed) else {
            return Ok(None);
        };
        let Promotion { id, planes, slot, weights, .. } = landed;
        slot_of(experts, id)?.moved_in(slot, weights, planes);
        // Planes above them may have come meanwhile.
        memory.arrived.push(id);
        memory.changed.push(id);
        Ok(Some(Promoted { id, planes }))
    }
}

fn slot_of<B: Backend>(
    experts: &mut [Vec<ExpertSlot<B>>],
    id: ExpertId,
) -> Result<&mut ExpertSlot<B>, InternalError> {
    let layer = experts.get_mut(id.layer as usize);
    layer.and_then(|layer| layer.get_mut(id.expert as usize)).invariant(KNOWN)
}

/// One expert's planes, and the expert made of them.
struct ExpertSlot<B: Backend> {
    planes: [Option<Arc<ArrivedPlane>>; 5],
    /// The expert of its first planes, and how many they are. A device has these in its own memory,
    /// and they are not in `planes` any more.
    bound: Option<(Arc<FeedForward<B>>, usize)>,
    /// Its slot in device memory.
    slot: Option<usize>,
    scan: Scan,
}

impl<B: Backend> ExpertSlot<B> {
    fn empty() -> Self {
        Self { planes: Default::default(), bound: None, slot: None, scan: Scan::Check }
    }

    /// A plane has arrived.
    fn put(&mut self, plane: Plane, bytes: ArrivedPlane) {
        self.planes[plane.index()] = Some(Arc::new(bytes));
    }

    /// Whether a plane is here.
    #[cfg(test)]
    fn holds(&self, plane: Plane) -> bool {
        self.planes[plane.index()].is_some()
    }

    /// Lets go of a plane; gives the slot of the device that nothing is in any more.
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

    /// Its slot in device memory.
    fn slot(&self) -> Option<usize> {
        self.slot
    }

    /// The expert lies in a slot of the device, made of so many planes.
    fn moved_in(&mut self, slot: usize, weights: FeedForward<B>, planes: usize) {
        self.scan = Scan::Known;
        self.slot = Some(slot);
        self.bound = Some((Arc::new(weights), planes));
    }

    /// Whether a plane has arrived that could be put into the device's slot.
    fn has_arrived(&self) -> bool {
        let held = self.bound.as_ref().map_or(0, |(_, held)| *held);
        self.planes.get(held).is_some_and(Option::is_some)
    }

    /// The expert as it is, and how many planes it was made of.
    fn bound(&self) -> Option<(&Arc<FeedForward<B>>, usize)> {
        self.bound.as_ref().map(|(weights, held)| (weights, *held))
    }

    /// The expert, made of as many planes as are there, `planes` at least.
    ///
    /// # Errors
    /// Planes that do not make an expert.
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

    /// The expert in a slot of the device, with all planes that have arrived, which the host forgets. It
    /// takes a `free` slot if it has none.
    ///
    /// # Errors
    /// Planes that do not make an expert; no slot; a failed device.
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
                let linear = match matrix {
                    MatrixKind::Gate => &mut expert.gate,
                    MatrixKind::Up => &mut expert.up,
                    _ => &mut expert.down,
                };
                slots.add_plane(encoder, &mut linear.matrix, plane, bytes)?;
            }
            self.planes[*held] = None;
            *held += 1;
        }
        Ok(Arc::clone(weights))
    }
}

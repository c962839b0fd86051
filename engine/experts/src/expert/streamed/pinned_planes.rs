//! Planes that left memory of a device and lie in pinned host memory: nearer than the disk, and in one of
//! both places only. How many there are is up to the device's own host memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use nestling_formats::{ExpertId, Plane};

use super::device_tier::DeviceTier;
use super::fetcher::ExtentTable;
use crate::reads::ArrivedPlane;
use crate::residency::{PLANES, PlaneId, PlaneState, Residency};
use nestling_core::backend::{Backend, FeedForward, HostPlane};
use nestling_core::error::EngineError;
use nestling_cpu::Cpu;

/// The planes, and those that leave the device.
pub(super) struct PinnedPlanes<B: Backend> {
    planes: HashMap<PlaneId, PinnedPlane>,
    /// Those that came or were used first in front; of some that was not the last time, and some are not
    /// there any more.
    order: VecDeque<(PlaneId, u64)>,
    /// Counts how often planes came or were used.
    moment: u64,
    /// Planes whose slots nothing has overwritten yet.
    evicted: Vec<(PlaneId, Arc<FeedForward<B>>)>,
    /// Experts made of planes that lie here, and of how many.
    bound: HashMap<ExpertId, (Arc<FeedForward<Cpu>>, usize)>,
    /// Experts that are being computed where they lie.
    busy: Vec<ExpertId>,
    /// Experts that are on their way to the device.
    moving: Vec<ExpertId>,
}

/// A plane, and the moment when it came or was used.
struct PinnedPlane {
    plane: HostPlane,
    moment: u64,
}

impl<B: Backend> PinnedPlanes<B> {
    pub fn new() -> Self {
        Self {
            planes: HashMap::new(),
            order: VecDeque::new(),
            moment: 0,
            evicted: Vec::new(),
            bound: HashMap::new(),
            busy: Vec::new(),
            moving: Vec::new(),
        }
    }

    /// A plane leaves the device.
    pub fn note_evicted(&mut self, id: PlaneId, weights: Arc<FeedForward<B>>) {
        self.evicted.push((id, weights));
    }

    /// Takes a plane out.
    pub fn take(&mut self, id: PlaneId) -> Option<HostPlane> {
        let kept = self.planes.remove(&id)?;
        // Who computes with it keeps it.
        self.bound.remove(&id.expert_id());
        Some(kept.plane)
    }

    /// How many of an expert's planes lie here, from the first on.
    pub fn held(&self, id: ExpertId) -> usize {
        PlaneId::first(id, PLANES).take_while(|id| self.planes.contains_key(id)).count()
    }

    /// An expert's first planes, so many of them.
    pub fn prefix(&self, id: ExpertId, planes: usize) -> Vec<Arc<ArrivedPlane>> {
        let pinned = PlaneId::first(id, planes).filter_map(|id| self.planes.get(&id));
        pinned.map(|pinned| Arc::new(ArrivedPlane::held(Arc::clone(&pinned.plane)))).collect()
    }

    /// An expert's first planes are used now, and stay until nothing is busy any more.
    pub fn set_busy(&mut self, id: ExpertId, planes: usize) {
        // Of an expert the last plane goes first.
        for plane in Plane::ALL.into_iter().take(planes).rev() {
            let id = PlaneId::new(id, plane);
            if let Some(kept) = self.planes.get_mut(&id) {
                self.moment += 1;
                kept.moment = self.moment;
                self.order.push_back((id, self.moment));
            }
        }
        self.forget_moments();
        self.busy.push(id);
    }

    /// The expert made of its first planes, so many at least, if it was.
    pub fn bound(&self, id: ExpertId, planes: usize) -> Option<Arc<FeedForward<Cpu>>> {
        let (weights, held) = self.bound.get(&id)?;
        (*held >= planes).then(|| Arc::clone(weights))
    }

    /// Keeps the expert made of its first planes as long as these are here.
    pub fn bind(&mut self, id: ExpertId, weights: &Arc<FeedForward<Cpu>>, planes: usize) {
        self.bound.insert(id, (Arc::clone(weights), planes));
    }

    /// An expert's planes stay until it has moved.
    pub fn set_moving(&mut self, id: ExpertId) {
        self.moving.push(id);
    }

    /// An expert has moved to the device.
    pub fn set_moved(&mut self, id: ExpertId) {
        self.moving.retain(|other| *other != id);
    }

    /// Nothing is busy any more.
    pub fn clear_busy(&mut self) {
        self.busy.clear();
    }

    /// Lets go of planes, the oldest first, until they were so many bytes; says how many they were.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        let mut gone = 0;
        while gone < bytes
            && let Some(plane) = self.drop_oldest()
        {
            gone += (*plane).as_ref().len() as u64;
        }
        gone
    }

    fn drop_oldest(&mut self) -> Option<HostPlane> {
        let Self { planes, order, busy, moving, .. } = self;
        let is_there = |(id, moment): &(PlaneId, u64)| {
            planes.get(id).is_some_and(|kept| kept.moment == *moment)
        };
        while order.front().is_some_and(|first| !is_there(first)) {
            order.pop_front();
        }
        let stays = |id: &ExpertId| busy.contains(id) || moving.contains(id);
        let may_go = |one: &(PlaneId, u64)| is_there(one) && !stays(&one.0.expert_id());
        let at = order.iter().position(may_go)?;
        let (id, _) = order.remove(at)?;
        self.take(id)
    }

    /// Copies what leaves the device, before anything else comes to its slots.
    ///
    /// # Errors
    /// A failed device.
    pub fn demote(
        &mut self,
        residency: &Residency,
        extents: &ExtentTable,
        device: &mut DeviceTier<B>,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        for (id, weights) in std::mem::take(&mut self.evicted) {
            if residency.state(id) != PlaneState::Absent || self.planes.contains_key(&id) {
                continue;
            }
            let fetched = loop {
                let fetched = device.fetch(id, &weights, extents.bytes(id), encoder)?;
                // Nothing that went before it is missed more.
                if fetched.is_some() || self.drop_oldest().is_none() {
                    break fetched;
                }
            };
            if let Some(plane) = fetched {
                self.moment += 1;
                self.planes.insert(id, PinnedPlane { plane, moment: self.moment });
                self.order.push_back((id, self.moment));
            }
        }
        self.forget_moments();
        Ok(())
    }

    /// What was taken out or used again leaves its moment behind.
    fn forget_moments(&mut self) {
        let Self { planes, order, .. } = self;
        if order.len() > 2 * planes.len() + 16 {
            order.retain(|(id, moment)| planes.get(id).is_some_and(|kept| kept.moment == *moment));
        }
    }
}

//! Planes evicted from device memory to pinned host memory. A plane is in one of the two places only. The
//! device's host-memory limit bounds their number.

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

/// Pinned planes, and planes about to leave the device.
pub(super) struct PinnedPlanes<B: Backend> {
    planes: HashMap<PlaneId, PinnedPlane>,
    /// Planes by time of arrival or last use, oldest in front. May contain outdated entries and planes that
    /// are gone.
    order: VecDeque<(PlaneId, u64)>,
    /// Counter of arrivals and uses.
    moment: u64,
    /// Evicted planes whose slots are not overwritten yet.
    evicted: Vec<(PlaneId, Arc<FeedForward<B>>)>,
    /// Experts bound to pinned planes, with their number of planes.
    bound: HashMap<ExpertId, (Arc<FeedForward<Cpu>>, usize)>,
    /// Experts being computed by the CPU.
    busy: Vec<ExpertId>,
    /// Experts being copied to the device.
    moving: Vec<ExpertId>,
}

/// A plane, and the moment of its arrival or last use.
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

    /// Notes a plane evicted from the device.
    pub fn note_evicted(&mut self, id: PlaneId, weights: Arc<FeedForward<B>>) {
        self.evicted.push((id, weights));
    }

    pub fn take(&mut self, id: PlaneId) -> Option<HostPlane> {
        let kept = self.planes.remove(&id)?;
        // An expert still in computation keeps its planes alive.
        self.bound.remove(&id.expert_id());
        Some(kept.plane)
    }

    /// Returns the number of an expert's planes that are here, from the first.
    pub fn count(&self, id: ExpertId) -> usize {
        PlaneId::first(id, PLANES).take_while(|id| self.planes.contains_key(id)).count()
    }

    pub fn prefix(&self, id: ExpertId, planes: usize) -> Vec<Arc<ArrivedPlane>> {
        let pinned = PlaneId::first(id, planes).filter_map(|id| self.planes.get(&id));
        pinned.map(|pinned| Arc::new(ArrivedPlane::held(Arc::clone(&pinned.plane)))).collect()
    }

    /// Marks an expert's first planes as used, and keeps them until [`PinnedPlanes::clear_busy`].
    pub fn set_busy(&mut self, id: ExpertId, planes: usize) {
        // An expert's last plane becomes the oldest.
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

    pub fn bound(&self, id: ExpertId, planes: usize) -> Option<Arc<FeedForward<Cpu>>> {
        let (weights, held) = self.bound.get(&id)?;
        (*held >= planes).then(|| Arc::clone(weights))
    }

    /// Keeps an expert bound to its first planes for as long as these are here.
    pub fn bind(&mut self, id: ExpertId, weights: &Arc<FeedForward<Cpu>>, planes: usize) {
        self.bound.insert(id, (Arc::clone(weights), planes));
    }

    /// Keeps an expert's planes until it has moved.
    pub fn set_moving(&mut self, id: ExpertId) {
        self.moving.push(id);
    }

    pub fn set_moved(&mut self, id: ExpertId) {
        self.moving.retain(|other| *other != id);
    }

    /// Ends the use of all busy experts.
    pub fn clear_busy(&mut self) {
        self.busy.clear();
    }

    /// Releases planes, oldest first, until `bytes` are freed. Returns the bytes freed.
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

    /// Copies evicted planes to host memory, before their slots are overwritten.
    ///
    /// # Errors
    /// Returns an error if the device fails.
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
                // Older planes are evicted first: they are the least likely to be used again.
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

    /// Compacts the order by removing outdated entries.
    fn forget_moments(&mut self) {
        let Self { planes, order, .. } = self;
        if order.len() > 2 * planes.len() + 16 {
            order.retain(|(id, moment)| planes.get(id).is_some_and(|kept| kept.moment == *moment));
        }
    }
}

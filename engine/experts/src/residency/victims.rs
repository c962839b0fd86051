//! Choice of victims: topmost planes if bytes are counted, whole experts by their first plane if slots are
//! counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use nestling_formats::Plane;
use nestling_formats::memory::{OutOfMemory, try_with_capacity};

use super::{Admission, BOOKS, PlaneId, Residency, bit};

/// Heap of evictable planes by retention score, lowest first.
#[derive(Debug, Default)]
pub(super) struct Victims {
    /// Score as ascending bits, and index of the expert.
    heap: BinaryHeap<Reverse<(u64, usize)>>,
    /// True if the heap contains all evictable planes.
    built: bool,
    /// Experts of each layer that were skipped because of its floor.
    spared: Vec<Vec<usize>>,
    chosen: Vec<PlaneId>,
}

impl Victims {
    /// Creates an empty heap with capacity for this number of experts.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(experts: usize) -> Result<Self, OutOfMemory> {
        let heap = try_with_capacity(BOOKS, experts)?.into();
        Ok(Self { heap, ..Self::default() })
    }

    /// Invalidates the heap because scores may have fallen. It is rebuilt before its next use.
    pub fn forget(&mut self) {
        self.built = false;
    }
}

/// Maps a score to bits that ascend with it.
fn ascending_bits(score: f64) -> u64 {
    let bits = score.to_bits();
    if bits >> 63 == 1 { !bits } else { bits | 1 << 63 }
}

impl Residency {
    /// Adds an expert to the heap if it has become evictable.
    pub(super) fn offer(&mut self, layer: u32, expert: u32) {
        if let Some(number) = self.table.number(layer, expert) {
            self.offer_number(number);
        }
    }

    fn offer_number(&mut self, number: usize) {
        if self.victims.built
            && let Some(key) = self.key(number)
        {
            self.victims.heap.push(Reverse((key, number)));
        }
    }

    /// Evicts until `bytes` more fit. Evicts nothing if they cannot fit.
    pub(super) fn make_room(
        &mut self,
        id: PlaneId,
        bytes: u64,
        admission: Admission,
        evicted: &mut Vec<PlaneId>,
    ) -> bool {
        if let Some(capacity) = self.slot_capacity {
            return self.make_slot_room(id, capacity, admission, evicted);
        }
        let admission_threshold = self.admission_threshold(id, admission);
        let mut chosen = std::mem::take(&mut self.victims.chosen);
        chosen.clear();
        while self.used_bytes.saturating_add(bytes) > self.budget_bytes {
            let Some(victim) = self.victim(Some(id.layer), admission_threshold) else { break };
            self.take(victim);
            chosen.push(victim);
        }
        let room = self.used_bytes.saturating_add(bytes) <= self.budget_bytes;
        for victim in chosen.iter().rev().filter(|_| !room) {
            self.give_back(*victim);
        }
        if room {
            chosen.iter().for_each(|victim| self.counters.evicted[victim.plane.index()] += 1);
            evicted.extend_from_slice(&chosen);
        }
        self.victims.chosen = chosen;
        room
    }

    /// Returns the score below which planes may be evicted for this plane.
    pub(super) fn admission_threshold(&self, id: PlaneId, admission: Admission) -> f64 {
        match admission {
            Admission::Needed => f64::INFINITY,
            Admission::Optional => self.policy.retention_score(id),
            Admission::Promotion => self.policy.retention_score(id) / 2.0,
            Admission::Prefetch => self.policy.expected_score(id),
        }
    }

    /// Returns the plane with the lowest score, if it is below `admission_threshold`. Planes within the
    /// floors of layers other than `layer` are a last resort, and never evicted for a prefetch.
    pub(super) fn victim(
        &mut self,
        layer: Option<u32>,
        admission_threshold: f64,
    ) -> Option<PlaneId> {
        self.build();
        // The layer may evict its own protected planes.
        if let Some(layer) = layer {
            self.offer_spared(layer);
        }
        while let Some(Reverse((key, number))) = self.victims.heap.pop() {
            let Some(current) = self.key(number) else { continue };
            if current > key {
                self.victims.heap.push(Reverse((current, number)));
                continue;
            }
            let id = self.candidate(number)?;
            if current >= ascending_bits(admission_threshold) {
                self.victims.heap.push(Reverse((current, number)));
                return None;
            }
            if self.is_floor(id, layer) {
                self.victims.spared[id.layer as usize].push(number);
                continue;
            }
            return Some(id);
        }
        if admission_threshold.is_finite() { None } else { self.spared_victim() }
    }

    /// Returns the plane with the lowest score that floors protect.
    fn spared_victim(&mut self) -> Option<PlaneId> {
        let spared = self.victims.spared.iter().flatten();
        let keys = spared.filter_map(|number| Some((self.key(*number)?, *number)));
        self.candidate(keys.min()?.1)
    }

    /// Reconsiders skipped experts of a layer that has grown, because its floor may protect fewer of them.
    pub(super) fn offer_spared(&mut self, layer: u32) {
        let spared = self.victims.spared.get_mut(layer as usize);
        // Default: nothing is skipped before the heap is built.
        for number in spared.map(std::mem::take).unwrap_or_default() {
            self.offer_number(number);
        }
    }

    /// Removes a plane, counts the eviction and appends the plane to `evicted`.
    pub(super) fn evict(&mut self, id: PlaneId, evicted: &mut Vec<PlaneId>) {
        self.take(id);
        self.counters.evicted[id.plane.index()] += 1;
        evicted.push(id);
    }

    pub(super) fn forget(&mut self, id: PlaneId) {
        let (bytes, number) = self.table.plane(id);
        let slot = &mut self.slots[number];
        let was_held = slot.top().is_some();
        slot.resident &= !bit(id.plane);
        slot.reading &= !bit(id.plane);
        slot.prefetched &= !bit(id.plane);
        self.map.set(id.layer, id.expert, slot.planes());
        let has_left = was_held && slot.top().is_none();
        self.held_experts -= usize::from(has_left);
        self.used_bytes = self.used_bytes.saturating_sub(bytes);
        if let Some(of_layer) = self.layer_bytes.get_mut(id.layer as usize) {
            *of_layer = of_layer.saturating_sub(bytes);
        }
    }

    /// Removes a resident plane and offers the one below it.
    fn take(&mut self, id: PlaneId) {
        self.forget(id);
        self.offer(id.layer, id.expert);
    }

    /// Undoes [`Self::take`].
    fn give_back(&mut self, id: PlaneId) {
        let (bytes, number) = self.table.plane(id);
        let slot = &mut self.slots[number];
        let is_back = slot.top().is_none();
        slot.resident |= bit(id.plane);
        self.map.set(id.layer, id.expert, slot.planes());
        self.held_experts += usize::from(is_back);
        self.used_bytes += bytes;
        self.layer_bytes[id.layer as usize] += bytes;
        self.offer(id.layer, id.expert);
    }

    /// Returns the score of an expert's eviction candidate, as ascending bits.
    fn key(&self, number: usize) -> Option<u64> {
        let slot = self.slots.get(number)?;
        let id = self.candidate(number)?;
        let score = match slot.expected == self.step {
            true => self.policy.expected_score(id),
            false => self.policy.retention_score(id),
        };
        Some(ascending_bits(score))
    }

    /// Returns the plane that represents an expert in the heap: its topmost one, or its first if slots are
    /// counted.
    fn candidate(&self, number: usize) -> Option<PlaneId> {
        let slot = self.slots.get(number)?;
        let plane = match self.slot_capacity {
            None => slot.evictable()?,
            Some(_) => slot.is_evictable().then_some(Plane::P2)?,
        };
        Some(PlaneId { layer: slot.layer, expert: slot.expert, plane })
    }

    pub(super) fn is_floor(&self, id: PlaneId, layer: Option<u32>) -> bool {
        if layer.is_none_or(|layer| layer == id.layer) {
            return false;
        }
        let floor = self.floor_share * self.budget_bytes as f64;
        let held = self.layer_bytes[id.layer as usize];
        let (bytes, _) = self.table.plane(id);
        (held.saturating_sub(bytes) as f64) < floor
    }

    fn build(&mut self) {
        if self.victims.built {
            return;
        }
        let mut list = std::mem::take(&mut self.victims.heap).into_vec();
        list.clear();
        list.extend(
            (0..self.slots.len()).filter_map(|number| Some(Reverse((self.key(number)?, number)))),
        );
        self.victims.heap = list.into();
        self.victims.spared.resize(self.layer_bytes.len(), Vec::new());
        self.victims.spared.iter_mut().for_each(Vec::clear);
        self.victims.built = true;
    }
}

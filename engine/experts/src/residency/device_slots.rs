//! Residency of experts in device slots of one size. An expert occupies a slot from its first plane to its
//! last, so whole experts are evicted, and slots are counted instead of bytes.

use super::{Admission, PlaneId, Residency, plane_at};

impl Residency {
    /// Limits the cache to this number of experts, at least one. Bytes are not limited any further.
    pub fn set_slot_capacity(&mut self, capacity: usize, evicted: &mut Vec<PlaneId>) {
        let capacity = capacity.max(1);
        self.slot_capacity = Some(capacity);
        self.victims.forget();
        while self.held_experts > capacity
            && let Some(victim) = self.victim(None, f64::INFINITY)
        {
            self.evict_expert(victim, evicted);
        }
    }

    /// Evicts experts with the lowest scores until `bytes` are freed.
    pub(super) fn shed_slots(&mut self, bytes: u64, evicted: &mut Vec<PlaneId>) {
        let target = self.used_bytes.saturating_sub(bytes);
        while self.used_bytes > target
            && let Some(victim) = self.victim(None, f64::INFINITY)
        {
            self.evict_expert(victim, evicted);
        }
    }

    /// Frees a slot for a plane's expert, unless it already has one.
    pub(super) fn make_slot_room(
        &mut self,
        id: PlaneId,
        capacity: usize,
        admission: Admission,
        evicted: &mut Vec<PlaneId>,
    ) -> bool {
        if self.slot(id.layer, id.expert).is_some_and(|slot| slot.top().is_some()) {
            return true;
        }
        let admission_threshold = self.admission_threshold(id, admission);
        while self.held_experts >= capacity {
            let Some(victim) = self.victim(Some(id.layer), admission_threshold) else {
                return false;
            };
            self.evict_expert(victim, evicted);
        }
        true
    }

    /// Removes all planes of an expert, from the top.
    fn evict_expert(&mut self, victim: PlaneId, evicted: &mut Vec<PlaneId>) {
        let (_, number) = self.table.plane(victim);
        let slot = self.slots[number];
        let held = (0..super::PLANES).rev().filter(|plane| slot.resident >> plane & 1 == 1);
        for plane in held.filter_map(plane_at) {
            self.evict(PlaneId { layer: slot.layer, expert: slot.expert, plane }, evicted);
        }
    }
}

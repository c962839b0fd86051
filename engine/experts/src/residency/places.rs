//! Experts in slots of one size, on devices: an expert takes a slot with its first plane and leaves it
//! with its last, so whole experts leave, and it is slots that are counted.

use super::{Admission, PlaneId, Residency, plane_at};

impl Residency {
    /// At most so many experts are held from now on, one at least; bytes limit nothing any more.
    pub fn set_places(&mut self, places: usize, evicted: &mut Vec<PlaneId>) {
        let places = places.max(1);
        self.places = Some(places);
        self.victims.forget();
        while self.held_experts > places
            && let Some(victim) = self.victim(None, f64::INFINITY)
        {
            self.leave(victim, evicted);
        }
    }

    /// Lets go of experts, those that are worth least, until they were so many bytes.
    pub(super) fn shed_places(&mut self, bytes: u64, evicted: &mut Vec<PlaneId>) {
        let target = self.used_bytes.saturating_sub(bytes);
        while self.used_bytes > target
            && let Some(victim) = self.victim(None, f64::INFINITY)
        {
            self.leave(victim, evicted);
        }
    }

    /// A slot for a plane's expert, if it has none yet.
    pub(super) fn make_place(
        &mut self,
        id: PlaneId,
        places: usize,
        admission: Admission,
        evicted: &mut Vec<PlaneId>,
    ) -> bool {
        if self.slot(id.layer, id.expert).is_some_and(|slot| slot.top().is_some()) {
            return true;
        }
        let ceiling = self.ceiling(id, admission);
        while self.held_experts >= places {
            let Some(victim) = self.victim(Some(id.layer), ceiling) else { return false };
            self.leave(victim, evicted);
        }
        true
    }

    /// Takes all planes of an expert out of the books, from the top.
    fn leave(&mut self, victim: PlaneId, evicted: &mut Vec<PlaneId>) {
        let (_, number) = self.table.plane(victim);
        let slot = self.slots[number];
        let held = (0..super::PLANES).rev().filter(|plane| slot.resident >> plane & 1 == 1);
        for plane in held.filter_map(plane_at) {
            self.evict(PlaneId { layer: slot.layer, expert: slot.expert, plane }, evicted);
        }
    }
}

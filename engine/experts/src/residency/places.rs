//! Experts in slots of one size, on devices: an expert takes a slot with its first plane and leaves it
//! with its last, so whole experts leave, and it is slots that are counted.

use super::{Admission, PlaneId, Residency, plane_at};
use nestling_formats::Plane;

impl Residency {
    /// At most so many experts are held from now on, one at least; bytes limit nothing any more.
    pub fn set_places(&mut self, places: usize, evicted: &mut Vec<PlaneId>) {
        let places = places.max(1);
        self.places = Some(places);
        while let (held, Some(number)) = self.leaving(None, f64::INFINITY)
            && held > places
        {
            self.leave(number, evicted);
        }
    }

    /// Lets go of experts, those that are worth least, until they were so many bytes.
    pub(super) fn shed_places(&mut self, bytes: u64, evicted: &mut Vec<PlaneId>) {
        let target = self.used_bytes.saturating_sub(bytes);
        while self.used_bytes > target
            && let (_, Some(number)) = self.leaving(None, f64::INFINITY)
        {
            self.leave(number, evicted);
        }
    }

    /// A slot for a plane's expert, if it has none yet.
    pub(super) fn make_place(
        &mut self,
        id: PlaneId,
        (places, admission): (usize, Admission),
        evicted: &mut Vec<PlaneId>,
    ) -> bool {
        if self.slot(id.layer, id.expert).is_some_and(|slot| slot.top().is_some()) {
            return true;
        }
        let ceiling = self.ceiling(id, admission);
        loop {
            match self.leaving(Some(id.layer), ceiling) {
                (held, _) if held < places => return true,
                (_, Some(number)) => self.leave(number, evicted),
                (_, None) => return false,
            }
        }
    }

    /// How many experts are held, and the number of the one that leaves first: the least by the
    /// worth of its first plane, those that a layer may keep after all others.
    fn leaving(&self, layer: Option<u32>, ceiling: f64) -> (usize, Option<usize>) {
        let mut held = 0;
        let mut least: Option<((bool, f64), usize)> = None;
        for (number, slot) in self.slots.iter().enumerate() {
            held += usize::from(slot.top().is_some());
            if slot.pins > 0 || slot.reading != 0 || slot.resident == 0 {
                continue;
            }
            let id = PlaneId { layer: slot.layer, expert: slot.expert, plane: Plane::P2 };
            let expected = slot.expected == self.step;
            let worth =
                if expected { self.policy.expected_worth(id) } else { self.policy.worth(id) };
            let is_floor = self.is_floor(id, layer);
            let key = (is_floor, worth);
            let allowed = worth < ceiling && !(is_floor && ceiling.is_finite());
            if allowed && least.is_none_or(|(other, _)| key < other) {
                least = Some((key, number));
            }
        }
        (held, least.map(|(_, number)| number))
    }

    /// Takes all planes of an expert out of the books, from the top.
    fn leave(&mut self, number: usize, evicted: &mut Vec<PlaneId>) {
        let Some(slot) = self.slots.get(number).copied() else { return };
        let held = (0..super::PLANES).rev().filter(|plane| slot.resident >> plane & 1 == 1);
        for plane in held.filter_map(plane_at) {
            self.evict(PlaneId { layer: slot.layer, expert: slot.expert, plane }, evicted);
        }
    }
}

//! Which planes of which experts are in memory, under a budget in bytes: books alone, without
//! reads, threads or clocks.
//!
//! Each plane is absent, being read, or resident. [`Residency`] decides what leaves when another
//! comes; an [`EvictionPolicy`] gives planes retention scores. Planes of an expert leave from the
//! top, refinements before the base.
//!
//! Victims come from a heap by retention score, of the topmost planes where bytes are counted, of whole experts where
//! slots of a device are. It is built at the first eviction of a step; a score that rose since is noticed when
//! a plane is popped, so no eviction looks at all experts. RetentionGoal that fell within the step counts from the next
//! one on.

mod blend;
mod counters;
mod device_slots;
mod frequency;
pub mod order;
mod policy;
mod table;
#[cfg(test)]
mod tests;
mod victims;

use std::sync::Arc;

use nestling_formats::memory::{OutOfMemory, try_with_capacity, try_zeroed};
use nestling_formats::{ExpertId, Plane};

pub use counters::ResidencyCounters;
pub use frequency::{DecayedFrequency, FrequencyOptions};
pub use policy::{EvictionPolicy, LeastRecentlyUsed, RetentionGoal, StaticHotSet};
pub(crate) use table::BOOKS;
pub use table::{BLOCK_BYTES, ExpertEntry, ExpertTable, PlaneId};

use nestling_core::error::EngineError;
use policy::plane_at;
use victims::Victims;

/// Planes of an expert.
pub const PLANES: usize = Plane::ALL.len();

/// Whether a plane is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneState {
    /// It is not, or the store has none.
    Absent,
    /// Its bytes are counted, and a read of it is on its way.
    Reading,
    /// It is.
    Resident,
}

/// What may leave for a plane that is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// Anything that is not pinned.
    Needed,
    /// Only what has a lower score than the plane itself: for one that is used if it is there and not
    /// waited for, so that rare refinements do not cost others their base.
    Optional,
    /// Only what has less than half of the plane's own score: for one that is used where it lies until it
    /// has come, and could be used elsewhere in less time from then on.
    Promotion,
    /// Only what has a lower score than a plane that a prediction says will be used in this step.
    Prefetch,
}

/// How to keep planes.
pub struct ResidencyOptions {
    /// Bytes of all planes together.
    pub budget_bytes: u64,
    /// What leaves first.
    pub policy: Box<dyn EvictionPolicy>,
    /// Share of the budget, 0 to 1, that is divided among the layers; what a layer holds up to its
    /// part is not taken by others.
    pub floor_share: f64,
}

impl ResidencyOptions {
    /// These bytes, and the policy that serves best where nothing is known of the text.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(table: &Arc<ExpertTable>, budget_bytes: u64) -> Result<Self, OutOfMemory> {
        let policy = DecayedFrequency::new(Arc::clone(table), FrequencyOptions::default())?;
        Ok(Self { budget_bytes, policy: Box::new(policy), floor_share: 0.25 })
    }
}

impl std::fmt::Debug for ResidencyOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ResidencyOptions({} bytes, floors {})", self.budget_bytes, self.floor_share)
    }
}

/// What is known of one expert's planes; bit i stands for plane i.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    layer: u32,
    expert: u32,
    resident: u8,
    reading: u8,
    /// Came by prefetch and has not been used since.
    prefetched: u8,
    pins: u32,
    /// The step in which a prediction said that it would be used, if it was not used since.
    expected: u64,
}

impl Slot {
    /// The highest plane that has a place in memory.
    fn top(&self) -> Option<usize> {
        let held = u32::from(self.resident | self.reading);
        held.checked_ilog2().map(|top| top as usize)
    }

    /// The plane that could leave now.
    fn evictable(&self) -> Option<Plane> {
        let top = self.top().filter(|top| self.pins == 0 && self.resident >> top & 1 == 1)?;
        plane_at(top)
    }

    /// Whether all planes could leave now.
    fn is_evictable(&self) -> bool {
        self.pins == 0 && self.reading == 0 && self.resident != 0
    }
}

/// The books of the expert cache.
pub struct Residency {
    table: Arc<ExpertTable>,
    policy: Box<dyn EvictionPolicy>,
    slots: Vec<Slot>,
    budget_bytes: u64,
    /// Experts that may be held, where slots are counted and not bytes.
    slot_capacity: Option<usize>,
    used_bytes: u64,
    /// Experts of which a plane is resident or being read.
    held_experts: usize,
    layer_bytes: Vec<u64>,
    /// Share of the budget that others may not take from a layer.
    floor_share: f64,
    /// Counts from 1.
    step: u64,
    victims: Victims,
    /// What was asked of the policy last; before that it is its own.
    goal: Option<RetentionGoal>,
    counters: ResidencyCounters,
}

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Residency({} of {} bytes)", self.used_bytes, self.budget_bytes)
    }
}

impl Residency {
    /// An empty cache.
    ///
    /// # Errors
    /// [`EngineError::ExpertBudget`] if one token's experts of one layer do not fit;
    /// [`EngineError::Memory`].
    pub fn new(table: Arc<ExpertTable>, options: ResidencyOptions) -> Result<Self, EngineError> {
        check_budget(&table, options.budget_bytes)?;
        let mut slots = try_with_capacity(BOOKS, table.len())?;
        for (layer, experts) in (0..).zip(table.layers()) {
            let slot = |expert| Slot { layer, expert, ..Slot::default() };
            slots.extend((0..experts.len() as u32).map(slot));
        }
        let layers = table.layers().iter().filter(|layer| !layer.is_empty()).count();
        Ok(Self {
            slots,
            budget_bytes: options.budget_bytes,
            slot_capacity: None,
            used_bytes: 0,
            held_experts: 0,
            layer_bytes: try_zeroed(BOOKS, table.layers().len())?,
            floor_share: options.floor_share.clamp(0.0, 1.0) / layers.max(1) as f64,
            step: 1,
            victims: Victims::new(table.len())?,
            goal: None,
            counters: ResidencyCounters::default(),
            policy: options.policy,
            table,
        })
    }

    /// The experts that may be kept.
    pub fn table(&self) -> &Arc<ExpertTable> {
        &self.table
    }

    /// A step of the model begins: predictions of the last one are forgotten, old uses fade.
    pub fn begin_step(&mut self) {
        self.step += 1;
        self.policy.begin_step();
        self.victims.forget();
    }

    /// What planes are kept for from now on.
    pub fn set_goal(&mut self, goal: RetentionGoal) {
        if self.goal != Some(goal) {
            self.goal = Some(goal);
            self.policy.set_goal(goal);
            self.victims.forget();
        }
    }

    /// `rows` rows of the step use the first `planes` planes of an expert. To be said once per
    /// step and expert, before its missing planes are admitted: it counts hits and misses.
    pub fn used(&mut self, layer: u32, expert: u32, planes: usize, rows: u32) {
        // Default: an expert that is not in the table is not kept.
        let Some(number) = self.table.number(layer, expert) else { return };
        self.policy.used(ExpertId { layer, expert }, planes, rows);
        let entry = &self.table.layers()[layer as usize][expert as usize];
        let slot = &mut self.slots[number];
        for (plane, bytes) in entry.plane_bytes.iter().take(planes).enumerate() {
            let bit = 1 << plane;
            if *bytes > 0 {
                let prefetched = slot.prefetched & bit != 0;
                self.counters.count_use(plane, *bytes, state(slot, bit), prefetched);
            }
            slot.prefetched &= !bit;
        }
        let was_expected = std::mem::take(&mut slot.expected) == self.step;
        if was_expected && self.slot_capacity.is_some() {
            // Its score is lower from here on.
            self.offer(layer, expert);
        }
    }

    /// How many planes of an expert, from the first, are resident.
    pub fn resident(&self, layer: u32, expert: u32) -> usize {
        self.slot(layer, expert).map_or(0, |slot| slot.resident.trailing_ones() as usize)
    }

    /// Whether a plane is resident.
    pub fn state(&self, id: PlaneId) -> PlaneState {
        let slot = self.slot(id.layer, id.expert);
        slot.map_or(PlaneState::Absent, |slot| state(slot, bit(id.plane)))
    }

    /// Keeps an expert's planes from leaving until [`Self::unpin`] was called as often.
    pub fn pin(&mut self, layer: u32, expert: u32) {
        if let Some(slot) = self.slot_mut(layer, expert) {
            slot.pins = slot.pins.saturating_add(1);
        }
    }

    /// Takes one [`Self::pin`] back.
    pub fn unpin(&mut self, layer: u32, expert: u32) {
        // Default: an expert that is not in the table is not kept.
        let Some(slot) = self.slot_mut(layer, expert) else { return };
        slot.pins = slot.pins.saturating_sub(1);
        self.offer(layer, expert);
    }

    /// A prediction says that the expert will be used before the step ends: until then, or until
    /// it is used, its score is no lower than what a prefetch may take.
    pub fn expect(&mut self, layer: u32, expert: u32) {
        let step = self.step;
        if let Some(slot) = self.slot_mut(layer, expert) {
            slot.expected = step;
        }
    }

    /// Makes room for a plane that is to be read, naming in `evicted` what has to leave at once.
    ///
    /// True if the plane's bytes are counted and it is [`PlaneState::Reading`] now. False if it was
    /// not absent, if the store has none or a plane before it is absent, or if there is no room: all
    /// that might leave is pinned or being read, or, for a prefetch, has as high a score.
    pub fn admit(&mut self, id: PlaneId, admission: Admission, evicted: &mut Vec<PlaneId>) -> bool {
        let Some(bytes) = self.absent_bytes(id) else { return false };
        if admission == Admission::Prefetch {
            self.expect(id.layer, id.expert);
        }
        self.pin(id.layer, id.expert);
        let room = self.make_room(id, bytes, admission, evicted);
        self.unpin(id.layer, id.expert);
        if !room {
            self.counters.refused += u64::from(admission == Admission::Needed);
            return false;
        }
        let Some(slot) = self.slot_mut(id.layer, id.expert) else { return false };
        let is_new = slot.top().is_none();
        slot.reading |= bit(id.plane);
        if admission == Admission::Prefetch {
            slot.prefetched |= bit(id.plane);
            self.counters.prefetched_bytes[id.plane.index()] += bytes;
        }
        self.held_experts += usize::from(is_new);
        self.used_bytes += bytes;
        self.layer_bytes[id.layer as usize] += bytes;
        if self.slot_capacity.is_some() {
            self.offer_spared(id.layer);
        }
        self.counters.bytes_peak = self.counters.bytes_peak.max(self.used_bytes);
        true
    }

    /// The plane has been read.
    pub fn arrived(&mut self, id: PlaneId) {
        // Default: an expert that is not in the table is not kept.
        let Some(slot) = self.slot_mut(id.layer, id.expert) else { return };
        let bit = bit(id.plane);
        if slot.reading & bit != 0 {
            slot.reading &= !bit;
            slot.resident |= bit;
            self.offer(id.layer, id.expert);
        }
    }

    /// The plane could not be read, or is no longer wanted: it is absent again.
    pub fn failed(&mut self, id: PlaneId) {
        // Default: an expert that is not in the table is not kept.
        let Some(slot) = self.slot_mut(id.layer, id.expert) else { return };
        if slot.reading & bit(id.plane) != 0 {
            self.forget(id);
            self.offer(id.layer, id.expert);
        }
    }

    /// Changes the budget. What is pinned or being read leaves later, when it can. Where slots are
    /// counted, nothing leaves before [`Residency::set_slot_capacity`].
    ///
    /// # Errors
    /// [`EngineError::ExpertBudget`], and nothing has changed.
    pub fn set_budget(
        &mut self,
        bytes: u64,
        evicted: &mut Vec<PlaneId>,
    ) -> Result<(), EngineError> {
        check_budget(&self.table, bytes)?;
        self.budget_bytes = bytes;
        self.victims.forget();
        if self.slot_capacity.is_some() {
            return Ok(());
        }
        while self.used_bytes > self.budget_bytes {
            let Some(victim) = self.victim(None, f64::INFINITY) else { break };
            self.evict(victim, evicted);
        }
        Ok(())
    }

    /// Gives `bytes` back at once, or all that is neither pinned nor being read: refinements of all
    /// experts before any base. The budget stays.
    pub fn shed(&mut self, bytes: u64, evicted: &mut Vec<PlaneId>) {
        if self.slot_capacity.is_some() {
            return self.shed_slots(bytes, evicted);
        }
        let target = self.used_bytes.saturating_sub(bytes);
        let mut planes: Vec<(bool, f64, std::cmp::Reverse<PlaneId>)> = Vec::new();
        for slot in self.slots.iter().filter(|slot| slot.evictable().is_some()) {
            let held = (0..PLANES).filter(|plane| slot.resident >> plane & 1 == 1);
            for plane in held.filter_map(plane_at) {
                let id = PlaneId { layer: slot.layer, expert: slot.expert, plane };
                let base = plane == Plane::P2;
                planes.push((base, self.policy.retention_score(id), std::cmp::Reverse(id)));
            }
        }
        // Of one expert, a plane scores no higher than those below it: they leave from the top.
        planes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        for (_, _, std::cmp::Reverse(id)) in planes {
            if self.used_bytes <= target {
                break;
            }
            self.evict(id, evicted);
        }
    }

    /// Lets go of all planes of an expert that is not pinned; those that are being read stay.
    pub fn discard(&mut self, layer: u32, expert: u32, evicted: &mut Vec<PlaneId>) {
        // Default: an expert that is in use keeps its planes; one that is not in the table has none.
        let Some(slot) = self.slot(layer, expert).copied().filter(|slot| slot.pins == 0) else {
            return;
        };
        let held = (0..PLANES).rev().filter(|plane| slot.resident >> plane & 1 == 1);
        for plane in held.filter_map(plane_at) {
            self.evict(PlaneId { layer, expert, plane }, evicted);
        }
    }

    /// Bytes that all planes together may take.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes that they take, those that are being read among them.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// What was hit, missed, evicted.
    pub fn counters(&self) -> ResidencyCounters {
        self.counters
    }

    fn slot(&self, layer: u32, expert: u32) -> Option<&Slot> {
        self.slots.get(self.table.number(layer, expert)?)
    }

    fn slot_mut(&mut self, layer: u32, expert: u32) -> Option<&mut Slot> {
        self.slots.get_mut(self.table.number(layer, expert)?)
    }

    /// Bytes of a plane that could be admitted.
    fn absent_bytes(&self, id: PlaneId) -> Option<u64> {
        let slot = self.slot(id.layer, id.expert)?;
        let bytes = self.table.entry(id.layer, id.expert)?.plane_bytes[id.plane.index()];
        let held = slot.resident | slot.reading;
        let below = held.trailing_ones() as usize >= id.plane.index();
        (bytes > 0 && below && held & bit(id.plane) == 0).then_some(bytes)
    }
}

fn bit(plane: Plane) -> u8 {
    1 << plane.index()
}

fn state(slot: &Slot, bit: u8) -> PlaneState {
    match (slot.resident & bit != 0, slot.reading & bit != 0) {
        (true, _) => PlaneState::Resident,
        (_, true) => PlaneState::Reading,
        _ => PlaneState::Absent,
    }
}

fn check_budget(table: &ExpertTable, asked: u64) -> Result<(), EngineError> {
    let least = table.least_bytes();
    if asked < least { Err(EngineError::ExpertBudget { asked, least }) } else { Ok(()) }
}

//! Residency of expert planes in memory under a budget in bytes. Pure bookkeeping, without reads, threads or
//! clocks.
//!
//! A plane is absent, being read, or resident. [`Residency`] chooses victims for eviction, based on retention
//! scores of an [`EvictionPolicy`]. Planes of an expert are evicted from the top, refinements before the
//! base.
//!
//! Victims come from a heap of retention scores. It contains topmost planes if bytes are counted, and whole
//! experts if device slots are counted. The heap is built at the first eviction of a step. Scores that rose
//! since are updated when a plane is popped, so no eviction scans all experts. Scores that fell within the
//! step take effect in the next one.

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
pub use nestling_core::placement::Placement;
pub use policy::{EvictionPolicy, LeastRecentlyUsed, RetentionGoal, StaticHotSet};
pub(crate) use table::BOOKS;
pub use table::{BLOCK_BYTES, ExpertEntry, ExpertTable, PlaneId};

use nestling_core::error::EngineError;
use nestling_core::expert_map::{ExpertPlanes, SharedExpertMap};
use policy::plane_at;
use victims::Victims;

/// Number of planes of an expert.
pub const PLANES: usize = Plane::ALL.len();

/// State of a plane in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlaneState {
    /// Absent from memory, or from the store.
    Absent,
    /// Counted in the budget, and being read.
    Reading,
    /// Available in memory.
    Resident,
}

/// Rule for evictions in favour of a plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Admission {
    /// May evict any plane that is not pinned.
    Needed,
    /// May only evict planes with a lower score than the plane's own. For planes that are used if resident
    /// but not waited for, so that rare refinements do not evict base planes.
    Optional,
    /// May only evict planes with less than half of the plane's own score. For planes that are usable in
    /// their present place until they arrive, and faster to use afterwards.
    Promotion,
    /// May only evict planes with a lower score than a plane predicted for the current step.
    Prefetch,
}

/// Settings of residency.
///
/// ```
/// use std::sync::Arc;
/// use nestling_experts::residency::{ExpertTable, LeastRecentlyUsed, ResidencyOptions};
///
/// let table = Arc::new(ExpertTable::new(Vec::new(), 4));
/// let options = ResidencyOptions {
///     policy: Box::new(LeastRecentlyUsed::new(Arc::clone(&table))),
///     ..ResidencyOptions::new(&table, 64 << 20)?
/// };
/// assert_eq!(options.budget_bytes, 64 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ResidencyOptions {
    /// Budget for all planes in bytes.
    pub budget_bytes: u64,
    /// Policy that chooses victims.
    pub policy: Box<dyn EvictionPolicy>,
    /// Share of the budget, 0 to 1, reserved in equal parts for the layers. Other layers do not evict planes
    /// within a layer's part.
    pub floor_share: f64,
}

impl ResidencyOptions {
    /// Returns settings with this budget and the default policy.
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

/// State of one expert's planes; bit i stands for plane i.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    layer: u32,
    expert: u32,
    resident: u8,
    reading: u8,
    /// Planes that were prefetched and not used since.
    prefetched: u8,
    pins: u32,
    /// Step for which the expert is predicted, unless it was used since.
    expected: u64,
    /// Step of the last use; 0 before the first.
    last_used: u64,
}

impl Slot {
    fn planes(&self) -> ExpertPlanes {
        let Self { resident, reading: arriving, last_used, .. } = *self;
        ExpertPlanes { resident, arriving, last_used }
    }

    /// Returns the highest plane that is resident or being read.
    fn top(&self) -> Option<usize> {
        let held = u32::from(self.resident | self.reading);
        held.checked_ilog2().map(|top| top as usize)
    }

    /// Returns the plane that can be evicted next.
    fn evictable(&self) -> Option<Plane> {
        let top = self.top().filter(|top| self.pins == 0 && self.resident >> top & 1 == 1)?;
        plane_at(top)
    }

    /// Returns whether all planes can be evicted.
    fn is_evictable(&self) -> bool {
        self.pins == 0 && self.reading == 0 && self.resident != 0
    }
}

/// Bookkeeping of the expert cache.
pub struct Residency {
    table: Arc<ExpertTable>,
    policy: Box<dyn EvictionPolicy>,
    slots: Vec<Slot>,
    budget_bytes: u64,
    /// Maximum number of experts, if slots are counted instead of bytes.
    slot_capacity: Option<usize>,
    used_bytes: u64,
    /// Number of experts with a plane that is resident or being read.
    held_experts: usize,
    layer_bytes: Vec<u64>,
    /// Share of the budget reserved for the layers.
    floor_share: f64,
    /// Number of the current step, from 1.
    step: u64,
    victims: Victims,
    /// Goal last set on the policy; `None` before.
    goal: Option<RetentionGoal>,
    counters: ResidencyCounters,
    /// Copy of the slots for other threads.
    map: Arc<SharedExpertMap>,
}

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Residency({} of {} bytes)", self.used_bytes, self.budget_bytes)
    }
}

impl Residency {
    /// Creates an empty cache.
    ///
    /// # Errors
    /// [`EngineError::ExpertBudget`] if one token's experts of one layer do not fit; [`EngineError::Memory`].
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
            map: Arc::new(SharedExpertMap::new(table.layers().iter().map(Vec::len))?),
            policy: options.policy,
            table,
        })
    }

    /// Returns the table of experts.
    pub fn table(&self) -> &Arc<ExpertTable> {
        &self.table
    }

    /// Returns the map of the planes, which other threads may read.
    pub fn map(&self) -> &Arc<SharedExpertMap> {
        &self.map
    }

    /// Starts a step: discards predictions of the previous step and decays old uses.
    pub fn begin_step(&mut self) {
        self.step += 1;
        self.map.begin_step(self.step);
        self.policy.begin_step();
        self.victims.forget();
    }

    /// Sets the goal of retention.
    pub fn set_goal(&mut self, goal: RetentionGoal) {
        if self.goal != Some(goal) {
            self.goal = Some(goal);
            self.policy.set_goal(goal);
            self.victims.forget();
        }
    }

    /// Records that `rows` rows of the step use the first `planes` planes of an expert, and counts hits and
    /// misses. Must be called once per step and expert, before missing planes are admitted.
    pub fn used(&mut self, layer: u32, expert: u32, planes: usize, rows: u32) {
        // Default: experts outside the table are not cached.
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
        slot.last_used = self.step;
        self.map.set(layer, expert, slot.planes());
        let was_expected = std::mem::take(&mut slot.expected) == self.step;
        if was_expected && self.slot_capacity.is_some() {
            // The expert's score drops when the prediction is fulfilled.
            self.offer(layer, expert);
        }
    }

    /// Returns the number of an expert's resident planes, from the first.
    pub fn resident(&self, layer: u32, expert: u32) -> usize {
        self.slot(layer, expert).map_or(0, |slot| slot.resident.trailing_ones() as usize)
    }

    /// Returns the state of a plane.
    pub fn state(&self, id: PlaneId) -> PlaneState {
        let slot = self.slot(id.layer, id.expert);
        slot.map_or(PlaneState::Absent, |slot| state(slot, bit(id.plane)))
    }

    /// Prevents evictions of an expert's planes until [`Self::unpin`] is called equally often.
    pub fn pin(&mut self, layer: u32, expert: u32) {
        if let Some(slot) = self.slot_mut(layer, expert) {
            slot.pins = slot.pins.saturating_add(1);
        }
    }

    /// Undoes one [`Self::pin`].
    pub fn unpin(&mut self, layer: u32, expert: u32) {
        // Default: experts outside the table are not cached.
        let Some(slot) = self.slot_mut(layer, expert) else { return };
        slot.pins = slot.pins.saturating_sub(1);
        self.offer(layer, expert);
    }

    /// Notes that the expert is predicted to be used in this step. Until it is used or the step ends,
    /// prefetches cannot evict it.
    pub fn expect(&mut self, layer: u32, expert: u32) {
        let step = self.step;
        if let Some(slot) = self.slot_mut(layer, expert) {
            slot.expected = step;
        }
    }

    /// Reserves space for a plane to be read. Planes that must be evicted immediately are appended to
    /// `evicted`.
    ///
    /// Returns true if the plane is counted and [`PlaneState::Reading`]. Returns false if it was not absent,
    /// the store lacks it, a lower plane is absent, or there is no space. There is no space if all candidates
    /// are pinned, being read, or too valuable for the admission.
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
        self.note(id);
        self.held_experts += usize::from(is_new);
        self.used_bytes += bytes;
        self.layer_bytes[id.layer as usize] += bytes;
        if self.slot_capacity.is_some() {
            self.offer_spared(id.layer);
        }
        self.counters.bytes_peak = self.counters.bytes_peak.max(self.used_bytes);
        true
    }

    /// Marks a plane as read.
    pub fn arrived(&mut self, id: PlaneId) {
        // Default: experts outside the table are not cached.
        let Some(slot) = self.slot_mut(id.layer, id.expert) else { return };
        let bit = bit(id.plane);
        if slot.reading & bit != 0 {
            slot.reading &= !bit;
            slot.resident |= bit;
            self.note(id);
            self.offer(id.layer, id.expert);
        }
    }

    /// Marks a plane as absent, after its read failed or was abandoned.
    pub fn failed(&mut self, id: PlaneId) {
        // Default: experts outside the table are not cached.
        let Some(slot) = self.slot_mut(id.layer, id.expert) else { return };
        if slot.reading & bit(id.plane) != 0 {
            self.forget(id);
            self.offer(id.layer, id.expert);
        }
    }

    /// Changes the budget. Planes that are pinned or being read are evicted later. If slots are counted,
    /// nothing is evicted before [`Residency::set_slot_capacity`].
    ///
    /// # Errors
    /// [`EngineError::ExpertBudget`]; the budget is then unchanged.
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

    /// Evicts `bytes` immediately, or everything that is neither pinned nor being read. Refinements of all
    /// experts go before any base plane. The budget is unchanged.
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
        // Planes of an expert never score higher than lower planes, so they are evicted from the top.
        planes.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).then(a.2.cmp(&b.2)));
        for (_, _, std::cmp::Reverse(id)) in planes {
            if self.used_bytes <= target {
                break;
            }
            self.evict(id, evicted);
        }
    }

    /// Evicts all resident planes of an expert that is not pinned. Planes being read stay.
    pub fn discard(&mut self, layer: u32, expert: u32, evicted: &mut Vec<PlaneId>) {
        // Default: a pinned expert keeps its planes, and an expert outside the table has none.
        let Some(slot) = self.slot(layer, expert).copied().filter(|slot| slot.pins == 0) else {
            return;
        };
        let held = (0..PLANES).rev().filter(|plane| slot.resident >> plane & 1 == 1);
        for plane in held.filter_map(plane_at) {
            self.evict(PlaneId { layer, expert, plane }, evicted);
        }
    }

    /// Returns the budget in bytes.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Returns the bytes in use, including planes being read.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the counters of hits, misses and evictions.
    pub fn counters(&self) -> ResidencyCounters {
        self.counters
    }

    /// Copies the slot of a plane's expert to the map.
    fn note(&self, id: PlaneId) {
        if let Some(slot) = self.slot(id.layer, id.expert) {
            self.map.set(id.layer, id.expert, slot.planes());
        }
    }

    fn slot(&self, layer: u32, expert: u32) -> Option<&Slot> {
        self.slots.get(self.table.number(layer, expert)?)
    }

    fn slot_mut(&mut self, layer: u32, expert: u32) -> Option<&mut Slot> {
        self.slots.get_mut(self.table.number(layer, expert)?)
    }

    /// Returns the bytes of a plane that can be admitted.
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

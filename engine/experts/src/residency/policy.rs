//! Which plane leaves first: the seam between the books and what is believed about the future.

use std::sync::Arc;

use nestling_formats::{ExpertId, Plane};

use super::PLANES;
use super::table::{ExpertTable, PlaneId};

/// What a plane is kept for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionGoal {
    /// Bytes that need not be read again: right where every plane that is asked for is waited for.
    #[default]
    Bytes,
    /// Error that need not be suffered: right where late planes are not waited for. Bases are, so
    /// they come before all refinements.
    Error,
}

/// The retention scores of the planes of experts.
///
/// A policy sees every use, of experts that are resident and of those that are not, so what it
/// learnt of an expert outlives its eviction (the "ghosts" of other caches).
pub trait EvictionPolicy: Send {
    /// A step begins: the clock of decay.
    fn begin_step(&mut self) {}

    /// `rows` rows of the step use the first `planes` planes of an expert.
    fn used(&mut self, expert: ExpertId, planes: usize, rows: u32);

    /// What planes are kept for from now on, where that makes a difference to the policy.
    fn set_goal(&mut self, _goal: RetentionGoal) {}

    /// What a byte of the plane is worth keeping; the lowest score leaves first, and never falls from one
    /// plane of an expert to the one below it.
    fn retention_score(&self, plane: PlaneId) -> f64;

    /// The same of a plane that is predicted to be used before the step ends.
    fn expected_score(&self, plane: PlaneId) -> f64 {
        self.retention_score(plane)
    }
}

/// Planes of one expert, by their number.
type ByPlane = [f64; PLANES];

/// The plane that was used the longest ago leaves first.
///
/// A baseline. When the experts of one pass through the layers do not fit, it keeps none of them
/// until they are used again.
#[derive(Debug)]
pub struct LeastRecentlyUsed {
    table: Arc<ExpertTable>,
    last_used: Vec<ByPlane>,
    clock: f64,
}

impl LeastRecentlyUsed {
    /// Nothing has been used yet.
    pub fn new(table: Arc<ExpertTable>) -> Self {
        let last_used = vec![[0.0; PLANES]; table.len()];
        Self { table, last_used, clock: 0.0 }
    }
}

impl EvictionPolicy for LeastRecentlyUsed {
    fn used(&mut self, expert: ExpertId, planes: usize, _rows: u32) {
        self.clock += 1.0;
        let number = self.table.number(expert.layer, expert.expert);
        if let Some(last_used) = number.and_then(|number| self.last_used.get_mut(number)) {
            last_used.iter_mut().take(planes).for_each(|last| *last = self.clock);
        }
    }

    fn retention_score(&self, plane: PlaneId) -> f64 {
        of_plane(&self.table, &self.last_used, plane)
    }

    fn expected_score(&self, _plane: PlaneId) -> f64 {
        self.clock + 1.0
    }
}

/// A set of planes that stays; all others only pass through.
#[derive(Debug)]
pub struct StaticHotSet {
    table: Arc<ExpertTable>,
    scores: Vec<ByPlane>,
}

impl StaticHotSet {
    /// Keeps the experts that the store says are used most.
    pub fn of_frequencies(table: Arc<ExpertTable>) -> Self {
        let frequencies = table.layers().iter().flatten();
        let scores = frequencies.map(|entry| [f64::from(entry.frequency); PLANES]).collect();
        Self { table, scores }
    }

    /// Keeps the planes that were used most: `uses` of every plane of all experts, by layer.
    pub fn of_uses(table: Arc<ExpertTable>, uses: Vec<[f64; PLANES]>) -> Self {
        Self { table, scores: uses }
    }
}

impl EvictionPolicy for StaticHotSet {
    fn used(&mut self, _expert: ExpertId, _planes: usize, _rows: u32) {}

    fn retention_score(&self, plane: PlaneId) -> f64 {
        of_plane(&self.table, &self.scores, plane)
    }
}

fn of_plane(table: &ExpertTable, values: &[ByPlane], id: PlaneId) -> f64 {
    let number = table.number(id.layer, id.expert);
    let values = number.and_then(|number| values.get(number));
    values.map_or(0.0, |values| values[id.plane.index()])
}

/// The plane of that number.
pub(super) fn plane_at(index: usize) -> Option<Plane> {
    Plane::ALL.get(index).copied()
}

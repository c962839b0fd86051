//! Eviction policies, which score planes by their expected future use.

use std::sync::Arc;

use nestling_formats::{ExpertId, Plane};

use super::PLANES;
use super::table::{ExpertTable, PlaneId};

/// Goal of retaining planes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetentionGoal {
    /// Avoid reading bytes again: suits steps that wait for all requested planes.
    #[default]
    Bytes,
    /// Avoid errors: suits steps that leave out late planes. Base planes are always waited for, so they rank
    /// above all refinements.
    Error,
}

/// A source of retention scores for planes.
///
/// A policy sees uses of all experts, resident or not, so its knowledge of an expert survives eviction (the
/// "ghosts" of other caches).
pub trait EvictionPolicy: Send {
    /// Starts a step, the unit of decay.
    fn begin_step(&mut self) {}

    /// Records that `rows` rows of the step use the first `planes` planes of an expert.
    fn used(&mut self, expert: ExpertId, planes: usize, rows: u32);

    /// Sets the goal of retention, if the policy distinguishes goals.
    fn set_goal(&mut self, _goal: RetentionGoal) {}

    /// Returns the value of keeping a byte of the plane; the lowest score is evicted first. Must not decrease
    /// from a plane of an expert to the one below it.
    fn retention_score(&self, plane: PlaneId) -> f64;

    /// Returns the score of a plane that is predicted to be used in this step.
    fn expected_score(&self, plane: PlaneId) -> f64 {
        self.retention_score(plane)
    }
}

type ByPlane = [f64; PLANES];

/// Least recently used eviction by plane.
///
/// A baseline. If the experts of one pass through the layers do not fit, it evicts all of them before they
/// are used again.
#[derive(Debug)]
pub struct LeastRecentlyUsed {
    table: Arc<ExpertTable>,
    last_used: Vec<ByPlane>,
    clock: f64,
}

impl LeastRecentlyUsed {
    /// Creates the policy without uses.
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

/// A fixed set of planes that stays resident; others are evicted first.
#[derive(Debug)]
pub struct StaticHotSet {
    table: Arc<ExpertTable>,
    scores: Vec<ByPlane>,
}

impl StaticHotSet {
    /// Creates a set of the experts with the highest frequencies in the store.
    pub fn of_frequencies(table: Arc<ExpertTable>) -> Self {
        let frequencies = table.layers().iter().flatten();
        let scores = frequencies.map(|entry| [f64::from(entry.frequency); PLANES]).collect();
        Self { table, scores }
    }

    /// Creates a set of the most used planes. `uses` has the uses of each plane of all experts, by layer.
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

pub(super) fn plane_at(index: usize) -> Option<Plane> {
    Plane::ALL.get(index).copied()
}

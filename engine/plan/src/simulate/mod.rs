//! Discrete-event simulation of streaming: the engine's residency and read order, driven by a routing trace
//! on a parametrized machine. Used for machines that are not at hand, to compare policies and to check
//! claims.

mod hindsight;
mod layer;
mod levels;
mod machine;
mod synthetic;
#[cfg(test)]
mod tests;
mod uses;

pub use hindsight::{StaticOptimum, best_static};
pub use levels::{mean_level, route_levels};
pub use machine::Machine;
pub use nestling_core::routing_trace::{
    LayerRouting, RoutingTrace, TraceShape, TraceStep, TraceWriter,
};
pub use synthetic::SyntheticRouting;

use std::sync::Arc;

use layer::Run;
use nestling_core::error::EngineError;
use nestling_experts::residency::order::OrderRule;
use nestling_experts::residency::{
    ExpertTable, PLANES, Residency, ResidencyCounters, ResidencyOptions,
};

/// Unit of caching and eviction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheUnit {
    /// Planes: upgrading an expert reads only its missing planes.
    #[default]
    Planes,
    /// Whole experts: each level is a separate copy, read from the start and evicted as a whole. A copy also
    /// serves lower levels.
    Experts,
}

/// Treatment of planes that have not arrived when there is nothing else to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LatePlanes {
    /// Wait for them.
    #[default]
    Wait,
    /// Wait for the base plane only; compute experts with the planes available.
    Skip,
}

/// Prefetching for the next layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefetch {
    /// Share of the next layer's experts that are predicted correctly, 0 to 1. The other predictions are
    /// unused experts.
    pub accuracy: f64,
}

/// Settings of a simulated engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationOptions {
    /// Simulated machine.
    pub machine: Machine,
    /// Order of reads.
    pub order: OrderRule,
    /// Prefetching, if enabled.
    pub prefetch: Option<Prefetch>,
    /// Unit of caching and eviction.
    pub unit: CacheUnit,
    /// Treatment of late planes.
    pub late: LatePlanes,
    /// Number of initial steps that are run but not counted.
    pub warm_up: usize,
}

impl SimulationOptions {
    /// Returns the engine's default settings on a machine: planes, Johnson's order, no prefetching.
    pub fn new(machine: Machine) -> Self {
        Self {
            machine,
            order: OrderRule::default(),
            prefetch: None,
            unit: CacheUnit::default(),
            late: LatePlanes::default(),
            warm_up: 0,
        }
    }
}

/// Results of a simulation, after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Number of steps.
    pub steps: u64,
    /// Number of rows of all steps.
    pub rows: u64,
    /// Duration of the steps in nanoseconds.
    pub elapsed_ns: u64,
    /// Part of `elapsed_ns` in which the CPU waited for reads.
    pub stall_ns: u64,
    /// Transfer time of the disk in nanoseconds.
    pub read_ns: u64,
    /// Bytes read of each plane, including unused ones.
    pub read_bytes: [u64; PLANES],
    /// Sum of requested bits over all uses of experts.
    pub asked_bits: u64,
    /// Sum of the bits with which the uses were computed.
    pub served_bits: u64,
    /// Number of uses: experts over all layers and steps.
    pub expert_uses: u64,
    /// Counters of residency.
    pub counters: ResidencyCounters,
}

impl Outcome {
    /// Returns the rows per second.
    pub fn tokens_per_second(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.rows as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Returns the bytes read per row.
    pub fn read_bytes_per_token(&self) -> f64 {
        self.read_bytes.iter().sum::<u64>() as f64 / self.rows.max(1) as f64
    }

    /// Returns the bytes of planes that were not resident when used.
    pub fn missed_bytes(&self) -> u64 {
        self.counters.missed_bytes.iter().sum()
    }

    /// Returns the mean requested level and the mean served level.
    pub fn mean_levels(&self) -> (f64, f64) {
        let uses = self.expert_uses.max(1) as f64;
        (self.asked_bits as f64 / uses, self.served_bits as f64 / uses)
    }

    fn since(&self, earlier: &Self) -> Self {
        let mut read_bytes = self.read_bytes;
        read_bytes.iter_mut().zip(earlier.read_bytes).for_each(|(now, before)| *now -= before);
        Self {
            steps: self.steps - earlier.steps,
            rows: self.rows - earlier.rows,
            elapsed_ns: self.elapsed_ns - earlier.elapsed_ns,
            stall_ns: self.stall_ns - earlier.stall_ns,
            read_ns: self.read_ns - earlier.read_ns,
            read_bytes,
            asked_bits: self.asked_bits - earlier.asked_bits,
            served_bits: self.served_bits - earlier.served_bits,
            expert_uses: self.expert_uses - earlier.expert_uses,
            counters: self.counters.since(&earlier.counters),
        }
    }
}

/// Simulates a trace.
///
/// # Errors
/// [`EngineError::ExpertBudget`]; [`EngineError::Mismatch`] if the table belongs to another model.
pub fn simulate(
    trace: &RoutingTrace,
    table: &Arc<ExpertTable>,
    residency: ResidencyOptions,
    options: SimulationOptions,
) -> Result<Outcome, EngineError> {
    let experts = table.layers().iter().map(|layer| layer.len() as u32);
    if !experts.eq(trace.shape.experts.iter().copied()) {
        let expected = format!("{} experts", table.layers().iter().map(Vec::len).sum::<usize>());
        let found = format!("{} experts", trace.shape.experts.iter().sum::<u32>());
        return Err(EngineError::mismatch("routing trace", expected, found));
    }
    let books = Residency::new(Arc::clone(table), residency)?;
    let mut run = Run::new(books, options, trace.shape.experts_per_token);
    let mut warm = Outcome::default();
    for (number, step) in trace.steps.iter().enumerate() {
        if number == options.warm_up {
            warm = run.outcome();
        }
        run.step(step);
    }
    Ok(run.outcome().since(&warm))
}

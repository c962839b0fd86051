//! A discrete-event simulation of streaming: the cache's own books and orders, driven by a routing
//! trace, on a machine that is a few numbers. For machines that one does not have, policies that one
//! wants to compare, and claims that one wants to check.

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

/// What comes and goes together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheUnit {
    /// Planes: an expert is upgraded by those that it lacks.
    #[default]
    Planes,
    /// Whole experts, each level a copy of its own: another level is read from the beginning, and
    /// what is evicted leaves as a whole. A copy serves the levels below it too.
    Experts,
}

/// What becomes of planes that are not there when the processor has nothing else to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LatePlanes {
    /// They are waited for.
    #[default]
    Wait,
    /// Only the base is; their experts are computed with what is there.
    Skip,
}

/// Reading ahead for the next layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prefetch {
    /// Share of the next layer's experts that the prediction names, 0 to 1; the others that it
    /// names are not used.
    pub accuracy: f64,
}

/// How a simulated engine works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimulationOptions {
    /// What it runs on.
    pub machine: Machine,
    /// Order of reads.
    pub order: OrderRule,
    /// Reading ahead, if it does.
    pub prefetch: Option<Prefetch>,
    /// What comes and goes together.
    pub unit: CacheUnit,
    /// Late planes.
    pub late: LatePlanes,
    /// Steps at the beginning that are run and not counted.
    pub warm_up: usize,
}

impl SimulationOptions {
    /// The engine's own way on a machine: planes, Johnson's order, nothing read ahead.
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

/// What a simulation measured, after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Steps.
    pub steps: u64,
    /// Rows of all steps.
    pub rows: u64,
    /// Nanoseconds from the first to the last.
    pub elapsed_ns: u64,
    /// Of those, nanoseconds in which the processor waited for a read.
    pub stall_ns: u64,
    /// Of those, nanoseconds in which the disk delivered.
    pub read_ns: u64,
    /// Bytes read of each plane, whether or not they were used.
    pub read_bytes: [u64; PLANES],
    /// Bits asked for, over all experts and steps.
    pub asked_bits: u64,
    /// Bits that they were computed with.
    pub served_bits: u64,
    /// Experts of all steps.
    pub expert_uses: u64,
    /// The books.
    pub counters: ResidencyCounters,
}

impl Outcome {
    /// Rows per second.
    pub fn tokens_per_second(&self) -> f64 {
        if self.elapsed_ns == 0 { 0.0 } else { self.rows as f64 * 1e9 / self.elapsed_ns as f64 }
    }

    /// Bytes read per row.
    pub fn read_bytes_per_token(&self) -> f64 {
        self.read_bytes.iter().sum::<u64>() as f64 / self.rows.max(1) as f64
    }

    /// Bytes that were used and not resident.
    pub fn missed_bytes(&self) -> u64 {
        self.counters.missed_bytes.iter().sum()
    }

    /// Mean level asked for, and served.
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

/// Runs a trace.
///
/// # Errors
/// [`EngineError::ExpertBudget`]; [`EngineError::Mismatch`] if the table is of another model.
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

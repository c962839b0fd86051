//! Replays a recorded routing trace through the expert cache's bookkeeping, with the speeds of a planned
//! machine.

use super::question::{Answer, Question, expert_bytes};
use crate::bytes::ByteSize;
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::speed;
use nestling::engine::residency::{ExpertTable, ResidencyOptions};
use nestling::formats::Level;
use nestling_plan::plan::COMPUTE_SHARE;
use nestling_plan::simulate::{
    Machine, Outcome, RoutingTrace, SimulationOptions, StaticOptimum, best_static, simulate,
};
use serde_json::{Value, json};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::Arc;

/// Number of steps that warm up the cache and are not counted. Short traces use fewer.
const WARM_UP: usize = 128;

/// Simulated results of a trace.
pub struct Replay {
    warm_up: usize,
    outcome: Outcome,
    /// Misses of the best fixed set of planes, chosen with hindsight.
    best: StaticOptimum,
}

impl Replay {
    pub fn run(
        path: &Path,
        question: &Question,
        answer: &Answer,
        machine: &speed::Machine,
    ) -> Result<Self> {
        let file = File::open(path).map_err(|error| Failure::file("open", path, &error))?;
        let trace = RoutingTrace::read(&path.display().to_string(), BufReader::new(file));
        let trace = trace.map_err(|error| explain(&error))?;
        let asked = trace.steps.iter().flat_map(|step| &step.layers).flat_map(|at| &at.levels);
        let asked = asked.max().and_then(|bits| Level::from_bits(*bits));
        if asked > Some(question.level) {
            return Err(Failure::new(format!(
                "{} was recorded at a level above {}",
                path.display(),
                question.level
            ))
            .advise("give the level of the trace with --level"));
        }
        let table = ExpertTable::of_index(
            &question.subject.index,
            &question.subject.config,
            question.level,
        );
        let table = Arc::new(table.map_err(|error| explain(&error))?);
        let budget = expert_bytes(&answer.memory);
        let warm_up = WARM_UP.min(trace.steps.len() / 2);
        let options =
            SimulationOptions { warm_up, ..SimulationOptions::new(simulated(answer, machine)) };
        let residency = ResidencyOptions::new(&table, budget).map_err(|e| explain(&e.into()))?;
        let outcome = simulate(&trace, &table, residency, options);
        let outcome = outcome.map_err(|error| explain(&error))?;
        let best = best_static(&table, &trace, warm_up, budget);
        Ok(Self { warm_up, outcome, best })
    }

    fn hit_rate(&self) -> f64 {
        let counters = &self.outcome.counters;
        let (hit, missed) =
            (counters.hit_bytes.iter().sum::<u64>(), counters.missed_bytes.iter().sum::<u64>());
        if hit + missed > 0 { hit as f64 / (hit + missed) as f64 } else { 1.0 }
    }

    /// Returns the ratio of missed bytes to those of the best fixed set.
    fn over_best(&self) -> Option<f64> {
        let best = self.best.missed_bytes;
        (best > 0).then(|| self.outcome.missed_bytes() as f64 / best as f64)
    }

    pub fn describe(&self) -> String {
        let outcome = &self.outcome;
        let over = self.over_best().map_or(String::new(), |over| {
            format!("; {over:.2} times what the best fixed set misses")
        });
        format!(
            "\ntrace     {} steps, {} before them to warm up: {:.1} tokens/s, {:.0} % of bytes found \
             in memory,\n          {} read per token{over}\n",
            outcome.steps,
            self.warm_up,
            outcome.tokens_per_second(),
            100.0 * self.hit_rate(),
            ByteSize(outcome.read_bytes_per_token() as u64),
        )
    }

    pub fn as_json(&self) -> Value {
        let outcome = &self.outcome;
        json!({
            "warm_up_steps": self.warm_up,
            "steps": outcome.steps,
            "tokens": outcome.rows,
            "tokens_per_s": outcome.tokens_per_second(),
            "hit_rate": self.hit_rate(),
            "read_bytes_per_token": outcome.read_bytes_per_token(),
            "missed_bytes": outcome.missed_bytes(),
            "best_fixed_missed_bytes": self.best.missed_bytes,
            "stall_ms_per_token": outcome.stall_ns as f64 / 1e6 / outcome.rows.max(1) as f64,
        })
    }
}

/// Converts a plan's machine for the simulator, which computes one row at a time.
fn simulated(answer: &Answer, machine: &speed::Machine) -> Machine {
    let speed = machine.speed.memory_bytes_per_s * COMPUTE_SHARE;
    let layers = answer.demand.layers.len().max(1) as f64;
    let dense_s = answer.demand.dense_token_bytes as f64 / speed.max(1.0);
    let planes = answer.demand.layers.iter().flat_map(|layer| &layer.experts);
    // Default: a model without experts has no planes.
    let largest = planes.flat_map(|expert| expert.plane_bytes).max().unwrap_or(0);
    Machine {
        read_bytes_per_second: machine.speed.disk_at(largest).max(1.0),
        read_latency_ns: 100_000,
        read_depth: machine.disk.as_ref().map_or(2, |disk| disk.depth),
        expert_ns_min: 0,
        expert_bytes_per_second: speed,
        further_row_share: 0.2,
        dense_layer_ns: (dense_s / layers * 1e9) as u64,
        step_ns: 0,
    }
}

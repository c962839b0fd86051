//! Inputs and results of a plan.

use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::speed::Machine;
use crate::subject::Subject;
use nestling::engine::group::RankShare;
use nestling::engine::kv_cache::PAGE_POSITIONS;
use nestling::engine::{EngineError, MemoryPlan, ModelOptions, PlannedResidence};
use nestling::formats::Level;
use nestling_plan::plan::{DEFAULT_SKEW, Demand, Forecast, LevelMix, forecast};
use serde_json::Value;

/// Maximum context length in tokens that a forecast assumes.
const CONTEXT_MAX: usize = 512;

/// Inputs of a plan: the model, and the options to open it with.
pub struct Question {
    pub subject: Subject,
    pub options: ModelOptions,
    pub level: Level,
    pub budget: Option<u64>,
    /// The compute GPU; `None` for the CPU.
    pub gpu: Option<String>,
    pub mean_level: Option<f64>,
}

/// Results of a plan.
pub struct Answer {
    pub memory: MemoryPlan,
    pub least_bytes: u64,
    pub demand: Demand,
    pub forecast: Forecast,
}

impl Question {
    pub fn new(
        subject: Subject,
        options: ModelOptions,
        budget: Option<u64>,
        gpu: Option<String>,
        mean_level: Option<f64>,
    ) -> Result<Self> {
        let level = options.level.unwrap_or(subject.held);
        subject.check_level(level)?;
        if let Some(mean) = mean_level
            && !(f64::from(Level::L2.bits())..=f64::from(level.bits())).contains(&mean)
        {
            return Err(Failure::usage(format!("experts cannot have {mean} bits on average"))
                .advise(format!("give a mean level from 2 to {level}")));
        }
        Ok(Self { subject, options, level, budget, gpu, mean_level })
    }

    /// Returns the plan at a level of the store.
    pub fn answer(&self, machine: &Machine, level: Level, budget: Option<u64>) -> Result<Answer> {
        self.at(machine, level, self.mean_level, budget)
    }

    pub fn at(
        &self,
        machine: &Machine,
        level: Level,
        mean_level: Option<f64>,
        budget: Option<u64>,
    ) -> Result<Answer> {
        let options = ModelOptions { level: Some(level), ..self.options.clone() };
        let (index, config) = (&*self.subject.index, &self.subject.config);
        let of = |budget| {
            MemoryPlan::of_index(index, config, level, &options, None, budget, RankShare::default())
        };
        let memory = of(budget).map_err(|error| explain(&error))?;
        let least_bytes = match of(Some(0)) {
            Err(EngineError::MemoryTooSmall(refused)) => refused.least(),
            // Default: a budget of 0 fails for every model that is not mapped.
            _ => memory.total_bytes(),
        };
        let demand = Demand::of_store(index, config, level, self.skew());
        let demand = demand.at_context(context_bytes(&memory));
        let mix = match mean_level {
            Some(mean) => LevelMix::of_mean(mean, level),
            None => LevelMix::fixed(level),
        };
        let forecast = forecast(&demand, mix, &machine.speed, expert_bytes(&memory));
        Ok(Answer { memory, least_bytes, demand, forecast })
    }

    /// Returns the assumed imbalance of routing. A store of random weights records it; other stores use the
    /// default.
    pub fn skew(&self) -> f64 {
        let parameters: Option<Value> =
            serde_json::from_str(self.subject.index.parameters_json()).ok();
        let skew = parameters.and_then(|parameters| parameters.get("router_skew")?.as_f64());
        skew.unwrap_or(DEFAULT_SKEW)
    }
}

/// Returns the context length in tokens that a forecast assumes.
pub fn context_of(memory: &MemoryPlan) -> usize {
    CONTEXT_MAX.min(memory.context_length / 2)
}

/// Returns the KV cache size in bytes at the context length of a forecast.
pub fn context_bytes(memory: &MemoryPlan) -> u64 {
    let positions = (memory.kv_pages * PAGE_POSITIONS).max(1) as u64;
    memory.kv_bytes / positions * context_of(memory) as u64
}

impl Answer {
    /// Returns the bytes of experts that a token uses.
    pub fn token_expert_bytes(&self) -> u64 {
        let others = self.demand.dense_token_bytes.saturating_add(self.demand.context_bytes);
        (self.forecast.token_bytes as u64).saturating_sub(others)
    }

    /// Returns the budget that keeps all weights in memory, with the same context length.
    pub fn whole_bytes(&self) -> u64 {
        let others = self.memory.total_bytes().saturating_sub(expert_bytes(&self.memory));
        others.saturating_add(self.memory.expert_bytes_total)
    }
}

/// Returns the bytes of experts that a plan keeps in memory.
pub fn expert_bytes(memory: &MemoryPlan) -> u64 {
    match memory.residence {
        PlannedResidence::Resident => memory.expert_bytes_total,
        PlannedResidence::Streamed | PlannedResidence::Lazy => memory.expert_bytes,
    }
}

/// Returns the bytes of weights that every token uses.
pub fn dense_bytes(memory: &MemoryPlan) -> u64 {
    match memory.residence {
        PlannedResidence::Resident => memory.weight_bytes - memory.expert_bytes_total,
        PlannedResidence::Streamed | PlannedResidence::Lazy => memory.weight_bytes,
    }
}

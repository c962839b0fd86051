//! Plan of a model before it is opened: what `nestling plan` prints.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nestling::engine::convert::{ConvertError, ConvertOptions, estimate_store};
use nestling::engine::group::RankShare;
use nestling::engine::in_place::open_in_place;
use nestling::engine::kv_cache::PAGE_POSITIONS;
use nestling::formats::store::{Digits, GroupId, Index, Store};
use nestling::import::{Checkpoint, ModelConfig};
use nestling::system::{MemoryState, SystemFiles};
use nestling::{EngineError, Level, MemoryPlan, ModelOptions, ModelSource, PlannedResidence};
use nestling_plan::plan::{DEFAULT_SKEW, Demand, Forecast, LevelMix, MachineSpeed, forecast};
use serde_json::{Value, json};

use crate::expert_cells::ServedLevels;

/// Maximum context length in tokens that a forecast assumes.
const CONTEXT_MAX: usize = 512;

/// Maximum memory that streaming keeps free for the rest of the process, in bytes.
const PROGRAM_BYTES_MAX: u64 = 32 << 20;

/// Kind of a model file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A store.
    Store,
    /// A GGUF file, which runs in place.
    Gguf,
    /// The folder of a checkpoint. The plan is that of the store that a conversion would write; opened as it
    /// is, its weights take the bytes of its files.
    Checkpoint {
        /// Bytes of the weight files.
        weight_bytes: u64,
    },
}

/// Memory of a model within a budget.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Path of the model.
    pub path: PathBuf,
    /// Kind of the file.
    pub form: FileKind,
    /// Level of the weights.
    pub level: Level,
    /// True if the model has experts.
    pub has_experts: bool,
    /// Budget in bytes.
    pub budget: u64,
    /// Division of the budget.
    pub memory: MemoryPlan,
    /// Smallest possible budget in bytes.
    pub least_bytes: u64,
    /// Budget in bytes that keeps all weights in memory, with the context length of the plan.
    pub whole_bytes: u64,
    /// Bytes of the model without a budget.
    pub unlimited_bytes: u64,
}

impl Plan {
    /// Returns the bytes of weights that every token uses.
    pub fn dense_bytes(&self) -> u64 {
        match self.memory.residence {
            PlannedResidence::Resident => {
                self.memory.weight_bytes.saturating_sub(self.memory.expert_bytes_total)
            }
            PlannedResidence::Streamed | PlannedResidence::Lazy => self.memory.weight_bytes,
        }
    }

    /// Returns the bytes of experts in memory.
    pub fn expert_bytes(&self) -> u64 {
        expert_bytes(&self.memory)
    }

    /// Returns the plan as JSON, with the fields of `nestling plan --format json`.
    pub fn as_json(&self) -> Value {
        let memory = &self.memory;
        json!({
            "level": self.level.bits(),
            "dense": !self.has_experts,
            "memory_bytes": self.budget,
            "least_memory_bytes": self.least_bytes,
            "whole_memory_bytes": self.whole_bytes,
            "placement": {
                "streamed": memory.residence == PlannedResidence::Streamed,
                "dense_bytes": self.dense_bytes(),
                "expert_bytes": self.expert_bytes(),
                "expert_bytes_total": memory.expert_bytes_total,
                "kv_bytes": memory.kv_bytes,
                "scratch_bytes": memory.scratch_bytes,
                "program_bytes": memory.program_bytes,
                "total_bytes": memory.total_bytes(),
                "context_length": memory.context_length,
            },
        })
    }

    /// Returns the largest budget of use: all weights, the longest context, and what streaming keeps free for
    /// the process.
    pub fn useful_bytes(&self) -> u64 {
        self.unlimited_bytes.saturating_add(PROGRAM_BYTES_MAX.min(self.unlimited_bytes / 20))
    }
}

/// A model file whose headers were read.
#[derive(Debug)]
pub struct Subject {
    path: PathBuf,
    form: FileKind,
    index: Arc<Index>,
    config: ModelConfig,
    level: Level,
    store: Option<Arc<Store>>,
}

impl Subject {
    /// Reads the headers of a store, a GGUF file or the folder of a checkpoint.
    ///
    /// # Errors
    /// Fails as [`nestling::open`] does if the path is no model, or is damaged.
    pub fn read(path: &Path) -> Result<Self, EngineError> {
        if !path.is_dir() && has_gguf_magic(path) {
            let checkpoint = Arc::new(Checkpoint::open(path)?);
            let store = open_in_place(checkpoint, Digits::Merged);
            let store = store.map_err(|error| explain(path, error))?;
            return Self::of_store(path, FileKind::Gguf, Arc::new(store));
        }
        match ModelSource::at(path)? {
            ModelSource::Store(store) => Self::of_store(path, FileKind::Store, store),
            ModelSource::Checkpoint(checkpoint) => {
                let index = estimate_store(&checkpoint, &ConvertOptions::default());
                let index = index.map_err(|error| explain(path, error))?;
                let level = index.complete_level(index.sections().len());
                Ok(Self {
                    path: path.to_owned(),
                    form: FileKind::Checkpoint { weight_bytes: checkpoint.weight_bytes() },
                    level: level.unwrap_or(Level::L8),
                    config: checkpoint.config().clone(),
                    index: Arc::new(index),
                    store: None,
                })
            }
            _ => Err(not_a_model(path, "this kind of model is not supported")),
        }
    }

    fn of_store(path: &Path, form: FileKind, store: Arc<Store>) -> Result<Self, EngineError> {
        Ok(Self {
            path: path.to_owned(),
            form,
            index: Arc::new(store.index().clone()),
            config: ModelConfig::from_json("config.json", &store.config_json()?)?,
            level: store.level(),
            store: Some(store),
        })
    }

    /// Returns the path of the model.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the store, unless the model is a checkpoint.
    pub fn store(&self) -> Option<&Arc<Store>> {
        self.store.as_ref()
    }

    /// Returns whether the model can be opened with streamed experts.
    pub fn can_stream(&self) -> bool {
        self.store.is_some() && self.config.has_experts()
    }

    /// Returns the level that each number of an expert's planes serves, by layer. All experts of a layer have the
    /// planes of its first one.
    pub fn served_levels(&self) -> Vec<ServedLevels> {
        let levels = |layer: usize| {
            let mut levels = ServedLevels::default();
            // Default: a layer without experts serves no level.
            let Some(group) = self.index.group(&GroupId::expert_of(layer as u32, 0)) else {
                return levels;
            };
            for level in Level::ALL.into_iter().filter(|level| *level <= self.level) {
                let Some(planes) = self.index.planes_at(group, level) else { continue };
                for served in levels.iter_mut().skip(planes.saturating_sub(1)) {
                    *served = Some(level);
                }
            }
            levels
        };
        (0..self.config.layers.len()).map(levels).collect()
    }

    /// Plans the memory within a budget in bytes. Without one it is the free memory less a margin, and at most
    /// what the model can use.
    ///
    /// # Errors
    /// Fails with [`EngineError::MemoryTooSmall`] if the model cannot run within the budget.
    pub fn plan(&self, budget: Option<u64>) -> Result<Plan, EngineError> {
        let of = |budget| {
            let options = ModelOptions { level: Some(self.level), ..ModelOptions::default() };
            let share = RankShare::default();
            let (index, config) = (&self.index, &self.config);
            MemoryPlan::of_index(index, config, self.level, &options, None, budget, share)
        };
        let unlimited = of(None)?;
        let least_bytes = match of(Some(0)) {
            Err(EngineError::MemoryTooSmall(refused)) => refused.least(),
            Ok(plan) => plan.total_bytes(),
            Err(error) => return Err(error),
        };
        let mut plan = Plan {
            path: self.path.clone(),
            form: self.form,
            level: self.level,
            has_experts: self.config.has_experts(),
            budget: 0,
            least_bytes,
            whole_bytes: 0,
            unlimited_bytes: unlimited.total_bytes(),
            memory: unlimited,
        };
        plan.budget = budget.unwrap_or_else(|| {
            let free = MemoryState::read(&SystemFiles::default());
            let free = free.map(|state| state.default_budget());
            // Default: a system that does not report its memory has enough.
            free.unwrap_or(u64::MAX).min(plan.useful_bytes()).max(least_bytes)
        });
        plan.memory = of(Some(plan.budget))?;
        let others = plan.memory.total_bytes().saturating_sub(plan.expert_bytes());
        plan.whole_bytes = others.saturating_add(plan.memory.expert_bytes_total);
        Ok(plan)
    }

    /// Predicts the speed of a plan on a machine.
    pub fn forecast(&self, plan: &Plan, machine: &MachineSpeed) -> Forecast {
        let demand = Demand::of_store(&self.index, &self.config, self.level, self.skew());
        let demand = demand.at_context(context_bytes(&plan.memory));
        forecast(&demand, LevelMix::fixed(self.level), machine, plan.expert_bytes())
    }

    /// Returns the assumed imbalance of routing. Stores of random weights record it.
    fn skew(&self) -> f64 {
        let parameters = serde_json::from_str::<Value>(self.index.parameters_json());
        let skew = parameters.ok().and_then(|parameters| parameters.get("router_skew")?.as_f64());
        skew.unwrap_or(DEFAULT_SKEW)
    }
}

fn expert_bytes(memory: &MemoryPlan) -> u64 {
    match memory.residence {
        PlannedResidence::Resident => memory.expert_bytes_total,
        PlannedResidence::Streamed | PlannedResidence::Lazy => memory.expert_bytes,
    }
}

/// Returns the bytes of the KV cache at the context of a forecast.
fn context_bytes(memory: &MemoryPlan) -> u64 {
    let positions = (memory.kv_pages * PAGE_POSITIONS).max(1) as u64;
    memory.kv_bytes / positions * CONTEXT_MAX.min(memory.context_length / 2) as u64
}

fn has_gguf_magic(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    read.is_ok() && magic == *b"GGUF"
}

fn explain(path: &Path, error: ConvertError) -> EngineError {
    match error {
        ConvertError::Checkpoint(error) => error.into(),
        ConvertError::Store(error) => error.into(),
        ConvertError::Memory(error) => error.into(),
        other => not_a_model(path, &other.to_string()),
    }
}

fn not_a_model(path: &Path, reason: &str) -> EngineError {
    EngineError::NotAModel { path: path.display().to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    #[test]
    fn every_kind_of_file_has_a_plan() {
        let data = root().join("engine/runtime/tests/data");
        for (path, form) in [
            (root().join("models/nestling-storyteller.nest"), Some(FileKind::Store)),
            (data.join("gguf/qwen3-moe.gguf"), Some(FileKind::Gguf)),
            (data.join("tiny-qwen3-moe"), None),
        ] {
            let subject = Subject::read(&path).unwrap();
            let plan = subject.plan(None).unwrap();
            assert!(form.is_none_or(|form| form == plan.form));
            assert!(plan.has_experts && plan.least_bytes < plan.whole_bytes, "{plan:?}");
            assert!(plan.memory.total_bytes() <= plan.budget);
            let least = subject.plan(Some(plan.least_bytes)).unwrap();
            assert_eq!(least.memory.residence, PlannedResidence::Streamed);
            let error = subject.plan(Some(plan.least_bytes - 1)).unwrap_err();
            assert!(matches!(error, EngineError::MemoryTooSmall(_)), "{error}");
        }
    }

    #[test]
    fn planes_serve_the_levels_of_their_file() {
        let store = Subject::read(&root().join("models/nestling-storyteller.nest")).unwrap();
        let levels = store.served_levels();
        assert_eq!((levels.len(), levels[0]), (4, Level::ALL.map(Some)));
        let gguf = root().join("engine/runtime/tests/data/gguf/qwen3-moe.gguf");
        for levels in Subject::read(&gguf).unwrap().served_levels() {
            assert_eq!(levels[4], Some(Level::L4), "all planes serve the level of the file");
        }
    }

    #[test]
    fn other_files_are_refused() {
        for path in ["Cargo.toml", "docs", "missing.nest"] {
            assert!(Subject::read(&root().join(path)).is_err(), "{path}");
        }
    }
}

//! Plans of a model over several ranks.

use super::question::{Question, context_bytes, context_of, dense_bytes, expert_bytes};
use super::topology::Topology;
use crate::args::PlanArgs;
use crate::bytes::ByteSize;
use crate::console::write_out;
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::speed::Machine;
use nestling::engine::group::{ExpertDivision, RankShare};
use nestling::engine::kv_heads::{DividedLayers, KvDivision};
use nestling::engine::{EngineError, MemoryPlan, ModelOptions, PlannedResidence};
use nestling_plan::plan::{Demand, LevelMix};
use nestling_plan::ranks::{RankDivision, RankedModel, StepForecast, StepShape, can_be_sliced};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Batch sizes of decoding.
const BATCHES: [usize; 3] = [1, 8, 64];

/// Tokens of a prompt.
const PROMPT: usize = 512;

/// A model over ranks: its memory, exchanges and speed.
struct RanksPlan<'a> {
    question: &'a Question,
    ranks: usize,
    /// Plan of one rank without a budget.
    whole: MemoryPlan,
    /// Plans of all ranks without a budget.
    free: Vec<MemoryPlan>,
    /// Plans of all ranks within the budget of each.
    each: Vec<MemoryPlan>,
    model: RankedModel,
    /// The same with the other division of the experts.
    other: Other,
    is_measured: bool,
    machine: &'a Machine,
    topologies: Vec<Topology>,
}

/// The model with the other division of its experts.
enum Other {
    /// The model has no experts.
    NoExperts,
    /// An expert has too few rows for a slice on each rank.
    TooFewRows,
    /// Slices must all be in memory, and a rank needs this many bytes for it.
    NeedsMemory(u64),
    Possible(RankedModel),
}

pub fn plan(args: &PlanArgs, question: &Question, machine: &Machine, ranks: usize) -> Result<()> {
    let of_one =
        [("--trace", args.trace.is_some()), ("--wanted-speed", args.wanted_speed.is_some())];
    if let Some((name, _)) = of_one.into_iter().find(|(_, given)| *given) {
        return Err(Failure::usage(format!("{name} is about one rank"))
            .advise(format!("omit {name}, or --ranks")));
    }
    if question.gpu.is_some() {
        return Err(Failure::usage("a plan over ranks is for the CPU")
            .advise("add --device cpu, or omit --ranks"));
    }
    let topologies = match &args.topology {
        Some(text) => vec![Topology::of(text)?],
        None => Topology::presets()?,
    };
    let plan = RanksPlan::new(question, machine, ranks, topologies)?;
    match args.format.is_json() {
        true => write_out(&format!("{:#}\n", plan.as_json())),
        false => write_out(&plan.as_text()),
    }
}

impl<'a> RanksPlan<'a> {
    fn new(
        question: &'a Question,
        machine: &'a Machine,
        ranks: usize,
        topologies: Vec<Topology>,
    ) -> Result<Self> {
        let (index, config) = (&*question.subject.index, &question.subject.config);
        let (level, budget) = (question.level, question.budget);
        let division = question.options.expert_division;
        let of = |expert_division, share, budget| {
            let options = &question.options;
            let options = ModelOptions { level: Some(level), expert_division, ..options.clone() };
            let plan = MemoryPlan::of_index(index, config, level, &options, None, budget, share);
            plan.map_err(|error: EngineError| explain(&error))
        };
        let of_ranks = |division, budget| -> Result<Vec<MemoryPlan>> {
            let shares = RankShare { rank: 0, ranks }.all();
            shares.map(|share| of(division, share, budget)).collect()
        };
        let (each, free) = (of_ranks(division, budget)?, of_ranks(division, None)?);
        let is_streamed = |plan: &MemoryPlan| plan.residence != PlannedResidence::Resident;
        let layers = config.layers.iter().filter(|layer| layer.is_mixture()).count();
        let replicas = question.options.expert_replicas;
        if division == ExpertDivision::Whole && replicas > 0 && each.iter().any(is_streamed) {
            return Err(explain(&EngineError::ReplicasStreamed { replicas }));
        }
        if division == ExpertDivision::Sliced && each.iter().any(is_streamed) {
            return Err(explain(&EngineError::SlicesStreamed { layers }));
        }
        let whole = Demand::of_store(index, config, level, question.skew());
        // Default: there is a rank.
        let whole = whole.at_context(each.iter().map(context_bytes).max().unwrap_or(0));
        let kv = question.options.kv_division;
        let over = |experts| {
            let division = RankDivision { experts, kv };
            RankedModel::of_index(index, config, &whole, ranks, division)
        };
        let other = match division {
            _ if !config.has_experts() => Other::NoExperts,
            ExpertDivision::Sliced => Other::Possible(over(ExpertDivision::Whole)),
            ExpertDivision::Whole if !can_be_sliced(config, ranks) => Other::TooFewRows,
            ExpertDivision::Whole => {
                let sliced = of_ranks(ExpertDivision::Sliced, None)?;
                // Default: there is a rank, so there is a maximum.
                let needed = sliced.iter().map(MemoryPlan::total_bytes).max().unwrap_or(0);
                match budget {
                    Some(given) if given < needed => Other::NeedsMemory(needed),
                    _ => Other::Possible(over(ExpertDivision::Sliced)),
                }
            }
        };
        let model = over(division);
        let alone = of(division, RankShare::default(), None)?;
        let is_measured = whole.is_measured;
        Ok(Self {
            question,
            ranks,
            whole: alone,
            free,
            each,
            model,
            other,
            is_measured,
            machine,
            topologies,
        })
    }

    /// Returns how many layers with keys and values are divided by heads.
    fn divided_layers(&self) -> DividedLayers {
        let share = RankShare { rank: 0, ranks: self.ranks };
        self.question.options.kv_division.layers(&self.question.subject.config, share)
    }

    /// Returns the bytes of experts that each rank keeps in memory.
    fn kept(&self) -> u64 {
        let is_resident = |plan: &MemoryPlan| plan.residence == PlannedResidence::Resident;
        match self.each.iter().all(is_resident) {
            true => u64::MAX,
            // Default: there is a rank, so there is a minimum.
            false => self.each.iter().map(expert_bytes).min().unwrap_or(0),
        }
    }

    fn forecast(&self, model: &RankedModel, topology: &Topology, step: StepShape) -> StepForecast {
        let mix = match self.question.mean_level {
            Some(mean) => LevelMix::of_mean(mean, self.question.level),
            None => LevelMix::fixed(self.question.level),
        };
        let speed = topology.rank_speed(&self.machine.speed);
        model.forecast(step, mix, &speed, &topology.fabric, self.kept())
    }

    /// Returns the names, memory of one rank, largest memory of a rank, and memory that every rank repeats, by part.
    fn parts(&self) -> Vec<MemoryPart> {
        let part = |name, of: fn(&MemoryPlan) -> u64| {
            let sum: u64 = self.free.iter().map(of).sum();
            // Every rank repeats what the sum exceeds the whole by.
            let repeated = sum.saturating_sub(of(&self.whole)) / (self.ranks as u64 - 1);
            // Default: there is a rank, so there is a maximum.
            let largest = self.each.iter().map(of).max().unwrap_or(0);
            MemoryPart { name, whole: of(&self.whole), largest, repeated }
        };
        vec![
            part("weights of every token", dense_bytes),
            part("experts", expert_bytes),
            part("keys and values", |plan| plan.kv_bytes),
            part("scratch", |plan| plan.scratch_bytes),
            part("program", |plan| plan.program_bytes),
            part("in all", MemoryPlan::total_bytes),
        ]
    }

    fn as_text(&self) -> String {
        let Self { question, ranks, model, .. } = self;
        let traffic = &model.traffic;
        let mut text = String::new();
        let budget = question.budget.map_or("no limit".into(), |bytes| ByteSize(bytes).to_string());
        let (name, level) = (&question.subject.name, question.level);
        let _ = writeln!(text, "{name}, level {level}, {ranks} ranks");
        let _ = writeln!(text, "memory budget of each rank {budget}\n");
        let titles = ["", "one rank", "each rank", "on every one"];
        let _ =
            writeln!(text, "{:<26} {:>9} {:>9} {:>12}", titles[0], titles[1], titles[2], titles[3]);
        for part in self.parts() {
            let [whole, largest, repeated] =
                [part.whole, part.largest, part.repeated].map(|bytes| ByteSize(bytes).to_string());
            let _ = writeln!(text, "{:<26} {whole:>9} {largest:>9} {repeated:>12}", part.name);
        }
        text.push('\n');
        if question.subject.config.has_experts() {
            let by = if self.is_measured { "measured" } else { "assumed" };
            let ratio = model.long_run_ratio();
            let _ = writeln!(
                text,
                "experts   the busiest rank has {ratio:.3} times the mean load, by {by} frequencies"
            );
        }
        let layers = traffic.layers.len().max(1) as f64;
        let of_layers = traffic.layers.iter().flatten().map(|exchange| exchange.received_bytes);
        let _ = writeln!(
            text,
            "exchanges {} in a step: a rank sends {} messages, and receives {} for a token, {} in a layer",
            traffic.exchanges(),
            traffic.messages(),
            ByteSize(traffic.row_bytes() as u64),
            ByteSize((of_layers.sum::<f64>() / layers) as u64),
        );
        text += &self.heads_text();
        // Default: there is a rank.
        let context = self.each.first().map_or(0, context_of);
        let _ = writeln!(
            text,
            "machine   memory {}, context of {context} tokens\n",
            self.machine.memory_words()
        );
        text += &self.steps_text();
        text + &self.slices_text()
    }

    /// Says how many layers are divided by heads, if that was asked for.
    fn heads_text(&self) -> String {
        if self.question.options.kv_division == KvDivision::Replicated {
            return String::new();
        }
        let DividedLayers { divided, replicated } = self.divided_layers();
        let rest = match replicated {
            0 => String::new(),
            count => format!("; all ranks hold those of the other {count}"),
        };
        format!("heads     keys and values of {divided} layers are divided by heads{rest}\n")
    }

    /// Formats the speed of each step over each topology.
    fn steps_text(&self) -> String {
        let mut text = format!("{:<12} {:<13} {:>9}", "links", "step", "tokens/s");
        text += &format!(
            " {:>8} {:>8} {:>8} {:>8} {:>8}",
            "memory", "compute", "disk", "latency", "bytes"
        );
        text += "  ms; limited by\n";
        for topology in &self.topologies {
            for (name, step) in steps() {
                let found = self.forecast(&self.model, topology, step);
                let _ = write!(text, "{:<12} {name:<13} {:>9.1}", topology.name, found.rows_per_s);
                for seconds in [
                    found.memory_s,
                    found.compute_s,
                    found.disk_s,
                    found.latency_s,
                    found.transfer_s,
                ] {
                    let _ = write!(text, " {:>8.2}", 1e3 * seconds);
                }
                let _ = writeln!(text, "  {}", found.bottleneck().name());
            }
        }
        text
    }

    /// Compares the division of the experts with the other one.
    fn slices_text(&self) -> String {
        let other = match &self.other {
            Other::NoExperts => return String::new(),
            Other::TooFewRows => {
                return "\nslices    an expert has too few rows for a slice on each rank\n".into();
            }
            Other::NeedsMemory(bytes) => {
                return format!(
                    "\nslices    rows of every expert on each rank must be in memory: {} for each rank\n",
                    ByteSize(*bytes)
                );
            }
            Other::Possible(other) => other,
        };
        let (name, what) = match other.division {
            ExpertDivision::Whole => ("whole", "whole experts"),
            ExpertDivision::Sliced => ("sliced", "rows of every expert on each rank"),
        };
        let mut text = format!(
            "\n{name:<9} with {what} (--experts-over-ranks {name}), a rank would receive {} for a token;\n",
            ByteSize(other.traffic.row_bytes() as u64)
        );
        text += "          its speed beside the speeds above\n";
        for topology in &self.topologies {
            let gains: Vec<String> = steps()
                .map(|(step_name, step)| {
                    let own = self.forecast(&self.model, topology, step).rows_per_s;
                    let found = self.forecast(other, topology, step).rows_per_s;
                    format!("{step_name} {:+.0} %", 100.0 * (found / own - 1.0))
                })
                .collect();
            let _ = writeln!(text, "          {}: {}", topology.name, gains.join(", "));
        }
        text
    }

    /// Returns the model with a division, if it is possible.
    fn divided(&self, division: ExpertDivision) -> Option<&RankedModel> {
        let other = match &self.other {
            Other::Possible(other) => Some(other),
            Other::NoExperts | Other::TooFewRows | Other::NeedsMemory(_) => None,
        };
        [Some(&self.model), other].into_iter().flatten().find(|model| model.division == division)
    }

    fn as_json(&self) -> Value {
        let traffic = &self.model.traffic;
        let parts = self.parts().into_iter().map(|part| {
            json!({
                "name": part.name,
                "one_rank_bytes": part.whole,
                "each_rank_bytes": part.largest,
                "on_every_rank_bytes": part.repeated,
            })
        });
        let of_topology = |topology: &Topology| {
            let steps = steps().map(|(name, step)| {
                let found = self.forecast(&self.model, topology, step);
                let sliced = self.divided(ExpertDivision::Sliced);
                let sliced = sliced.map(|model| self.forecast(model, topology, step).rows_per_s);
                json!({
                    "step": name,
                    "rows": step.rows,
                    "tokens_per_s": found.rows_per_s,
                    "memory_ms": 1e3 * found.memory_s,
                    "compute_ms": 1e3 * found.compute_s,
                    "disk_ms": 1e3 * found.disk_s,
                    "latency_ms": 1e3 * found.latency_s,
                    "transfer_ms": 1e3 * found.transfer_s,
                    "limited_by": found.bottleneck().name(),
                    "busiest_over_mean": found.load.ratio(),
                    "sliced_tokens_per_s": sliced,
                })
            });
            json!({ "name": topology.name, "steps": steps.collect::<Vec<_>>() })
        };
        json!({
            "model": self.question.subject.name,
            "level": self.question.level.bits(),
            "ranks": self.ranks,
            "memory": parts.collect::<Vec<_>>(),
            "experts_measured": self.is_measured,
            "busiest_over_mean": self.model.long_run_ratio(),
            "exchanges_per_step": traffic.exchanges(),
            "messages_per_step": traffic.messages(),
            "received_bytes_per_token": traffic.row_bytes().round(),
            "sliced_received_bytes_per_token":
                self.divided(ExpertDivision::Sliced).map(|model| model.traffic.row_bytes().round()),
            "experts_over_ranks": self.model.division,
            "kv_over_ranks": self.question.options.kv_division,
            "layers_by_heads": self.divided_layers().divided,
            "layers_with_all_heads": self.divided_layers().replicated,
            "machine": self.machine.as_json(),
            "topologies": self.topologies.iter().map(of_topology).collect::<Vec<_>>(),
        })
    }
}

/// Memory of one part in bytes.
struct MemoryPart {
    name: &'static str,
    whole: u64,
    largest: u64,
    repeated: u64,
}

/// Returns the planned steps with their names.
fn steps() -> impl Iterator<Item = (String, StepShape)> {
    let decodes = BATCHES.into_iter().map(|batch| match batch {
        1 => ("1 sequence".to_owned(), StepShape::decode(1)),
        batch => (format!("{batch} sequences"), StepShape::decode(batch)),
    });
    decodes.chain([(format!("prompt of {PROMPT}"), StepShape::prompt(PROMPT))])
}

//! Prints the tables of the streaming simulator in docs/perf/028:
//! `streaming [policies|upgrades|d2moe|machines]...`, by default all.
//!
//! The bundled model is run to record its routing. Everything else is generated from seeds.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use nestling_core::CancelToken;
use nestling_experts::residency::order::OrderRule;
use nestling_experts::residency::{
    DecayedFrequency, EvictionPolicy, ExpertEntry, ExpertTable, FrequencyOptions,
    LeastRecentlyUsed, ResidencyOptions, RetentionGoal,
};
use nestling_plan::simulate::{
    CacheUnit, LatePlanes, Machine, Outcome, Prefetch, RoutingTrace, SimulationOptions,
    SyntheticRouting, TraceShape, best_static, mean_level, route_levels, simulate,
};
use nestling_runtime::{
    Engine, EngineOptions, GenerateOptions, Input, Model, ModelOptions, SamplingParams,
};

use nestling_formats::Level;
use nestling_formats::memory::OutOfMemory;

type Failure = Box<dyn Error>;

/// Bits per weight of the planes, including scales: group scales are part of the first.
const PLANE_BITS: [f64; 5] = [2.19, 1.0, 1.0, 2.0, 2.0];

/// Error removed by each plane, relative to an expert of zeros.
const ERROR_DROPS: [f32; 5] = [0.888, 0.0845, 0.0209, 0.00618, 0.0004];

/// Number of tokens that fill the cache and are not counted.
const WARM_UP: usize = 128;

/// Approximation of the development machine: its disk and two cores. Only the tables of times depend on it.
const MACHINE: Machine = Machine {
    read_bytes_per_second: 1.5e9,
    read_latency_ns: 120_000,
    read_depth: 2,
    expert_ns_min: 0,
    expert_bytes_per_second: 25e9,
    further_row_share: 0.3,
    dense_layer_ns: 450_000,
    step_ns: 6_000_000,
};

fn main() -> Result<(), Failure> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let all = wanted.is_empty();
    let is_wanted = |name: &str| all || wanted.iter().any(|wanted| wanted == name);
    if is_wanted("policies") {
        policies()?;
    }
    if is_wanted("upgrades") {
        upgrades()?;
    }
    if is_wanted("d2moe") {
        throughput()?;
        memory()?;
    }
    if is_wanted("machines") {
        machines()?;
    }
    Ok(())
}

/// Returns a table of identical experts, with all planes of `weights` weights.
fn table(layers: usize, experts: usize, per_token: usize, weights: f64) -> Arc<ExpertTable> {
    let entry = ExpertEntry {
        plane_bytes: PLANE_BITS.map(|bits| (bits * weights / 8.0) as u64),
        error_drops: ERROR_DROPS,
        frequency: 0.0,
        weight_square: 1.0,
    };
    Arc::new(ExpertTable::new(vec![vec![entry; experts]; layers], per_token))
}

fn qwen3() -> Arc<ExpertTable> {
    cut(&table(48, 128, 8, 3.0 * 2048.0 * 768.0), 3)
}

fn olmoe() -> Arc<ExpertTable> {
    cut(&table(16, 64, 8, 3.0 * 2048.0 * 1024.0), 3)
}

/// Returns the same experts with only their first planes.
fn cut(table: &ExpertTable, planes: usize) -> Arc<ExpertTable> {
    let layers = table.layers().iter().map(|layer| {
        let mut layer = layer.clone();
        layer.iter_mut().for_each(|entry| entry.plane_bytes[planes..].fill(0));
        layer
    });
    Arc::new(ExpertTable::new(layers.collect(), table.experts_per_token()))
}

fn routing(table: &ExpertTable, skew: f64, steadiness: f64, steps: usize) -> RoutingTrace {
    let experts = table.layers().iter().map(|layer| layer.len() as u32).collect();
    let experts_per_token = table.experts_per_token() as u32;
    let shape = TraceShape { experts, experts_per_token };
    SyntheticRouting { shape, skew, steadiness, steps, level: Level::L4, seed: 3 }.trace()
}

/// Returns the bundled model's routing while it generates three stories, with its experts up to level 4.
fn storyteller() -> Result<(RoutingTrace, Arc<ExpertTable>), Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nestling-storyteller.nest");
    let engine = Engine::new(EngineOptions::default())?;
    let options = ModelOptions { level: Some(Level::L4), ..ModelOptions::default() };
    let model = Model::open(&engine, &path, &options, &mut |_| {}, &CancelToken::new())?;
    let recorder = model.routing_recorder().ok_or("nothing is routed")?;
    let tokenizer = model.tokenizer().ok_or("no tokenizer")?;
    recorder.start(usize::MAX);
    for (seed, prompt) in (1..).zip(["Once upon a time", "The captain said", "In the garden"]) {
        let sampling = SamplingParams { seed: Some(seed), ..SamplingParams::default() }.into();
        let options = GenerateOptions {
            sampling,
            max_tokens: Some(400),
            ignore_end: true,
            ..GenerateOptions::default()
        };
        let tokens = tokenizer.encode(prompt, Default::default())?;
        for event in model.session().generate(Input::Tokens(tokens), &options)? {
            event?;
        }
    }
    let store = nestling_formats::store::Store::open(&path)?;
    Ok((recorder.stop(), Arc::new(ExpertTable::of_store(&store, Level::L4)?)))
}

fn keep(policy: impl EvictionPolicy + 'static, budget_bytes: u64) -> ResidencyOptions {
    ResidencyOptions { budget_bytes, policy: Box::new(policy), floor_share: 0.25 }
}

fn recent(table: &Arc<ExpertTable>, budget_bytes: u64) -> ResidencyOptions {
    let policy = LeastRecentlyUsed::new(Arc::clone(table));
    ResidencyOptions { floor_share: 0.0, ..keep(policy, budget_bytes) }
}

fn part_of(table: &ExpertTable, part: f64) -> u64 {
    (table.total_bytes() as f64 * part) as u64
}

/// Prints the missed bytes of policies relative to the best static set in hindsight.
fn policies() -> Result<(), Failure> {
    println!("| routing | budget | hindsight: hit rate | LRU | one long memory | default |");
    println!("|---|---|---|---|---|---|");
    let (trace, table) = storyteller()?;
    let mut list = vec![("storyteller, recorded".to_owned(), trace, table)];
    for (name, table) in [("OLMoE", olmoe()), ("Qwen3-30B", qwen3())] {
        for (skew, steadiness) in [(0.0, 0.0), (0.5, 0.0), (1.0, 0.0), (0.5, 0.6), (0.5, 0.9)] {
            let name = format!("{name}, skew {skew}, steadiness {steadiness}");
            list.push((name, routing(&table, skew, steadiness, WARM_UP + 512), Arc::clone(&table)));
        }
    }
    for (name, trace, table) in &list {
        for part in [0.15, 0.25, 0.5] {
            let budget = part_of(table, part);
            let best = best_static(table, trace, WARM_UP, budget);
            let ratio = |residency: ResidencyOptions| -> Result<f64, Failure> {
                let options =
                    SimulationOptions { warm_up: WARM_UP, ..SimulationOptions::new(MACHINE) };
                let outcome = simulate(trace, table, residency, options)?;
                Ok(outcome.missed_bytes() as f64 / best.missed_bytes.max(1) as f64)
            };
            // Almost equal half-lives act as one.
            let one = FrequencyOptions {
                half_lives: [4096.0, 4095.0, 4094.0, 4093.0],
                ..FrequencyOptions::default()
            };
            let long = ratio(keep(DecayedFrequency::new(Arc::clone(table), one)?, budget))?;
            let hit = 1.0 - best.missed_bytes as f64 / best.used_bytes as f64;
            println!(
                "| {name} | {:.0} % | {hit:.3} | {:.2} | {long:.3} | {:.3} |",
                part * 100.0,
                ratio(recent(table, budget))?,
                ratio(ResidencyOptions::new(table, budget)?)?,
            );
        }
    }
    Ok(())
}

/// Compares planes with whole copies on the bundled model's routing, at equal budgets.
fn upgrades() -> Result<(), Failure> {
    println!(
        "\n| mean level | budget | copies: kB per token, byte hit rate | planes | bytes saved |"
    );
    println!("|---|---|---|---|---|");
    let (mut trace, table) = storyteller()?;
    for mean in [4.0, 3.5, 3.2, 2.8] {
        route_levels(&mut trace, &table, mean);
        for part in [0.15, 0.25, 0.5, 0.75] {
            let run = |unit| {
                let options = SimulationOptions::new(MACHINE);
                let options = SimulationOptions { unit, warm_up: WARM_UP, ..options };
                let residency = ResidencyOptions::new(&table, part_of(&table, part))?;
                simulate(&trace, &table, residency, options)
            };
            let (copies, planes) = (run(CacheUnit::Experts)?, run(CacheUnit::Planes)?);
            let cell = |outcome: &Outcome| {
                let bytes = outcome.read_bytes_per_token() / 1e3;
                format!("{bytes:.0}, {:.3}", outcome.counters.byte_hit_rate())
            };
            let saved = 1.0 - planes.read_bytes_per_token() / copies.read_bytes_per_token();
            println!(
                "| {:.2} | {:.0} % | {} | {} | {:.0} % |",
                mean_level(&trace),
                part * 100.0,
                cell(&copies),
                cell(&planes),
                saved * 100.0
            );
        }
    }
    Ok(())
}

/// A GPU that reads experts from an NVMe disk: D²MoE's RTX 3060, as far as its paper describes it.
fn gpu(read_bytes_per_second: f64, expert_ns_min: u64) -> Machine {
    Machine {
        read_bytes_per_second,
        read_latency_ns: 100_000,
        read_depth: 4,
        expert_ns_min,
        expert_bytes_per_second: 300e9,
        further_row_share: 0.0,
        dense_layer_ns: 1_000_000,
        step_ns: 2_000_000,
    }
}

fn batched(trace: RoutingTrace, rows: usize) -> RoutingTrace {
    let mut steps = Vec::new();
    for chunk in trace.steps.chunks_exact(rows) {
        let mut joined = chunk[0].clone();
        for step in &chunk[1..] {
            for (layer, more) in joined.layers.iter_mut().zip(&step.layers) {
                layer.ids.extend_from_slice(&more.ids);
                layer.weights.extend_from_slice(&more.weights);
                layer.levels.extend_from_slice(&more.levels);
            }
        }
        steps.push(joined);
    }
    RoutingTrace { shape: trace.shape, steps }
}

/// Setting of one claim: experts, concurrent requests, machine.
struct Setting {
    table: Arc<ExpertTable>,
    rows: usize,
    machine: Machine,
}

impl Setting {
    /// Returns the steps of all requests, with three levels chosen by router weights.
    fn trace(&self, mean: f64) -> RoutingTrace {
        let mut trace = routing(&self.table, 0.5, 0.0, self.rows * 96);
        route_levels(&mut trace, &cut(&self.table, 3), mean);
        batched(trace, self.rows)
    }

    /// Simulates whole experts of a fixed width each, 4 bits on average, read on demand or on prediction.
    fn fixed_widths(
        &self,
        budget: u64,
        keep: impl Fn(&Arc<ExpertTable>, u64) -> Result<ResidencyOptions, OutOfMemory>,
        accuracy: Option<f64>,
    ) -> Result<Outcome, Failure> {
        let layers = self.table.layers().iter().map(|layer| {
            let mut layer = layer.clone();
            for (number, entry) in layer.iter_mut().enumerate() {
                // Of four experts, one is at level 6, one at level 2 and two at level 4: 4 on average.
                let planes = [3, 4, 3, 1][number % 4];
                entry.plane_bytes = [entry.bytes(planes), 0, 0, 0, 0];
            }
            layer
        });
        let table = Arc::new(ExpertTable::new(layers.collect(), self.table.experts_per_token()));
        let options = SimulationOptions {
            order: OrderRule::ById,
            unit: CacheUnit::Experts,
            prefetch: accuracy.map(|accuracy| Prefetch { accuracy }),
            ..self.options()
        };
        Ok(simulate(&self.trace(4.0), &table, keep(&table, budget)?, options)?)
    }

    /// Simulates nested planes of levels 2 to 4, 3.0 on average.
    fn nested(
        &self,
        budget: u64,
        unit: CacheUnit,
        order: OrderRule,
        prefetch: Option<f64>,
    ) -> Result<Outcome, Failure> {
        let table = cut(&self.table, 3);
        let prefetch = prefetch.map(|accuracy| Prefetch { accuracy });
        let options = SimulationOptions { order, unit, prefetch, ..self.options() };
        let residency = ResidencyOptions::new(&table, budget)?;
        Ok(simulate(&self.trace(3.0), &table, residency, options)?)
    }

    fn options(&self) -> SimulationOptions {
        SimulationOptions { warm_up: 32, ..SimulationOptions::new(self.machine) }
    }
}

/// Mixtral 8x7B on 6 GB: the paper claims 1.39 times EdgeMoE's throughput.
fn throughput() -> Result<(), Failure> {
    println!(
        "\n| requests | EdgeMoE-like, LRU | EdgeMoE-like | separate copies | nested, by id | hottest first | Johnson | with prefetch | over EdgeMoE-like |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    for rows in [1, 4, 8, 32] {
        let weights = 3.0 * 4096.0 * 14336.0;
        let table = table(32, 8, 2, weights);
        let setting = Setting { table, rows, machine: gpu(3.5e9, 15_000_000) };
        let budget = 5_000_000_000;
        let speed = |outcome: Outcome| outcome.tokens_per_second();
        let lru =
            speed(setting.fixed_widths(budget, |table, budget| Ok(recent(table, budget)), None)?);
        let frequent = |table: &Arc<ExpertTable>, budget| ResidencyOptions::new(table, budget);
        let edge = speed(setting.fixed_widths(budget, frequent, Some(0.7))?);
        let copies = setting.nested(budget, CacheUnit::Experts, OrderRule::ById, None)?;
        let planes = |order, prefetch| setting.nested(budget, CacheUnit::Planes, order, prefetch);
        let by_id = planes(OrderRule::ById, None)?;
        let hottest = planes(OrderRule::HottestFirst, None)?;
        let johnson = speed(planes(OrderRule::Johnson, None)?);
        let ahead = speed(planes(OrderRule::Johnson, Some(0.7))?);
        println!(
            "| {rows} | {lru:.2} | {edge:.2} | {:.2} | {:.2} | {:.2} | {johnson:.2} | {ahead:.2} | {:.2} to {:.2} |",
            speed(copies),
            speed(by_id),
            speed(hottest),
            johnson / edge,
            ahead / edge
        );
    }
    Ok(())
}

/// LLaMA-MoE-3.5B: the paper claims 53 % less peak memory than EdgeMoE at no less throughput.
fn memory() -> Result<(), Failure> {
    println!(
        "\n| requests, disk | EdgeMoE-like: MB of experts, tokens/s | nested: MB for the same speed | less |"
    );
    println!("|---|---|---|---|");
    for (rows, bandwidth) in [(4, 3.5e9), (32, 3.5e9), (32, 0.86e9)] {
        let table = table(32, 8, 2, 3.0 * 4096.0 * 1376.0);
        let setting = Setting { table, rows, machine: gpu(bandwidth, 3_100_000) };
        for edge_budget in [2_400_000_000u64, 1_600_000_000] {
            let frequent = |table: &Arc<ExpertTable>, budget| ResidencyOptions::new(table, budget);
            let edge = setting.fixed_widths(edge_budget, frequent, Some(0.7))?;
            let wanted = edge.tokens_per_second();
            let (mut low, mut high) = (100_000_000, edge_budget);
            while high - low > 10_000_000 {
                let middle = (low + high) / 2;
                let ours =
                    setting.nested(middle, CacheUnit::Planes, OrderRule::Johnson, Some(0.7))?;
                if ours.tokens_per_second() < wanted { low = middle } else { high = middle }
            }
            let held = edge.counters.bytes_peak;
            println!(
                "| {rows}, {:.2} GB/s | {:.0}, {wanted:.1} | {:.0} | {:.0} % |",
                bandwidth / 1e9,
                held as f64 / 1e6,
                high as f64 / 1e6,
                100.0 * (1.0 - high as f64 / held as f64)
            );
        }
    }
    Ok(())
}

/// Prints the predictions for Qwen3-30B-A3B's shape on several machines.
fn machines() -> Result<(), Failure> {
    let laptop = Machine {
        read_bytes_per_second: 7e9,
        read_latency_ns: 80_000,
        read_depth: 16,
        expert_bytes_per_second: 55e9,
        dense_layer_ns: 250_000,
        step_ns: 4_500_000,
        ..MACHINE
    };
    let phone = Machine {
        read_bytes_per_second: 1e9,
        read_latency_ns: 200_000,
        read_depth: 8,
        expert_bytes_per_second: 20e9,
        dense_layer_ns: 700_000,
        step_ns: 12_000_000,
        ..MACHINE
    };
    println!(
        "\n| machine | budget | strict, level 4 | + prefetch 0.9 | mean 3.2 | + prefetch | elastic: tokens/s, level | all resident |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    let table = qwen3();
    let strict = routing(&table, 0.5, 0.0, WARM_UP + 128);
    let mut dual = strict.clone();
    route_levels(&mut dual, &table, 3.2);
    let machines =
        [("2 cores, 1.5 GB/s", MACHINE), ("8 cores, 7 GB/s", laptop), ("phone, 1 GB/s", phone)];
    for (name, machine) in machines {
        for part in [0.15, 0.25, 0.5] {
            let run = |trace: &RoutingTrace, accuracy: Option<f64>, late, part| {
                let options = SimulationOptions {
                    prefetch: accuracy.map(|accuracy| Prefetch { accuracy }),
                    late,
                    warm_up: WARM_UP,
                    ..SimulationOptions::new(machine)
                };
                let goal = match late {
                    LatePlanes::Wait => RetentionGoal::Bytes,
                    LatePlanes::Skip => RetentionGoal::Error,
                };
                let policy = FrequencyOptions { goal, ..FrequencyOptions::default() };
                let policy = DecayedFrequency::new(Arc::clone(&table), policy)?;
                simulate(trace, &table, keep(policy, part_of(&table, part)), options)
            };
            let speed = |trace, accuracy| -> Result<f64, Failure> {
                Ok(run(trace, accuracy, LatePlanes::Wait, part)?.tokens_per_second())
            };
            let elastic = run(&strict, Some(0.9), LatePlanes::Skip, part)?;
            println!(
                "| {name} | {:.0} % | {:.1} | {:.1} | {:.1} | {:.1} | {:.1}, {:.2} | {:.1} |",
                part * 100.0,
                speed(&strict, None)?,
                speed(&strict, Some(0.9))?,
                speed(&dual, None)?,
                speed(&dual, Some(0.9))?,
                elastic.tokens_per_second(),
                elastic.mean_levels().1,
                run(&strict, None, LatePlanes::Wait, 1.0)?.tokens_per_second()
            );
        }
    }
    Ok(())
}

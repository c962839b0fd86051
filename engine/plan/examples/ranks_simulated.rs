//! Tables of docs/perf/039-ranks-simulated.md: load of ranks under synthetic routing, and time of a token over four
//! fabrics. Nothing is measured, so the output depends on the program alone.
//!
//!     cargo run --offline --locked -p nestling-plan --example ranks_simulated [TRACE]
//!
//! With a trace that `nestling run --record-trace` wrote, the first table is that of the trace.
#![expect(clippy::print_stdout, reason = "the tables are printed")]

use std::error::Error;
use std::fs::File;
use std::io::BufReader;

use nestling_core::group::ExpertDivision;
use nestling_formats::Level;
use nestling_plan::plan::{DEFAULT_SKEW, Demand, MachineSpeed};
use nestling_plan::ranks::{
    ExpertLoad, Fabric, PlacementRule, RankedModel, SimulatedLoad, StepShape, simulate_ranks,
};
use nestling_plan::simulate::{RoutingTrace, SyntheticRouting, TraceShape};
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};

const RANKS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

const SESSIONS: [usize; 3] = [1, 8, 64];

/// Experts of a layer that every rank holds under replication.
const REPLICATED: usize = 8;

const RULES: [PlacementRule; 3] = [
    PlacementRule::InTurn,
    PlacementRule::ByFrequency,
    PlacementRule::Replicated { experts: REPLICATED },
];

/// Layers of the routing trace. The layers of the model have their loads in turn.
const TRACED_LAYERS: usize = 8;

/// Steps of the routing trace, of which half measure frequencies.
const STEPS: usize = 4096;

/// Memory bandwidth of a rank in bytes per second.
const MEMORY: f64 = 100e9;

fn main() -> Result<(), Box<dyn Error>> {
    let trace = match std::env::args().nth(1) {
        Some(path) => RoutingTrace::read(&path, BufReader::new(File::open(&path)?))?,
        None => synthetic(),
    };
    load_table(&trace);
    let trace = synthetic();
    let shape = SyntheticShape::QWEN3_30B_A3B;
    let options =
        SyntheticOptions { shape, top_level: Level::L4, router_skew: DEFAULT_SKEW, seed: 1 };
    let (index, config) = synthetic_index(&options)?;
    let whole = Demand::of_store(&index, &config, Level::L4, DEFAULT_SKEW);
    let models = RANKS.map(|ranks| {
        let of = |division| RankedModel::of_index(&index, &config, &whole, ranks, division);
        (of(ExpertDivision::Whole), of(ExpertDivision::Sliced))
    });
    traffic_table(&models);
    for sessions in SESSIONS {
        time_table(&trace, &models, sessions)?;
    }
    Ok(())
}

fn synthetic() -> RoutingTrace {
    let shape = TraceShape { experts: vec![128; TRACED_LAYERS], experts_per_token: 8 };
    let (skew, level) = (DEFAULT_SKEW, Level::L4);
    SyntheticRouting { shape, skew, steadiness: 0.5, steps: STEPS, level, seed: 3 }.trace()
}

/// Returns the distinct experts of the busiest rank over the mean, averaged over layers and steps.
fn step_ratio(load: &SimulatedLoad) -> f64 {
    let sum = |of: fn(&ExpertLoad) -> f64| -> f64 { load.layers.iter().map(of).sum() };
    sum(|layer| layer.busiest) / sum(|layer| layer.mean)
}

fn load_table(trace: &RoutingTrace) {
    println!("| ranks | all steps | | | 1 session | | | 8 sessions | | | 64 sessions | | |");
    println!("|---:|{}", "---:|".repeat(12));
    println!("| |{}", " turn | freq. | repl. |".repeat(4));
    for ranks in &RANKS[1..] {
        let loads = |sessions| RULES.map(|rule| simulate_ranks(trace, *ranks, sessions, rule));
        let all = loads(1).map(|load| load.long_run_ratio);
        let steps = SESSIONS.map(|sessions| loads(sessions).map(|load| step_ratio(&load)));
        let cells = all.into_iter().chain(steps.into_iter().flatten());
        let cells: Vec<String> = cells.map(|ratio| format!("{ratio:.2}")).collect();
        println!("| {ranks} | {} |", cells.join(" | "));
    }
    println!();
}

fn traffic_table(models: &[(RankedModel, RankedModel)]) {
    println!("| ranks | exchanges | messages of a rank | kB a token, whole | kB a token, sliced |");
    println!("|---:|---:|---:|---:|---:|");
    for (whole, sliced) in &models[1..] {
        let traffic = &whole.traffic;
        println!(
            "| {} | {} | {} | {:.0} | {:.0} |",
            traffic.ranks,
            traffic.exchanges(),
            traffic.messages(),
            traffic.row_bytes() / 1e3,
            sliced.traffic.row_bytes() / 1e3
        );
    }
    println!();
}

/// Prints the milliseconds of a step of `sessions` rows, by fabric and rule.
fn time_table(
    trace: &RoutingTrace,
    models: &[(RankedModel, RankedModel)],
    sessions: usize,
) -> Result<(), Box<dyn Error>> {
    let machine = MachineSpeed { memory_bytes_per_s: MEMORY, disk: Vec::new() };
    println!("Batch of {sessions}:\n");
    println!("| ranks |{}", Fabric::PRESETS.map(|name| format!(" {name} | | |")).concat());
    println!("|---:|{}", "---:|".repeat(3 * Fabric::PRESETS.len()));
    println!("| |{}", " freq. | repl. | sliced |".repeat(Fabric::PRESETS.len()));
    for (whole, sliced) in models {
        let ranks = whole.traffic.ranks;
        let mut cells = Vec::new();
        for name in Fabric::PRESETS {
            let fabric = Fabric::preset(name).ok_or("a preset is missing")?;
            let step = StepShape::decode(sessions);
            for rule in &RULES[1..] {
                let load = simulate_ranks(trace, ranks, sessions, *rule);
                let layers = whole.traffic.layers.len();
                let loads: Vec<_> = load.layers.iter().copied().cycle().take(layers).collect();
                cells.push(whole.with_loads(step, &loads, 0.0, &machine, &fabric).step_s);
            }
            let loads = sliced.loads(sessions);
            cells.push(sliced.with_loads(step, &loads, 0.0, &machine, &fabric).step_s);
        }
        let cells: Vec<String> = cells.iter().map(|s| format!("{:.1}", 1e3 * s)).collect();
        println!("| {ranks} | {} |", cells.join(" | "));
    }
    println!();
    Ok(())
}

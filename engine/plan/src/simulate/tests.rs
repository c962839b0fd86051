use nestling_formats::Level;

use super::*;
use nestling_experts::residency::{
    DecayedFrequency, EvictionPolicy, ExpertEntry, FrequencyOptions, LeastRecentlyUsed,
    StaticHotSet,
};

/// Reading a byte takes one nanosecond, and computing with it a hundredth of that.
const MACHINE: Machine = Machine {
    read_bytes_per_second: 1e9,
    read_latency_ns: 0,
    read_depth: 1,
    expert_ns_min: 0,
    expert_bytes_per_second: 1e11,
    further_row_share: 0.5,
    dense_layer_ns: 1000,
    step_ns: 5000,
};

fn table(layers: usize, experts: usize, experts_per_token: usize) -> Arc<ExpertTable> {
    let entry = ExpertEntry {
        plane_bytes: [200_000, 100_000, 100_000, 0, 0],
        error_drops: [0.888, 0.0845, 0.0209, 0.0, 0.0],
        frequency: 0.0,
        weight_square: 1.0,
    };
    Arc::new(ExpertTable::new(vec![vec![entry; experts]; layers], experts_per_token))
}

fn routing(layers: usize, experts: u32, skew: f64, steadiness: f64, steps: usize) -> RoutingTrace {
    let shape = TraceShape { experts: vec![experts; layers], experts_per_token: 4 };
    let level = Level::L4;
    SyntheticRouting { shape, skew, steadiness, steps, level, seed: 11 }.trace()
}

fn with(policy: impl EvictionPolicy + 'static, budget_bytes: u64) -> ResidencyOptions {
    ResidencyOptions { budget_bytes, policy: Box::new(policy), floor_share: 0.25 }
}

fn frequency(table: &Arc<ExpertTable>, budget_bytes: u64) -> ResidencyOptions {
    let policy = DecayedFrequency::new(Arc::clone(table), FrequencyOptions::default());
    with(policy.unwrap(), budget_bytes)
}

fn lru(table: &Arc<ExpertTable>, budget_bytes: u64) -> ResidencyOptions {
    with(LeastRecentlyUsed::new(Arc::clone(table)), budget_bytes)
}

fn step(layers: &[&[u32]]) -> TraceStep {
    let layer = |ids: &&[u32]| LayerRouting {
        ids: ids.to_vec(),
        weights: vec![0.25; ids.len()],
        levels: vec![4; ids.len()],
    };
    TraceStep { layers: layers.iter().map(layer).collect() }
}

#[test]
fn a_cold_and_a_warm_step_take_what_arithmetic_says() {
    let table = table(1, 8, 4);
    let shape = TraceShape { experts: vec![8], experts_per_token: 4 };
    let same = step(&[&[0, 1, 2, 3]]);
    let trace = RoutingTrace { shape, steps: vec![same.clone(), same] };
    let options = SimulationOptions::new(MACHINE);
    let cold = simulate(&trace, &table, frequency(&table, 3_200_000), options).unwrap();
    let warm = SimulationOptions { warm_up: 1, ..options };
    let warm = simulate(&trace, &table, frequency(&table, 3_200_000), warm).unwrap();
    // Two steps of dense parts and four experts of 4 us each, plus four reads of 400 us once. All but the
    // last expert are computed during reads.
    let warm_ns = 1000 + 5000 + 4 * 4000;
    assert_eq!(warm.elapsed_ns, warm_ns);
    assert_eq!((warm.stall_ns, warm.missed_bytes(), warm.read_ns), (0, 0, 0));
    assert_eq!(cold.elapsed_ns - warm_ns, 1000 + 4 * 400_000 + 4000 + 5000);
    assert_eq!(cold.read_bytes, [800_000, 400_000, 400_000, 0, 0]);
    assert_eq!((cold.rows, cold.mean_levels()), (2, (4.0, 4.0)));
}

#[test]
fn skewed_and_independent_routing_misses_little_more_than_hindsight() {
    let (table, trace) = (table(12, 64, 4), routing(12, 64, 0.5, 0.0, 500));
    let options = SimulationOptions { warm_up: 128, ..SimulationOptions::new(MACHINE) };
    for part in [8, 4, 2] {
        let budget = table.total_bytes() / part;
        let best = best_static(&table, &trace, 128, budget);
        let ours = simulate(&trace, &table, frequency(&table, budget), options).unwrap();
        let recent = simulate(&trace, &table, lru(&table, budget), options).unwrap();
        let uses = ours.counters.hit_bytes.iter().sum::<u64>() + ours.missed_bytes();
        assert_eq!(uses, best.used_bytes);
        let ratio = |outcome: &Outcome| outcome.missed_bytes() as f64 / best.missed_bytes as f64;
        assert!(ratio(&ours) < 1.15, "1/{part}: {:.3}", ratio(&ours));
        assert!(ratio(&recent) > 1.2, "1/{part}: {:.3}", ratio(&recent));
        // A cache with the optimal static set misses the computed bytes, except for experts that pass
        // through.
        let set = StaticHotSet::of_uses(Arc::clone(&table), best.uses.clone());
        let told = simulate(&trace, &table, with(set, budget), options).unwrap();
        assert!((0.97..1.05).contains(&ratio(&told)), "1/{part}: {:.3}", ratio(&told));
    }
}

#[test]
fn routing_that_stays_for_a_while_is_followed() {
    let (table, trace) = (table(12, 64, 4), routing(12, 64, 0.5, 0.9, 400));
    let options = SimulationOptions { warm_up: 128, ..SimulationOptions::new(MACHINE) };
    let budget = table.total_bytes() / 4;
    let best = best_static(&table, &trace, 128, budget);
    let ours = simulate(&trace, &table, frequency(&table, budget), options).unwrap();
    let ratio = ours.missed_bytes() as f64 / best.missed_bytes as f64;
    assert!(ratio < 0.6, "{ratio:.3}");
}

#[test]
fn a_budget_below_one_token_still_hits() {
    let (table, trace) = (table(12, 64, 4), routing(12, 64, 1.0, 0.0, 400));
    let budget = table.token_bytes() / 2;
    let options = SimulationOptions { warm_up: 128, ..SimulationOptions::new(MACHINE) };
    let ours = simulate(&trace, &table, frequency(&table, budget), options).unwrap();
    let without_floors = ResidencyOptions { floor_share: 0.0, ..lru(&table, budget) };
    let recent = simulate(&trace, &table, without_floors, options).unwrap();
    assert!(recent.counters.byte_hit_rate() < 0.02, "{:.3}", recent.counters.byte_hit_rate());
    let best = best_static(&table, &trace, 128, budget);
    let possible = 1.0 - best.missed_bytes as f64 / best.used_bytes as f64;
    let hit_rate = ours.counters.byte_hit_rate();
    assert!(hit_rate > 0.6 * possible, "{hit_rate:.3} of {possible:.3}");
}

#[test]
fn late_planes_cost_no_time_where_they_are_not_waited_for() {
    let (table, trace) = (table(6, 32, 4), routing(6, 32, 0.5, 0.0, 100));
    let strict = SimulationOptions { warm_up: 20, ..SimulationOptions::new(MACHINE) };
    let elastic = SimulationOptions { late: LatePlanes::Skip, ..strict };
    let budget = table.total_bytes() / 3;
    let waited = simulate(&trace, &table, frequency(&table, budget), strict).unwrap();
    let skipped = simulate(&trace, &table, frequency(&table, budget), elastic).unwrap();
    assert_eq!(waited.mean_levels(), (4.0, 4.0));
    assert!(skipped.elapsed_ns < waited.elapsed_ns * 9 / 10);
    assert!((2.0..4.0).contains(&skipped.mean_levels().1), "{:?}", skipped.mean_levels());
}

#[test]
fn upgrades_by_planes_read_less_than_copies() {
    let table = table(6, 32, 4);
    let mut trace = routing(6, 32, 0.5, 0.0, 200);
    route_levels(&mut trace, &table, 3.2);
    assert!((3.0..3.2001).contains(&mean_level(&trace)), "{}", mean_level(&trace));
    let planes = SimulationOptions { warm_up: 50, ..SimulationOptions::new(MACHINE) };
    let copies = SimulationOptions { unit: CacheUnit::Experts, ..planes };
    let budget = table.total_bytes() / 4;
    let planes = simulate(&trace, &table, frequency(&table, budget), planes).unwrap();
    let copies = simulate(&trace, &table, frequency(&table, budget), copies).unwrap();
    let (ours, theirs) = (planes.read_bytes_per_token(), copies.read_bytes_per_token());
    assert!(ours < 0.9 * theirs, "{ours} {theirs}");
    assert_eq!(planes.mean_levels(), copies.mean_levels());
}

#[test]
fn a_prompt_of_more_experts_than_fit_is_computed() {
    let table = table(2, 64, 4);
    let prompt: Vec<u32> = (0..256).map(|at| at * 7 % 64).collect();
    let shape = TraceShape { experts: vec![64; 2], experts_per_token: 4 };
    let trace = RoutingTrace { shape, steps: vec![step(&[&prompt, &prompt]); 3] };
    for unit in [CacheUnit::Planes, CacheUnit::Experts] {
        for prefetch in [None, Some(Prefetch { accuracy: 0.8 })] {
            let options = SimulationOptions { unit, prefetch, ..SimulationOptions::new(MACHINE) };
            let budget = table.least_bytes();
            let outcome = simulate(&trace, &table, frequency(&table, budget), options).unwrap();
            assert_eq!((outcome.expert_uses, outcome.served_bits), (3 * 2 * 64, 3 * 2 * 64 * 4));
            assert!(outcome.counters.bytes_peak <= budget);
        }
    }
}

#[test]
fn reading_ahead_hides_reads_behind_computing() {
    let machine = Machine { dense_layer_ns: 400_000, ..MACHINE };
    let (table, trace) = (table(6, 32, 4), routing(6, 32, 0.5, 0.0, 100));
    let options = SimulationOptions { warm_up: 20, ..SimulationOptions::new(machine) };
    let ahead = SimulationOptions { prefetch: Some(Prefetch { accuracy: 0.9 }), ..options };
    let budget = table.total_bytes() / 2;
    let without = simulate(&trace, &table, frequency(&table, budget), options).unwrap();
    let with = simulate(&trace, &table, frequency(&table, budget), ahead).unwrap();
    assert!(with.stall_ns < without.stall_ns / 2, "{} {}", with.stall_ns, without.stall_ns);
    assert!(with.read_bytes_per_token() < 1.3 * without.read_bytes_per_token());
}

#[test]
fn traces_survive_their_file_and_strange_files_are_refused() {
    let trace = routing(2, 8, 0.5, 0.0, 5);
    let mut file = Vec::new();
    trace.write(&mut file).unwrap();
    assert_eq!(RoutingTrace::read("it", file.as_slice()).unwrap(), trace);
    assert_eq!(trace.rows(), 5);

    let head = r#"{"nestling_routing_trace":1,"experts":[2],"experts_per_token":1}"#;
    let line = |ids: &str, weights: &str, levels: &str| {
        format!(
            "{head}\n{{\"layers\":[{{\"ids\":{ids},\"weights\":{weights},\"levels\":{levels}}}]}}\n"
        )
    };
    assert!(RoutingTrace::read("it", line("[1]", "[0.5]", "[4]").as_bytes()).is_ok());
    let faults = [
        (String::new(), 1),
        (head.to_owned(), 1),
        (head.replace("trace\":1", "trace\":2") + "\n", 1),
        (head.replace("[2]", "[5000]") + "\n", 1),
        (head.replace("token\":1", "token\":0") + "\n", 1),
        (format!("{head}\n{{\"layers\":[]}}\n"), 2),
        (line("[2]", "[0.5]", "[4]"), 2),
        (line("[1]", "[]", "[4]"), 2),
        (line("[1]", "[1e999]", "[4]"), 2),
        (line("[1]", "[0.5]", "[5]"), 2),
        (line("[-1]", "[0.5]", "[4]"), 2),
        (line("[1]", "[0.5]", "[4]").trim_end().to_owned(), 2),
    ];
    for (text, at) in faults {
        let error = RoutingTrace::read("it", text.as_bytes()).unwrap_err();
        assert!(matches!(error, EngineError::Trace { line, .. } if line == at), "{text}: {error}");
    }
}

#[test]
fn another_models_trace_is_refused() {
    let trace = routing(2, 8, 0.5, 0.0, 1);
    let table = table(2, 9, 4);
    let residency = frequency(&table, table.total_bytes());
    let error = simulate(&trace, &table, residency, SimulationOptions::new(MACHINE)).unwrap_err();
    assert!(matches!(error, EngineError::Mismatch { .. }), "{error}");
}

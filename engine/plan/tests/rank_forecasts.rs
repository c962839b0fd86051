//! Forecasts of models over ranks, beside enumeration, simulation and the design's formulas.

use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::routing_trace::{RoutingTrace, TraceShape};
use nestling_experts::residency::Placement;
use nestling_formats::Level;

use nestling_plan::plan::{
    COMPUTE_SHARE, DEFAULT_SKEW, Demand, DiskSpeed, ExpertDemand, LAYER_S, LayerDemand, LevelMix,
    MachineSpeed, TOKEN_S,
};
use nestling_plan::ranks::{
    Bottleneck, ExchangeTime, Fabric, MeasuredExchange, Operation, PlacementRule, PlannedExchange,
    RankedModel, SimulatedLoad, StepShape, Traffic, can_be_sliced, simulate_ranks,
};
use nestling_plan::simulate::SyntheticRouting;
use nestling_plan::synthetic::{SyntheticOptions, SyntheticShape, synthetic_index};

/// Bytes of an expert of the models below.
const EXPERT_BYTES: u64 = 1 << 20;

fn machine() -> MachineSpeed {
    let disk = vec![DiskSpeed { read_bytes: 1 << 20, bytes_per_s: 1e9 }];
    MachineSpeed { memory_bytes_per_s: 1e9, disk }
}

fn fabric() -> Fabric {
    Fabric { latency_s: 50e-6, message_s: 3e-6, bytes_per_s: 1e8, measured: Vec::new() }
}

/// Returns a model whose experts have these rates, `[layers][experts]`, placed in turn.
fn model(rates: &[Vec<f64>], chosen: usize, ranks: usize) -> RankedModel {
    let gather = |received_bytes| PlannedExchange {
        operation: Operation::AllGather,
        received_bytes,
        by_load: false,
    };
    let rows =
        PlannedExchange { operation: Operation::Exchange, received_bytes: 4000.0, by_load: true };
    let demand_of = |share| {
        let placement = Placement::in_turn(share);
        let layers = (0u32..).zip(rates).map(|(layer, rates)| {
            let held = (0u32..).zip(rates).filter(|(expert, _)| placement.holds(layer, *expert));
            let experts = held.map(|(_, rate)| ExpertDemand {
                plane_bytes: [EXPERT_BYTES, 0, 0, 0, 0],
                rate: *rate,
            });
            LayerDemand { chosen, experts: experts.collect() }
        });
        Demand {
            level: Level::L2,
            dense_token_bytes: 3 << 20,
            context_bytes: 1 << 16,
            num_layers: rates.len(),
            layers: layers.collect(),
            is_measured: true,
        }
    };
    RankedModel {
        division: ExpertDivision::Whole,
        demands: RankShare { rank: 0, ranks }.all().map(demand_of).collect(),
        traffic: Traffic {
            ranks,
            embedding: Vec::new(),
            layers: vec![vec![gather(1000.0), rows, gather(500.0)]; rates.len()],
            head: vec![gather(2000.0)],
        },
    }
}

/// A step of one row is compared with the mean duration over all sets of experts that it can use.
#[test]
fn the_forecast_of_a_row_is_the_mean_over_all_routings() {
    for (ranks, experts, chosen) in [(2, 6, 2), (3, 6, 3), (4, 9, 2), (1, 5, 2)] {
        let rates = vec![vec![chosen as f64 / experts as f64; experts]];
        let model = model(&rates, chosen, ranks);
        let (mut sum, mut count) = (0.0, 0);
        for set in (0u32..1 << experts).filter(|set| set.count_ones() as usize == chosen) {
            let mut loads = vec![0u32; ranks];
            (0..experts).filter(|e| set >> e & 1 == 1).for_each(|e| loads[e % ranks] += 1);
            let busiest = loads.into_iter().max().unwrap();
            let read = (3 << 20) + (1 << 16) + u64::from(busiest) * EXPERT_BYTES;
            let mut seconds = read as f64 / (1e9 * COMPUTE_SHARE) + TOKEN_S + LAYER_S;
            if ranks > 1 {
                // Three exchanges of the layer, one of the head, the order and the report.
                let ratio = f64::from(busiest) * ranks as f64 / chosen as f64;
                let bytes = 1000.0 + 4000.0 * ratio + 500.0 + 2000.0;
                seconds += 6.0 * (50e-6 + 3e-6 * (ranks - 1) as f64) + bytes / 1e8;
            }
            sum += seconds;
            count += 1;
        }
        let mix = LevelMix::fixed(Level::L2);
        let found = model.forecast(StepShape::decode(1), mix, &machine(), &fabric(), u64::MAX);
        let expected = sum / f64::from(count);
        assert!(
            (found.step_s / expected - 1.0).abs() < 1e-9,
            "{ranks} ranks: {found:?}, {expected}"
        );
        assert_eq!(found.disk_s, 0.0);
    }
}

fn routing(layers: usize, experts: u32, chosen: u32, steps: usize) -> RoutingTrace {
    let shape = TraceShape { experts: vec![experts; layers], experts_per_token: chosen };
    let (level, skew) = (Level::L4, DEFAULT_SKEW);
    SyntheticRouting { shape, skew, steadiness: 0.0, steps, level, seed: 5 }.trace()
}

#[test]
fn loads_are_those_of_a_simulated_trace() {
    let trace = routing(3, 32, 4, 6000);
    let simulated = &trace.steps[3000..];
    let rates: Vec<Vec<f64>> = (0..3)
        .map(|layer| {
            let mut rates = vec![0.0; 32];
            let ids = simulated.iter().flat_map(|step| &step.layers[layer].ids);
            ids.for_each(|id| rates[*id as usize] += 1.0 / 3000.0);
            rates
        })
        .collect();
    for ranks in [2, 4, 8] {
        for sessions in [1, 4, 16] {
            let found = simulate_ranks(&trace, ranks, sessions, PlacementRule::InTurn);
            let expected = model(&rates, 4, ranks).loads(sessions);
            for (found, expected) in found.layers.iter().zip(&expected) {
                let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.06;
                assert!(
                    close(found.busiest, expected.busiest),
                    "{ranks}, {sessions}: {found:?} {expected:?}"
                );
                assert!(
                    close(found.mean, expected.mean),
                    "{ranks}, {sessions}: {found:?} {expected:?}"
                );
            }
        }
    }
}

#[test]
fn frequencies_even_the_long_run_and_replicas_each_step() {
    let trace = routing(4, 64, 8, 2000);
    for ranks in [4, 8, 16] {
        let ratio = |rule| simulate_ranks(&trace, ranks, 8, rule);
        let [turn, frequency, replicated] = [
            PlacementRule::InTurn,
            PlacementRule::ByFrequency,
            PlacementRule::Replicated { experts: 8 },
        ]
        .map(ratio);
        assert!(frequency.long_run_ratio < turn.long_run_ratio, "{frequency:?}, {turn:?}");
        let busiest = |load: &SimulatedLoad| load.layers.iter().map(|l| l.busiest).sum::<f64>();
        assert!(busiest(&replicated) < 0.95 * busiest(&frequency), "{replicated:?}, {frequency:?}");
        // The same experts are used, wherever they are.
        let mean = |load: &SimulatedLoad| load.layers.iter().map(|layer| layer.mean).sum::<f64>();
        assert!((mean(&turn) - mean(&replicated)).abs() < 1e-9);
    }
}

#[test]
fn measured_exchanges_replace_the_formula() {
    let point = |bytes, seconds| MeasuredExchange {
        operation: Operation::AllGather,
        bytes,
        ranks: 4,
        seconds,
    };
    let measured = vec![point(3000.0, 5e-4), point(1000.0, 1e-4)];
    let fabric = Fabric { measured, ..fabric() };
    let seconds = |bytes| {
        let time = fabric.time(Operation::AllGather, bytes, 4);
        time.latency_s + time.transfer_s
    };
    for (bytes, expected) in
        [(0.0, 1e-4), (1000.0, 1e-4), (1500.0, 2e-4), (3000.0, 5e-4), (1e6 + 3000.0, 5e-4 + 1e-2)]
    {
        assert!((seconds(bytes) - expected).abs() < 1e-12, "{bytes}: {}", seconds(bytes));
    }
    let formula = fabric.time(Operation::Exchange, 1000.0, 4);
    assert!((formula.latency_s - 59e-6).abs() < 1e-12, "{formula:?}");
    assert_eq!(fabric.time(Operation::AllGather, 1e9, 1), ExchangeTime::default());
}

#[test]
fn the_longest_part_is_the_bottleneck() {
    let model = model(&vec![vec![0.5; 4]; 2], 2, 2);
    let step = |fabric: &Fabric, machine: &MachineSpeed, rows, bytes| {
        let mix = LevelMix::fixed(Level::L2);
        model.forecast(StepShape::decode(rows), mix, machine, fabric, bytes).bottleneck()
    };
    let (near, machine) = (Fabric::preset("nvlink").unwrap(), machine());
    assert_eq!(step(&near, &machine, 1, u64::MAX), Bottleneck::Memory);
    assert_eq!(step(&near, &machine, 64, u64::MAX), Bottleneck::Compute);
    let disk = vec![DiskSpeed { read_bytes: 1 << 20, bytes_per_s: 1e8 }];
    assert_eq!(step(&near, &MachineSpeed { disk, ..machine.clone() }, 1, 0), Bottleneck::Disk);
    assert_eq!(
        step(&Fabric { latency_s: 0.1, ..fabric() }, &machine, 1, u64::MAX),
        Bottleneck::Latency
    );
    let narrow = Fabric { bytes_per_s: 1e4, ..fabric() };
    assert_eq!(step(&narrow, &machine, 1, u64::MAX), Bottleneck::Bandwidth);
}

/// The bytes of the design's formulas, for the shape of Qwen3-30B-A3B.
#[test]
fn a_published_shape_exchanges_what_the_design_says() {
    let shape = SyntheticShape::QWEN3_30B_A3B.with_layers(3);
    let options = SyntheticOptions { shape, top_level: Level::L4, router_skew: 0.5, seed: 1 };
    let (index, config) = synthetic_index(&options).unwrap();
    let whole = Demand::of_store(&index, &config, Level::L4, DEFAULT_SKEW);
    for ranks in [2, 4, 8] {
        let (n, elsewhere) = (ranks as f64, (ranks - 1) as f64 / ranks as f64);
        let model = RankedModel::of_index(&index, &config, &whole, ranks, ExpertDivision::Whole);
        let received =
            |layer: &[PlannedExchange]| layer.iter().map(|e| e.received_bytes).sum::<f64>();
        let widths = f64::from(4096 + 2 * 512 + 2048 + 2048);
        let rows = 8.0 * elsewhere * (4.0 + 4.0 * 2048.0 / n);
        for layer in &model.traffic.layers {
            assert!((received(layer) - (4.0 * widths * elsewhere + rows)).abs() < 1e-6);
            assert_eq!(layer.len(), 4);
        }
        assert!((received(&model.traffic.head) - 4.0 * 151_936.0 * elsewhere).abs() < 1e-6);
        assert!((received(&model.traffic.embedding) - 4.0 * 2048.0 * elsewhere).abs() < 1e-6);
        assert_eq!(model.traffic.exchanges(), 3 * 4 + 3);
        assert_eq!(model.traffic.messages(), (3 * 4 + 3) * (ranks - 1));
        // Each expert is on one rank, and slices of all are on each.
        let held: u64 = model.demands.iter().map(Demand::expert_bytes).sum();
        assert_eq!(held, whole.expert_bytes());
        let sliced = RankedModel::of_index(&index, &config, &whole, ranks, ExpertDivision::Sliced);
        let slices: u64 = sliced.demands.iter().map(Demand::expert_bytes).sum();
        assert!(slices.abs_diff(held) * 1000 < held && can_be_sliced(&config, ranks));
        let load = sliced.loads(1)[0];
        assert!((load.ratio() - 1.0).abs() < 1e-9 && (load.mean - 8.0).abs() < 1e-9, "{load:?}");
        // Slices gather inner values of all expert rows, in place of columns of their outputs.
        let slices = 4.0 * 8.0 * 768.0 * elsewhere;
        for layer in &sliced.traffic.layers {
            let expected = 4.0 * widths * elsewhere + slices;
            // Tiles of 16 rows do not divide evenly.
            assert!((received(layer) / expected - 1.0).abs() < 0.01, "{ranks} ranks");
        }
    }
    let one = RankedModel::of_index(&index, &config, &whole, 1, ExpertDivision::Whole);
    assert_eq!((one.traffic.row_bytes(), one.traffic.messages()), (0.0, 0));
    assert!(!can_be_sliced(&config, 49) && can_be_sliced(&config, 48));
}

use nestling_formats::Level;

use super::*;

/// Demand of 4 layers of 16 experts, 4 per token, with planes of 2, 1 and 1 KiB.
fn demand() -> Demand {
    let rates = supposed_rates(16, 4, 0.5);
    let experts: Vec<ExpertDemand> = rates
        .into_iter()
        .map(|rate| ExpertDemand { plane_bytes: [2048, 1024, 1024, 0, 0], rate })
        .collect();
    Demand {
        level: Level::L4,
        dense_token_bytes: 8_000,
        context_bytes: 0,
        num_layers: 4,
        layers: vec![LayerDemand { chosen: 4, experts }; 4],
        is_measured: false,
    }
}

fn machine() -> MachineSpeed {
    let disk = vec![
        DiskSpeed { read_bytes: 1024, bytes_per_s: 1e5 },
        DiskSpeed { read_bytes: 4096, bytes_per_s: 3e5 },
    ];
    MachineSpeed { memory_bytes_per_s: 1e8, disk }
}

fn at_level(level: Level, expert_bytes: u64) -> Forecast {
    forecast(&demand(), LevelMix::fixed(level), &machine(), expert_bytes)
}

#[test]
fn supposed_use_is_that_of_the_measured_routers() {
    for (experts, shares) in [(64, [0.35, 0.55, 0.80]), (128, [0.41, 0.62, 0.85])] {
        let rates = supposed_rates(experts, 8, 0.5);
        assert!((rates.iter().sum::<f64>() - 8.0).abs() < 1e-6);
        for (part, share) in [8, 4, 2].into_iter().zip(shares) {
            let busiest = rates.iter().take(experts / part).sum::<f64>() / 8.0;
            assert!((busiest - share).abs() < 0.03, "{experts} / {part}: {busiest}");
        }
    }
    let even = supposed_rates(10, 2, 0.0);
    assert!(even.iter().all(|rate| (rate - 0.2).abs() < 1e-9), "{even:?}");
}

#[test]
fn more_memory_misses_less_until_nothing_is_missed() {
    let all = demand().expert_bytes();
    let mut before = f64::INFINITY;
    for bytes in [0, all / 4, all / 2, all * 3 / 4, all] {
        let found = at_level(Level::L4, bytes);
        assert!(found.missing_bytes < before, "{bytes}: {found:?}");
        before = found.missing_bytes;
        assert_eq!(found.resident_expert_bytes, bytes);
        assert_eq!(found.resident_expert_bytes + found.disk_expert_bytes, all);
    }
    let whole = at_level(Level::L4, all + 1);
    assert!(whole.is_whole() && whole.hit_rate == 1.0 && whole.read_s == 0.0);
    assert!((whole.token_bytes - (8_000.0 + 4.0 * 4.0 * 4096.0)).abs() < 1e-3);
    assert_eq!(at_level(Level::L4, 0).hit_rate, 0.0);
}

#[test]
fn a_long_context_and_many_layers_take_their_time() {
    let all = demand().expert_bytes();
    let of = |demand: &Demand| forecast(demand, LevelMix::fixed(Level::L4), &machine(), all);
    let empty = of(&demand());
    let long = of(&demand().at_context(750_000));
    assert!((long.compute_s - empty.compute_s - 0.01).abs() < 1e-9, "{empty:?} {long:?}");
    assert!((long.token_bytes - empty.token_bytes - 750_000.0).abs() < 1e-3);
    let tiny = Demand { dense_token_bytes: 0, layers: Vec::new(), ..demand() };
    assert!((of(&tiny).compute_s - (TOKEN_S + 4.0 * LAYER_S)).abs() < 1e-12);
}

#[test]
fn busy_experts_are_kept_before_others() {
    let half = at_level(Level::L4, demand().expert_bytes() / 2);
    let missed = half.best_missing_bytes / (16.0 * 4096.0);
    assert!(missed < 0.3, "half of the experts in memory, {missed} of their use missed");
}

#[test]
fn fewer_bits_are_faster_and_a_wanted_speed_finds_them() {
    let demand = demand();
    let budget = demand.expert_bytes() / 4;
    let speed = |level| at_level(level, budget).tokens_per_s;
    assert!(speed(Level::L2) > speed(Level::L3) && speed(Level::L3) > speed(Level::L4));
    let find = |wanted| mean_level_for(&demand, &machine(), budget, wanted);
    assert_eq!(find(speed(Level::L4)), Some(4.0));
    assert_eq!(find(speed(Level::L3) * 1.001).map(|mean| mean < 3.0), Some(true));
    assert_eq!(find(speed(Level::L2) * 1.01), None);
    let bytes = |wanted| bytes_for(&demand, LevelMix::fixed(Level::L4), &machine(), wanted);
    let least = bytes(speed(Level::L4)).unwrap();
    assert!(least <= budget && at_level(Level::L4, least).tokens_per_s >= speed(Level::L4));
    assert!(at_level(Level::L4, least - 1).tokens_per_s < speed(Level::L4));
    assert_eq!(bytes(1e9), None);
}

#[test]
fn mixes_have_the_mean_that_was_asked_for() {
    for mean in [2.0, 2.3, 3.2, 3.9, 4.0] {
        let mix = LevelMix::of_mean(mean, Level::L4);
        assert!((mix.mean() - mean).abs() < 1e-9, "{mean}: {mix:?}");
        assert!((mix.0.iter().sum::<f64>() - 1.0).abs() < 1e-9);
    }
    assert_eq!(LevelMix::of_mean(7.0, Level::L4), LevelMix::fixed(Level::L4));
    assert_eq!(LevelMix::of_mean(5.0, Level::L8).0, [0.0, 0.0, 0.5, 0.5, 0.0]);
}

#[test]
fn disk_speed_lies_between_what_was_measured() {
    let machine = machine();
    assert_eq!((machine.disk_at(10), machine.disk_at(1 << 30)), (1e5, 3e5));
    assert!((machine.disk_at(2048) - 2e5).abs() < 1.0);
    assert_eq!(MachineSpeed { memory_bytes_per_s: 1.0, disk: Vec::new() }.disk_at(5), 0.0);
}

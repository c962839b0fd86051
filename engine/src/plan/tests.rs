use nestling_formats::Level;

use super::*;

/// 4 layers of 16 experts, 4 chosen; planes of 2, 1 and 1 KiB.
fn demand() -> Demand {
    let rates = supposed_rates(16, 4, 0.5);
    let experts: Vec<ExpertDemand> = rates
        .into_iter()
        .map(|rate| ExpertDemand { plane_bytes: [2048, 1024, 1024, 0, 0], rate })
        .collect();
    Demand {
        level: Level::L4,
        dense_bytes: 10_000,
        dense_token_bytes: 8_000,
        fixed: Fixed { kv_bytes: 3_000, scratch_bytes: 2_000, read_bytes: 1_000 },
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

fn at_level(level: Level, budget: u64) -> Forecast {
    plan(&demand(), LevelMix::fixed(level), &machine(), budget).unwrap()
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
fn the_least_is_dense_weights_and_one_tokens_experts_of_one_layer() {
    let demand = demand();
    assert_eq!(demand.least_bytes(), 10_000 + 6_000 + 4 * 4096);
    let mix = LevelMix::fixed(Level::L4);
    assert!(plan(&demand, mix, &machine(), demand.least_bytes()).is_ok());
    let refused = plan(&demand, mix, &machine(), demand.least_bytes() - 1).unwrap_err();
    assert_eq!(refused.least_bytes, demand.least_bytes());
    assert!(refused.to_string().contains("31.6 KiB"), "{refused}");
}

#[test]
fn more_memory_misses_less_until_nothing_is_missed() {
    let all = demand().all_bytes();
    let mut before = f64::INFINITY;
    for budget in [demand().least_bytes(), all / 2, all * 3 / 4, all] {
        let forecast = at_level(Level::L4, budget);
        assert!(forecast.missing_bytes < before, "{budget}: {forecast:?}");
        before = forecast.missing_bytes;
        let used = forecast.resident_expert_bytes + 16_000;
        assert!(used <= budget && used + 4096 > budget.min(all), "{budget}: {used}");
    }
    let whole = at_level(Level::L4, all);
    assert!(whole.is_whole() && whole.hit_rate == 1.0 && whole.read_s == 0.0);
    assert!((whole.token_bytes - (8_000.0 + 4.0 * 4.0 * 4096.0)).abs() < 1e-3);
}

#[test]
fn busy_experts_are_kept_before_others() {
    let demand = demand();
    let half = 16_000 + demand.expert_bytes() / 2;
    let forecast = at_level(Level::L4, half);
    let missed = forecast.best_missing_bytes / (16.0 * 4096.0);
    assert!(missed < 0.3, "half of the experts in memory, {missed} of their use missed");
}

#[test]
fn fewer_bits_are_faster_and_a_wanted_speed_finds_them() {
    let demand = demand();
    let budget = 16_000 + demand.expert_bytes() / 4;
    let speed = |level| at_level(level, budget).tokens_per_s;
    assert!(speed(Level::L2) > speed(Level::L3) && speed(Level::L3) > speed(Level::L4));
    let find = |wanted| mean_level_for(&demand, &machine(), budget, wanted);
    assert_eq!(find(speed(Level::L4)), Some(4.0));
    assert_eq!(find(speed(Level::L3) * 1.001).map(|mean| mean < 3.0), Some(true));
    assert_eq!(find(speed(Level::L2) * 1.01), None);
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

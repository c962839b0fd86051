use std::sync::Arc;

use nestling_formats::Level;

use super::{
    DualPolicy, ElasticController, ExpertScores, LevelRouter, PlaneScores, RouteSample,
    RoutedToken, StepTimes, Threshold, ThresholdRule,
};

const BYTES: [u64; 5] = [1000, 500, 500, 1000, 1000];

fn scores() -> ExpertScores {
    ExpertScores::new([8.0, 4.0, 1.0, 0.5, 0.1], BYTES)
}

/// Returns the level of an expert for a token with this weight.
fn level_of(scores: ExpertScores, weight: f32, threshold: Threshold, highest: Level) -> Level {
    DualPolicy::up_to(highest, threshold).level(&scores.to_token(weight, highest))
}

#[test]
fn a_plane_is_used_where_it_is_worth_the_threshold() {
    let level =
        |weight, threshold| level_of(scores(), weight, Threshold::new(threshold), Level::L8);
    // 4 / 500, 1 / 500, 0.5 / 1000, 0.1 / 1000, times a quarter.
    assert_eq!(level(0.5, 0.0021), Level::L2);
    assert_eq!(level(0.5, 0.0019), Level::L3);
    assert_eq!(level(0.5, 0.00049), Level::L4);
    assert_eq!(level(0.5, 0.00012), Level::L6);
    assert_eq!(level(0.5, 0.00002), Level::L8);
    assert_eq!(level(1.0, 0.0021), Level::L3, "a greater weight asks for more");
    assert_eq!(level(-1.0, 0.0021), Level::L3);
    assert_eq!(level_of(scores(), 0.5, Threshold::ZERO, Level::L4), Level::L4);
}

#[test]
fn a_poor_plane_is_no_barrier_before_a_rich_one() {
    let scores = ExpertScores::new([8.0, 0.01, 3.99, 0.0, 0.0], BYTES);
    let level = |threshold| level_of(scores, 1.0, Threshold::new(threshold), Level::L8);
    assert_eq!(level(0.0039), Level::L4, "4 / 1000 for both");
    assert_eq!(level(0.0041), Level::L2);
    let below = level_of(scores, 1.0, Threshold::new(0.0039), Level::L3);
    assert_eq!(below, Level::L2, "without the rich one there is nothing to bridge to");
}

#[test]
fn levels_fall_as_the_threshold_rises_and_no_plane_is_skipped() {
    let mut state = 7u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    for _ in 0..200 {
        let drops = [0; 5].map(|_| random());
        let scores = ExpertScores::new(drops, [0; 5].map(|_| (random() * 1e4) as u64));
        for highest in Level::ALL {
            let slopes = scores.slopes(highest);
            assert!(slopes[1..].is_sorted_by(|a, b| a >= b), "{slopes:?}");
            let weight = random();
            let levels = (0..60)
                .map(|i| level_of(scores, weight, Threshold::new(1e-9 * 1.5f32.powi(i)), highest));
            let levels: Vec<_> = levels.collect();
            assert!(levels.is_sorted_by(|a, b| a >= b));
            assert!(levels[0] <= highest);
        }
    }
}

#[test]
fn numbers_that_make_no_sense_ask_for_little() {
    let broken = ExpertScores::new([f32::NAN, f32::INFINITY, -1.0, 0.0, 1.0], [0; 5]);
    for highest in Level::ALL {
        assert!(broken.slopes(highest).iter().all(|slope| slope.is_finite() && *slope >= 0.0));
    }
    let level = |weight| level_of(scores(), weight, Threshold::new(1e-6), Level::L8);
    assert_eq!(level(0.0), Level::L2);
    assert_eq!(level(f32::NAN), Level::L2);
    assert_eq!(level(f32::INFINITY), Level::L8);
    for value in [f32::NAN, -1.0, -0.0, f32::NEG_INFINITY] {
        assert_eq!(Threshold::new(value), Threshold::ZERO);
    }
    assert!(Threshold::new(2.0) > Threshold::new(1.9));
    assert_eq!(Threshold::from_bits(f32::NAN.to_bits()), None);
    assert_eq!(Threshold::from_bits(0x8000_0000), None);
    assert_eq!(Threshold::from_bits(Threshold::new(0.3).bits()), Some(Threshold::new(0.3)));
}

/// A mock trained router, whose levels are the first numbers of the hidden state.
struct MockRouter;

impl LevelRouter for MockRouter {
    fn reads_hidden(&self) -> bool {
        true
    }

    fn plane_scores(&self, token: RoutedToken<'_>, _: Level, scores: &mut [PlaneScores]) {
        for (planes, level) in scores.iter_mut().zip(token.hidden) {
            for (score, plane) in planes.iter_mut().zip(Level::ALL) {
                let is_used = f32::from(plane.bits()) <= *level;
                *score = if is_used { f32::INFINITY } else { f32::NEG_INFINITY };
            }
        }
    }

    fn identity(&self) -> u128 {
        0x7ea1
    }
}

#[test]
fn bounds_hold_whatever_a_router_says() {
    let policy =
        DualPolicy { lowest: Level::L3, ..DualPolicy::up_to(Level::L4, Threshold::new(1.0)) };
    let levels = |experts: &[u32], router: &dyn LevelRouter| {
        let token = RoutedToken { layer: 0, experts, weights: &[0.5; 2], hidden: &[2.0, 8.0] };
        let mut scores = [[0.0; 5]; 2];
        router.plane_scores(token, policy.highest, &mut scores);
        scores.map(|planes| policy.level(&planes))
    };
    assert_eq!(levels(&[0, 1], &MockRouter), [Level::L3, Level::L4]);
    let rule = ThresholdRule::new(Arc::default());
    let all = [Level::L4; 2];
    assert_eq!(levels(&[0, 1], &rule), all, "of what nobody knows every plane is used");
}

#[test]
fn levels_that_a_router_was_trained_to_give_are_no_matter_of_thresholds() {
    let tokens = [[2.0, 8.0], [4.0, 4.0]];
    let tokens = tokens.iter().map(|hidden| RoutedToken {
        layer: 0,
        experts: &[3, 5],
        weights: &[0.5; 2],
        hidden,
    });
    let sample = RouteSample::new(tokens, &MockRouter);
    assert_eq!(sample.len(), 4);
    for threshold in [Threshold::ZERO, Threshold::new(1e30)] {
        assert_eq!(sample.mean_level(DualPolicy::up_to(Level::L8, threshold)), Some(4.5));
        assert_eq!(sample.mean_level(DualPolicy::up_to(Level::L3, threshold)), Some(2.75));
    }
    assert_eq!((&MockRouter as &dyn LevelRouter).identity(), 0x7ea1);
}

#[test]
fn the_controller_gives_way_while_steps_wait_and_comes_back() {
    let steps: Vec<_> = (1..=5).map(|i| Threshold::new(i as f32)).collect();
    let mut controller = ElasticController::new(steps.iter().rev().copied().collect());
    assert_eq!(controller.threshold(), steps[0]);
    let waiting = StepTimes { stall_ns: 900, compute_ns: 100, read_bytes: 1 << 20 };
    let mut seen: Vec<_> = (0..8).map(|_| controller.observe(waiting)).collect();
    assert!(seen.is_sorted() && seen.last() == steps.last(), "{seen:?}");
    let computing = StepTimes { stall_ns: 0, compute_ns: 100, read_bytes: 1 << 20 };
    seen = (0..60).map(|_| controller.observe(computing)).collect();
    assert!(seen.is_sorted_by(|a, b| a >= b) && seen.last() == steps.first(), "{seen:?}");
    let place = controller.clone();
    // A higher threshold does not help if no bytes were read, and a step without measurements changes
    // nothing.
    controller.observe(StepTimes { read_bytes: 0, ..waiting });
    controller.observe(StepTimes::default());
    assert_eq!(controller, place);
    assert_eq!(ElasticController::new(Vec::new()).observe(waiting), Threshold::ZERO);
}

//! Levels of dual routing as minimum weights, so that a device compares weights instead of computing plane
//! scores.

use nestling_formats::Level;

use super::{DualPolicy, LevelRouter, RoutedToken};
use nestling_core::backend::LevelWeights;

/// Largest weight searched. A level that needs a larger weight is never used.
const WEIGHT_MAX: f32 = 1e9;

/// Returns the smallest weight at which the policy uses an expert at each level. The search runs the policy
/// over all floats, so comparing weights gives exactly its levels.
pub fn least_weights(
    router: &dyn LevelRouter,
    policy: &DualPolicy,
    layer: u32,
    expert: u32,
) -> LevelWeights {
    let level = |bits: u32| {
        let (experts, weights) = (&[expert], &[f32::from_bits(bits)]);
        let mut scores = [[0.0; 5]];
        let token = RoutedToken { layer, experts, weights, hidden: &[] };
        router.plane_scores(token, policy.highest, &mut scores);
        policy.level(&scores[0])
    };
    let least = |wanted: Level| {
        let (mut below, mut reached) = (0, WEIGHT_MAX.to_bits());
        if level(reached) < wanted {
            return u32::MAX;
        }
        if level(below) >= wanted {
            return 0;
        }
        while reached - below > 1 {
            let middle = below + (reached - below) / 2;
            if level(middle) >= wanted { reached = middle } else { below = middle }
        }
        reached
    };
    [Level::L3, Level::L4, Level::L6, Level::L8].map(least)
}

#[cfg(test)]
mod tests {
    use nestling_formats::Level;

    use super::super::{PlaneScores, Threshold};
    use super::*;

    struct Slopes(PlaneScores);

    impl LevelRouter for Slopes {
        fn plane_scores(
            &self,
            token: RoutedToken<'_>,
            _highest: Level,
            scores: &mut [PlaneScores],
        ) {
            scores[0] = self.0.map(|slope| token.weights[0] * token.weights[0] * slope);
        }

        fn identity(&self) -> u128 {
            1
        }
    }

    #[test]
    fn comparing_weights_gives_the_levels_of_the_policy() {
        let router = Slopes([0.0, 3.0, 0.7, 0.1, 0.0]);
        for (threshold, lowest) in [(0.01, Level::L2), (0.3, Level::L3), (0.0, Level::L2)] {
            let threshold = Threshold::new(threshold);
            let policy = DualPolicy { lowest, ..DualPolicy::up_to(Level::L6, threshold) };
            let least = least_weights(&router, &policy, 0, 0);
            for step in 0..4000 {
                // Weights around each threshold, and weights across the range.
                let near = least[step % 4].saturating_add((step / 4 % 5) as u32).wrapping_sub(2);
                let spread = (step as f32 / 1000.0).to_bits();
                for bits in [near, spread].into_iter().filter(|bits| *bits < WEIGHT_MAX.to_bits()) {
                    let token = [f32::from_bits(bits)];
                    let mut scores = [[0.0; 5]];
                    let token =
                        RoutedToken { layer: 0, experts: &[0], weights: &token, hidden: &[] };
                    router.plane_scores(token, policy.highest, &mut scores);
                    let reached = least.iter().take_while(|least| bits >= **least).count();
                    assert_eq!(
                        Level::ALL[reached],
                        policy.level(&scores[0]),
                        "{bits:x} {least:x?}"
                    );
                }
            }
        }
    }
}

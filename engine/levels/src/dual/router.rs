//! Level routers: compute the plane scores of a token's experts.

use std::sync::Arc;

use nestling_formats::Level;

use super::ExpertSensitivities;
use nestling_core::level_policy::PlaneScores;

/// A token with its chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedToken<'a> {
    /// Layer of the model.
    pub layer: u32,
    /// Experts chosen by the router.
    pub experts: &'a [u32], // [K]
    /// Expert weights.
    pub weights: &'a [f32], // [K]
    /// Router input; empty if [`LevelRouter::reads_hidden`] returns false.
    pub hidden: &'a [f32], // [hidden_size]
}

/// Computes plane scores of a token's experts under [`nestling_core::LevelPolicy::Dual`]. Planes whose score
/// reaches the policy's threshold are used.
///
/// Scores must depend only on the arguments. Otherwise other tokens of a step, timing or residency would
/// change results. A router trained to output levels, as in D²MoE (2504.15299), returns infinity up to its
/// level and negative scores above, which no threshold changes.
pub trait LevelRouter: Send + Sync {
    /// Returns whether the router reads [`RoutedToken::hidden`], which then is copied from the device in each
    /// layer.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Returns whether plane scores depend only on the expert weight and never decrease as its magnitude
    /// grows. If true, a device can choose levels without the host.
    fn goes_by_weight(&self) -> bool {
        false
    }

    /// Fills in plane scores, given that no plane above `highest` is used. `scores` has one entry per expert
    /// of the token, initially zero.
    fn plane_scores(&self, token: RoutedToken<'_>, highest: Level, scores: &mut [PlaneScores]);

    /// Returns a fingerprint of the router, which becomes part of a model's identity. Results computed with
    /// another router are then never reused. Zero for the built-in rule.
    fn identity(&self) -> u128;
}

impl std::fmt::Debug for dyn LevelRouter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LevelRouter({:032x})", self.identity())
    }
}

impl PartialEq for dyn LevelRouter {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

/// The built-in rule: error reduction of a plane for this token's output, per byte.
#[derive(Clone, Debug, Default)]
pub struct ThresholdRule {
    sensitivities: Arc<ExpertSensitivities>,
}

impl ThresholdRule {
    /// Creates the rule with the sensitivities of a store.
    pub fn new(sensitivities: Arc<ExpertSensitivities>) -> Self {
        Self { sensitivities }
    }
}

impl LevelRouter for ThresholdRule {
    fn plane_scores(&self, token: RoutedToken<'_>, highest: Level, scores: &mut [PlaneScores]) {
        let chosen = token.experts.iter().zip(token.weights);
        for ((expert, weight), planes) in chosen.zip(scores) {
            *planes = match self.sensitivities.expert(token.layer, *expert) {
                Some(expert) => expert.to_token(*weight, highest),
                // All planes are used if sensitivities are missing.
                None => [f32::INFINITY; 5],
            };
        }
    }

    fn goes_by_weight(&self) -> bool {
        true
    }

    fn identity(&self) -> u128 {
        0
    }
}

//! Who gives the planes of a token's experts their scores.

use std::sync::Arc;

use nestling_formats::Level;

use super::ExpertSensitivities;
use nestling_core::level_policy::PlaneScores;

/// A token whose experts have been chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutedToken<'a> {
    /// Layer of the model.
    pub layer: u32,
    /// The experts that the router chose.
    pub experts: &'a [u32], // [K]
    /// What their outputs are multiplied with.
    pub weights: &'a [f32], // [K]
    /// What the router saw; empty where [`LevelRouter::reads_hidden`] says no.
    pub hidden: &'a [f32], // [hidden_size]
}

/// Gives the planes of a token's experts their scores under [`nestling_core::LevelPolicy::Dual`]: those
/// that reach the policy's threshold are used.
///
/// An answer may depend on nothing but the arguments, so that neither other tokens of a step nor the
/// clock nor what is resident change a result. A router that was trained to give levels, as those of
/// D²MoE (2504.15299) are, says infinite up to its level and negative above; no threshold changes
/// that.
pub trait LevelRouter: Send + Sync {
    /// Whether it reads [`RoutedToken::hidden`], which then has to be fetched from the device in
    /// every layer.
    fn reads_hidden(&self) -> bool {
        false
    }

    /// Whether plane scores depend on nothing of a token but the expert's weight, and never
    /// falls when its magnitude grows: a device can then decide levels by itself.
    fn goes_by_weight(&self) -> bool {
        false
    }

    /// Fills in plane scores, where no plane above `highest` is used; `scores` has an entry for
    /// every expert of the token, zeros to begin with.
    fn plane_scores(&self, token: RoutedToken<'_>, highest: Level, scores: &mut [PlaneScores]);

    /// Tells it from all other routers: it becomes part of a model's identity, so that nothing that
    /// was computed with another is used. Zero for the rule that is built in.
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

/// The rule that is built in: error that a plane takes away from this token's output, per byte.
#[derive(Clone, Debug, Default)]
pub struct ThresholdRule {
    sensitivities: Arc<ExpertSensitivities>,
}

impl ThresholdRule {
    /// The rule with the sensitivities of a store.
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
                // Nothing is known, so nothing speaks for leaving a plane out.
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

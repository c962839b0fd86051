//! Who decides the level of an expert for a token.

use std::sync::Arc;

use nestling_formats::Level;

use super::{DualPolicy, ExpertSensitivities};

/// One expert that the router chose for one token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertChoice {
    /// Layer of the model.
    pub layer: u32,
    /// Expert of the layer.
    pub expert: u32,
    /// What its output is multiplied with.
    pub weight: f32,
}

/// Decides the level of each (token, expert) under [`crate::LevelPolicy::Dual`].
///
/// In strict mode an answer may depend on nothing but the arguments: not on other tokens of the
/// step, the clock or what is resident. Levels must not rise with the policy's threshold, or mean
/// levels cannot be turned into thresholds.
pub trait LevelRouter: Send + Sync {
    /// The level of the expert for the token; it is brought within the policy's bounds.
    fn level(&self, choice: ExpertChoice, policy: DualPolicy) -> Level;
}

/// The rule that is built in: a plane is used where it is worth the threshold.
#[derive(Clone, Debug, Default)]
pub struct ThresholdRule {
    sensitivities: Arc<ExpertSensitivities>,
}

impl ThresholdRule {
    /// The rule with what planes of a store are worth.
    pub fn new(sensitivities: Arc<ExpertSensitivities>) -> Self {
        Self { sensitivities }
    }
}

impl LevelRouter for ThresholdRule {
    fn level(&self, choice: ExpertChoice, policy: DualPolicy) -> Level {
        match self.sensitivities.expert(choice.layer, choice.expert) {
            Some(worth) => worth.level(choice.weight, policy.threshold, policy.highest),
            // Nothing is known, so nothing speaks for leaving a plane out.
            None => policy.highest,
        }
    }
}

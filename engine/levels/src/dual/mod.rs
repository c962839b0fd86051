//! Dual routing: the router chooses a token's experts, and the expert weights choose the level of each.
//!
//! The built-in rule uses a plane if its error reduction for this token's output, per byte of the plane,
//! reaches a threshold: `expert_weight² · Δ / bytes >= threshold`. This depends only on the token and the
//! expert. D²MoE (2504.15299) trains routers for this choice; such a router replaces the rule as a
//! [`LevelRouter`], passed as `ModelOptions::level_router`.

mod elastic;
mod least_weight;
mod router;
mod routing;
mod sample;
mod sensitivities;

pub use elastic::{ElasticController, StepTimes};
pub use least_weight::least_weights;
pub use nestling_core::level_policy::{DualPolicy, LevelMode, PlaneScores, Threshold};
pub use router::{LevelRouter, RoutedToken, ThresholdRule};
pub use routing::{DualOptions, DualRouting};
pub use sample::{RouteSample, SAMPLE_TEXT, SAMPLE_TOKENS};
pub use sensitivities::{ExpertScores, ExpertSensitivities};

#[cfg(test)]
mod tests;

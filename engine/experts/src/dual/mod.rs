//! Dual routing: the router chooses the experts of a token, and what it weighs them with chooses how
//! many planes of each are used.
//!
//! By the rule that is built in, a plane is used where the error that it takes away from this token's
//! output, per byte of the plane, reaches a threshold: `expert_weight² · Δ / bytes >= threshold`. That
//! is a function of this token and this expert alone. D²MoE (2504.15299) trains routers for it; such
//! a router takes the rule's place as a [`LevelRouter`], given as `ModelOptions::level_router`.

mod elastic;
mod least_weight;
mod router;
mod routing;
mod sample;
mod sensitivities;

pub use elastic::{ElasticController, StepTimes};
pub(crate) use least_weight::least_weights;
pub use nestling_core::level_policy::{DualPolicy, LevelMode, PlaneScores, Threshold};
pub use router::{LevelRouter, RoutedToken, ThresholdRule};
pub use routing::{DualOptions, DualRouting};
pub use sample::{RouteSample, SAMPLE_TEXT, SAMPLE_TOKENS};
pub use sensitivities::{ExpertScores, ExpertSensitivities};

#[cfg(test)]
mod tests;

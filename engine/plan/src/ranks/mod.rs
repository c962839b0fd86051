//! Predictions for a model over several ranks: load, bytes, messages and speed.
//!
//! Everything is a pure function of the store's index, the use of experts, the speed of a rank's memory and disk, and
//! the speed of the links. All ranks wait for the busiest one at each exchange, and exchanges do not overlap with
//! computation.

mod busiest;
mod fabric;
mod forecast;
mod simulate;
mod traffic;

pub use busiest::busiest_rank_experts;
pub use fabric::{ExchangeTime, Fabric, MeasuredExchange, Operation};
pub use forecast::{
    Bottleneck, ExpertLoad, FURTHER_ROW_SHARE, RankedModel, StepForecast, StepShape,
};
pub use simulate::{PlacementRule, SimulatedLoad, simulate_ranks};
pub use traffic::{PlannedExchange, RankDivision, Traffic, can_be_sliced};

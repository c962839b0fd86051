//! Checks of a router and of routings.

use super::expect;
use nestling_core::EngineError;
use nestling_core::backend::{Backend, Router, Routing};

/// The most that a device's kernels route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouterLimits {
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a token.
    pub per_token: usize,
    /// Groups of experts.
    pub groups: usize,
}

impl RouterLimits {
    /// Checks a router of so many experts, whose vectors `length` tells, for some rows of which a routing
    /// has room for `rows_max`.
    ///
    /// # Errors
    /// Vectors of other lengths; [`EngineError::Limit`].
    pub fn check<B: Backend>(
        &self,
        router: &Router<B>,
        experts: usize,
        length: impl Fn(&B::Floats) -> usize,
        rows: usize,
        rows_max: usize,
    ) -> Result<(), EngineError> {
        let biases = router.logit_bias.iter().chain(&router.selection_bias);
        for vector in biases.chain(&router.expert_scale) {
            expect("numbers of the router", experts, length(vector))?;
        }
        let groups = router.rule.groups.as_ref().map_or(0, |groups| groups.n_group);
        for (what, limit, found) in [
            ("experts of a layer", self.experts, experts),
            ("experts of a token", self.per_token.min(experts), router.num_experts_per_tok),
            ("groups of experts", self.groups.min(experts), groups),
            ("rows of a routing", rows_max, rows),
        ] {
            check_limit(what, limit, found)?;
        }
        Ok(())
    }
}

/// Checks a size against the most that a device takes.
///
/// # Errors
/// [`EngineError::Limit`].
pub fn check_limit(what: &'static str, limit: usize, found: usize) -> Result<(), EngineError> {
    if found <= limit {
        return Ok(());
    }
    Err(EngineError::Limit { what, limit: limit as u64, found: found as u64 })
}

/// Checks a routing that is put in place of one of so many rows and experts of a token.
///
/// # Errors
/// Another size.
pub fn check_routing(routing: &Routing, rows: usize, per_token: usize) -> Result<(), EngineError> {
    expect("experts of a row", per_token, routing.num_experts_per_tok)?;
    expect("experts of a routing", rows * per_token, routing.expert_ids.len())?;
    expect("weights of a routing", rows * per_token, routing.expert_weights.len())
}

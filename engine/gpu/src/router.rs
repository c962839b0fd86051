//! Limits of the router kernels.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, Router};

/// Maximum sizes that a device's router kernels support.
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
    /// Checks a router with `experts` experts for `rows` rows. The routing has space for `rows_max` rows.
    ///
    /// # Errors
    /// Fails with [`EngineError::Limit`] if a size is too large.
    pub fn check<B: Backend>(
        &self,
        router: &Router<B>,
        experts: usize,
        rows: usize,
        rows_max: usize,
    ) -> Result<(), EngineError> {
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

/// Checks a size against a limit.
///
/// # Errors
/// Fails with [`EngineError::Limit`] if the size is larger.
pub fn check_limit(what: &'static str, limit: usize, found: usize) -> Result<(), EngineError> {
    if found <= limit {
        return Ok(());
    }
    Err(EngineError::Limit { what, limit: limit as u64, found: found as u64 })
}

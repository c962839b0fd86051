//! Settings of a model over ranks.

use std::time::Duration;

use nestling_core::error::EngineError;

/// Maximum number of ranks of one process.
pub const RANKS_MAX: usize = 64;

/// Settings of a model over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankOptions {
    /// Number of ranks.
    pub ranks: usize,
    /// Duration after which a rank that reports no operation is lost.
    pub timeout: Duration,
    /// Maximum number of recoveries from lost ranks within ten minutes, for ranks that are threads. After more, or with 0,
    /// a loss ends the model.
    pub recoveries_max: usize,
}

impl RankOptions {
    /// Returns the settings for `ranks` ranks. The timeout exceeds the longest operation of a prompt and the longest
    /// wait for a disk.
    pub fn new(ranks: usize) -> Self {
        Self { ranks, timeout: Duration::from_secs(120), recoveries_max: 4 }
    }

    /// Checks the number of ranks.
    pub(crate) fn check(self) -> Result<(), EngineError> {
        if (1..=RANKS_MAX).contains(&self.ranks) {
            return Ok(());
        }
        let (limit, found) = (RANKS_MAX as u64, self.ranks as u64);
        Err(EngineError::Limit { what: "number of ranks", limit, found })
    }
}

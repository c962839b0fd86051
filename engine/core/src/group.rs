//! Communication among the ranks that hold one model together.
//!
//! Every rank runs the same step on the same rows and holds a part of the weights. Outputs are divided and
//! gathered, and never reduced, so that the bits are those of one rank. A [`Group`] moves bytes; what they mean is
//! decided by [`RankEncoder`](crate::backend::RankEncoder) and by the runner over ranks.
//!
//! All collectives are one primitive, [`Group::exchange`]. Each rank calls it in the same order, so that a rank
//! whose step failed takes part in the next exchange with its failure ([`Group::fail`]), and every rank leaves the
//! step at the same exchange. None waits for one that has left.

use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use crate::rank_error::{Failure, LossCause, RankError};

/// Number of rows in the units of which a rank's rows consist: one tile of the store's layout.
pub const UNIT_ROWS: usize = 16;

/// Ranks of one model. The calling thread is one of them.
///
/// Every method but [`Group::beat`] blocks until all ranks have called the same method.
pub trait Group: Send + Sync + std::fmt::Debug {
    /// Returns the share of this rank.
    fn share(&self) -> RankShare;

    /// Sends `parts[r]` to each rank `r` and replaces `incoming[r]` with the part that rank `r` sent here.
    ///
    /// # Errors
    /// [`RankError`] if a rank failed or was lost.
    fn exchange(&self, parts: &[Vec<u8>], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError>;

    /// Sends `part` to every rank and replaces `incoming[r]` with the part of rank `r`.
    ///
    /// # Errors
    /// [`RankError`] if a rank failed or was lost.
    fn all_gather(&self, part: &[u8], incoming: &mut Vec<Vec<u8>>) -> Result<(), RankError>;

    /// Returns the bytes that rank 0 sent. They may arrive at any time, so the timeout does not count.
    ///
    /// # Errors
    /// [`RankError`] if a rank failed or was lost.
    fn broadcast(&self, bytes: &[u8]) -> Result<Vec<u8>, RankError>;

    /// Takes part in the next exchange with a failure, by which all other ranks end it with
    /// [`RankError::Failed`].
    ///
    /// # Errors
    /// [`RankError::Lost`] if a rank was lost.
    fn fail(&self, failure: &Failure) -> Result<(), RankError>;

    /// Reports that this rank is alive. Called between operations, since one that is silent is lost.
    fn beat(&self);

    /// Returns the counters since the group was created.
    fn counters(&self) -> GroupCounters;
}

/// Counters of the messages of one rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCounters {
    /// Number of exchanges.
    pub exchanges: u64,
    /// Number of messages sent to other ranks.
    pub messages: u64,
    /// Bytes of these messages, without headers.
    pub sent_bytes: u64,
    /// Bytes received from other ranks, without headers.
    pub received_bytes: u64,
}

/// Division of experts over the ranks of a model. Never changes a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertDivision {
    /// Each expert belongs to one rank, as in expert parallelism. They can be streamed.
    #[default]
    Whole,
    /// Each rank holds some rows of every expert, as in tensor parallelism. All ranks have the same load in each step.
    /// A layer whose experts have fewer tiles than there are ranks keeps whole experts.
    Sliced,
}

/// Share of a rank in a model.
///
/// ```
/// use nestling_core::group::RankShare;
///
/// let shares = [0, 1, 2].map(|rank| RankShare { rank, ranks: 3 });
/// assert_eq!(shares.map(|share| share.rows(80)), [Some(0..16), Some(16..48), Some(48..80)]);
/// // Too few rows are held by every rank.
/// assert_eq!(shares.map(|share| share.rows(32)), [None, None, None]);
/// assert_eq!(RankShare::default().rows(80), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankShare {
    /// Number of the rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub ranks: usize,
}

impl Default for RankShare {
    /// The share of a single rank: everything.
    fn default() -> Self {
        Self { rank: 0, ranks: 1 }
    }
}

impl RankShare {
    /// Returns true if there are other ranks.
    pub fn is_divided(self) -> bool {
        self.ranks > 1
    }

    /// Returns the shares of all ranks.
    pub fn all(self) -> impl Iterator<Item = Self> {
        (0..self.ranks).map(move |rank| Self { rank, ..self })
    }

    /// Returns the rows of a matrix of `total` rows that this rank holds, in units of [`UNIT_ROWS`]. Returns `None`
    /// if every rank holds all rows: if there is one rank, or there are fewer units than ranks.
    pub fn rows(self, total: usize) -> Option<Range<usize>> {
        let units = total.div_ceil(UNIT_ROWS);
        if !self.is_divided() || units < self.ranks {
            return None;
        }
        let border = |rank: usize| (units * rank / self.ranks * UNIT_ROWS).min(total);
        Some(border(self.rank)..border(self.rank + 1))
    }

    /// Returns the heads of `total` that this rank holds, or `None` if every rank holds all: if there is one rank, or
    /// there are fewer heads than ranks.
    pub fn heads(self, total: usize) -> Option<Range<usize>> {
        (self.is_divided() && total >= self.ranks).then(|| self.columns(total))
    }

    /// Returns the columns of a row of `total` values that this rank sums. They cover the row without gaps.
    pub fn columns(self, total: usize) -> Range<usize> {
        let border = |rank: usize| total * rank / self.ranks;
        border(self.rank)..border(self.rank + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_of_all_ranks_are_the_whole() {
        for ranks in 1..10 {
            let all = || RankShare { rank: 0, ranks }.all();
            for total in (0..200).chain([768, 2048, 151_936]) {
                let columns: Vec<usize> = all().flat_map(|share| share.columns(total)).collect();
                assert!(columns.into_iter().eq(0..total), "{total} columns of {ranks}");
                let heads: Option<Vec<_>> = all().map(|share| share.heads(total)).collect();
                assert_eq!(heads.is_some(), ranks > 1 && total >= ranks, "{total} of {ranks}");
                assert!(heads.is_none_or(|heads| heads.iter().all(|held| !held.is_empty())));
                let Some(rows) = all().map(|share| share.rows(total)).collect::<Option<Vec<_>>>()
                else {
                    assert!(all().all(|share| share.rows(total).is_none()), "one rank holds all");
                    assert!(ranks == 1 || total.div_ceil(UNIT_ROWS) < ranks);
                    continue;
                };
                assert!(rows.iter().all(|rows| rows.start % UNIT_ROWS == 0 && !rows.is_empty()));
                assert!(rows.into_iter().flatten().eq(0..total), "{total} rows of {ranks}");
            }
        }
    }
}

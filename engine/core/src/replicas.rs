//! Replicas of frequent experts on all ranks of a model.
//!
//! Every rank holds the replicated experts of a layer, and each row of one is computed by one rank. All ranks choose it alike,
//! from the routing, so the choice needs no message and never changes a result.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::group::RankShare;

/// Minimum rows of each part into which the rows of a replicated expert are divided.
const PART_ROWS_MIN: usize = 8;

/// Number of rows of an expert whose computation takes about as long as reading its weights from memory.
const ROWS_OF_A_READ: u64 = 8;

/// Experts of each layer that all ranks hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    /// Ascending experts of each layer.
    layers: Vec<Vec<u32>>,
}

impl Replicas {
    /// Creates the set of these experts, `[layers]`.
    pub fn new(mut layers: Vec<Vec<u32>>) -> Self {
        for experts in &mut layers {
            experts.sort_unstable();
            experts.dedup();
        }
        Self { layers }
    }

    /// Returns the experts of all layers.
    pub fn layers(&self) -> &[Vec<u32>] {
        &self.layers
    }

    /// Returns the experts of a layer.
    pub fn of_layer(&self, layer: u32) -> &[u32] {
        // Default: a layer without experts has no replicas.
        self.layers.get(layer as usize).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns whether all ranks hold an expert.
    pub fn contains(&self, layer: u32, expert: u32) -> bool {
        self.of_layer(layer).binary_search(&expert).is_ok()
    }

    /// Returns the experts that both sets have.
    #[must_use]
    pub fn shared_with(&self, other: &Self) -> Self {
        let in_both = |(layer, experts): (u32, &Vec<u32>)| {
            experts.iter().copied().filter(|expert| other.contains(layer, *expert)).collect()
        };
        Self { layers: (0..).zip(&self.layers).map(in_both).collect() }
    }
}

/// Returns the `count` most frequent experts of a layer. Among equals, the first ones.
pub fn most_frequent(frequencies: &[f32], count: usize) -> Vec<u32> {
    let mut order: Vec<usize> = (0..frequencies.len()).collect();
    order.sort_by(|a, b| frequencies[*b].total_cmp(&frequencies[*a]).then(a.cmp(b)));
    order.into_iter().take(count).map(|expert| expert as u32).collect()
}

/// Work of the ranks for the experts of one layer in one step.
///
/// ```
/// use nestling_core::replicas::StepLoads;
///
/// let mut loads = StepLoads::new(2, 0);
/// loads.add(0, 20);
/// // Few rows go to one rank, and many are divided.
/// assert_eq!(loads.divide(3), [0, 3]);
/// assert_eq!(loads.divide(40), [20, 20]);
/// ```
#[derive(Clone, Debug)]
pub struct StepLoads {
    /// Rows of each rank. The reading of an expert counts as rows.
    loads: Vec<u64>, // [ranks]
    /// First rank among equals.
    first: usize,
}

impl StepLoads {
    /// Creates the loads of ranks before the first expert. `turn` decides which rank is the first among equals.
    pub fn new(ranks: usize, turn: usize) -> Self {
        let ranks = ranks.max(1);
        Self { loads: vec![0; ranks], first: turn % ranks }
    }

    /// Adds the rows of an expert that only one rank holds.
    pub fn add(&mut self, rank: usize, rows: usize) {
        if let Some(load) = self.loads.get_mut(rank) {
            *load += ROWS_OF_A_READ + rows as u64;
        }
    }

    /// Divides the rows of an expert that all ranks hold, so that the loads become even. Few rows go to one rank, since each
    /// rank with a part reads the weights. Returns the rows of each rank.
    pub fn divide(&mut self, rows: usize) -> Vec<usize> {
        let ranks = self.loads.len();
        let mut parts = vec![0; ranks]; // [ranks]
        let count = (rows / PART_ROWS_MIN).clamp(1, ranks);
        for part in 0..count {
            let rows = rows * (part + 1) / count - rows * part / count;
            let read = |rank: usize| if parts[rank] == 0 { ROWS_OF_A_READ } else { 0 };
            let turn = (self.first..ranks).chain(0..self.first);
            let least = turn.min_by_key(|rank| self.loads[*rank] + read(*rank));
            // Default: there is a rank.
            let least = least.unwrap_or(0);
            self.loads[least] += read(least) + rows as u64;
            parts[least] += rows;
        }
        parts
    }
}

/// Counters of the uses of experts, `[layers][experts]`.
#[derive(Debug)]
pub struct UseCounts {
    layers: Vec<Vec<AtomicU64>>,
}

impl UseCounts {
    /// Creates counters for the given number of experts per layer.
    pub fn new(experts: impl Iterator<Item = usize>) -> Self {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        Self { layers: experts.map(zeros).collect() }
    }

    /// Counts uses of an expert. Uses of unknown experts are ignored.
    pub fn add(&self, layer: u32, expert: u32, uses: u64) {
        let layer = self.layers.get(layer as usize);
        if let Some(count) = layer.and_then(|layer| layer.get(expert as usize)) {
            count.fetch_add(uses, Ordering::Relaxed);
        }
    }

    /// Returns the uses since the last call.
    pub fn take(&self) -> Vec<Vec<u64>> {
        let take = |count: &AtomicU64| count.swap(0, Ordering::Relaxed);
        self.layers.iter().map(|layer| layer.iter().map(take).collect()).collect()
    }
}

/// Refuses replicas of streamed experts.
///
/// # Errors
/// Fails with [`EngineError::ReplicasStreamed`].
pub fn check_streamed(
    replicas: usize,
    share: RankShare,
    is_streamed: bool,
) -> Result<(), EngineError> {
    match replicas > 0 && share.is_divided() && is_streamed {
        true => Err(EngineError::ReplicasStreamed { replicas }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_rows_are_given_once_and_many_rows_evenly() {
        for ranks in 1..9 {
            for rows in 0..200 {
                let mut loads = StepLoads::new(ranks, rows);
                loads.add(rows % ranks, 30);
                let parts = loads.divide(rows);
                assert_eq!(parts.iter().sum::<usize>(), rows);
                let readers = parts.iter().filter(|part| **part > 0).count();
                assert!(readers <= (rows / PART_ROWS_MIN).max(1), "{rows} rows of {ranks} ranks");
            }
        }
        let mut loads = StepLoads::new(4, 1);
        assert_eq!(loads.divide(64), [16, 16, 16, 16]);
        assert_eq!(loads.divide(1), [0, 1, 0, 0]);
    }

    #[test]
    fn sets_are_sorted_and_intersected() {
        let set = Replicas::new(vec![vec![5, 1, 5], vec![], vec![2]]);
        assert_eq!(set.of_layer(0), [1, 5]);
        assert!(set.contains(2, 2) && !set.contains(1, 2) && !set.contains(9, 0));
        let other = Replicas::new(vec![vec![5], vec![3]]);
        assert_eq!(set.shared_with(&other), Replicas::new(vec![vec![5], vec![], vec![]]));
        assert_eq!(most_frequent(&[0.1, 0.4, 0.4, 0.2], 3), [1, 2, 3]);
    }
}

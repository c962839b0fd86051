//! Load of the busiest rank in a step.

/// Returns the expected number of experts that the busiest rank computes in a step, given the probability that a step
/// uses each expert of each rank. All ranks wait for the busiest one at the next exchange.
///
/// With `total`, a step uses exactly this number of experts, as one row does: probabilities then are those of
/// independent uses, under the condition of their sum. Without it, uses are independent.
///
/// ```
/// use nestling_plan::ranks::busiest_rank_experts;
///
/// // Two of four experts are used, and each rank holds two: both are of one rank in two of six cases.
/// let ranks = [vec![0.5; 2], vec![0.5; 2]];
/// assert!((busiest_rank_experts(&ranks, Some(2)) - 4.0 / 3.0).abs() < 1e-12);
/// ```
pub fn busiest_rank_experts(ranks: &[Vec<f64>], total: Option<usize>) -> f64 {
    let counts: Vec<Vec<f64>> = ranks.iter().map(|rank| distribution(rank)).collect();
    // Default: no rank has no expert.
    let most = counts.iter().map(|counts| counts.len() - 1).max().unwrap_or(0);
    let most = total.map_or(most, |total| most.min(total));
    let at_most = |limit: usize| match total {
        None => counts.iter().map(|counts| counts.iter().take(limit + 1).sum::<f64>()).product(),
        Some(total) => sum_is(&counts, total, limit),
    };
    let all: f64 = at_most(most);
    if all <= 0.0 {
        return 0.0;
    }
    // The mean of a count is the sum of the probabilities that it exceeds 0, 1, and so on.
    (0..most).map(|limit| 1.0 - at_most(limit) / all).sum()
}

/// Returns the probability of each number of uses of independent experts.
fn distribution(probabilities: &[f64]) -> Vec<f64> {
    let mut counts = vec![1.0];
    for probability in probabilities {
        let used = probability.clamp(0.0, 1.0);
        counts.push(0.0);
        for count in (1..counts.len()).rev() {
            counts[count] = counts[count] * (1.0 - used) + counts[count - 1] * used;
        }
        counts[0] *= 1.0 - used;
    }
    counts
}

/// Returns the probability that the ranks have `total` uses together, and none more than `limit`.
fn sum_is(counts: &[Vec<f64>], total: usize, limit: usize) -> f64 {
    let mut sums = vec![0.0; total + 1];
    sums[0] = 1.0;
    for counts in counts {
        let mut next = vec![0.0; total + 1];
        for (sum, probability) in sums.iter().enumerate() {
            for (more, also) in counts.iter().enumerate().take(limit.min(total - sum) + 1) {
                next[sum + more] += probability * also;
            }
        }
        sums = next;
    }
    sums[total]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the expectation by enumeration of all sets of used experts.
    fn enumerated(ranks: &[Vec<f64>], total: Option<usize>) -> f64 {
        let experts: Vec<(usize, f64)> = ranks
            .iter()
            .enumerate()
            .flat_map(|(rank, held)| held.iter().map(move |used| (rank, *used)))
            .collect();
        let (mut weights, mut sum) = (0.0, 0.0);
        for set in 0u32..1 << experts.len() {
            if total.is_some_and(|total| set.count_ones() as usize != total) {
                continue;
            }
            let (mut weight, mut loads) = (1.0, vec![0u32; ranks.len()]);
            for (bit, (rank, used)) in experts.iter().enumerate() {
                let is_used = set >> bit & 1;
                weight *= if is_used == 1 { *used } else { 1.0 - used };
                loads[*rank] += is_used;
            }
            weights += weight;
            sum += weight * f64::from(loads.into_iter().max().unwrap());
        }
        sum / weights
    }

    #[test]
    fn expectations_are_those_of_enumeration() {
        let probability = |seed: usize| ((seed * 7919 + 13) % 97) as f64 / 100.0 + 0.01;
        for (ranks, each) in [(1, 5), (2, 5), (3, 4), (4, 3), (6, 2), (12, 1)] {
            let held = |rank: usize| {
                (0..each - rank % 2 * (each / 3)).map(move |e| probability(rank * 5 + e))
            };
            let held: Vec<Vec<f64>> = (0..ranks).map(|rank| held(rank).collect()).collect();
            for total in [None, Some(1), Some(2), Some(4)] {
                let (found, expected) =
                    (busiest_rank_experts(&held, total), enumerated(&held, total));
                assert!((found - expected).abs() < 1e-9, "{ranks}, {total:?}: {found}, {expected}");
            }
        }
    }

    #[test]
    fn one_row_of_eight_experts_meets_as_the_design_says() {
        for (ranks, expected) in [(2, 5.1), (4, 3.5), (8, 2.5)] {
            let held = vec![vec![8.0 / 128.0; 128 / ranks]; ranks];
            let found = busiest_rank_experts(&held, Some(8));
            assert!((found - expected).abs() < 0.06, "{ranks} ranks: {found}");
        }
    }

    #[test]
    fn nothing_is_used_of_nothing() {
        assert_eq!(busiest_rank_experts(&[], None), 0.0);
        assert_eq!(busiest_rank_experts(&[vec![0.0; 3]], Some(2)), 0.0);
    }
}

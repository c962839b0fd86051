//! Summary of an allocation for display.

use nestling_formats::store::{Encoding, GroupId, Index};
use nestling_formats::{Level, MatrixKind};

use super::Allocation;

/// Number of matrices of one kind at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelShare {
    /// Kind of the matrices.
    pub kind: MatrixKind,
    /// True for matrices of experts.
    pub of_experts: bool,
    /// Number of matrices at each level, in the order of [`Level::ALL`].
    pub matrices: [usize; 5],
}

/// Level counts of an allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct AllocationSummary {
    /// Counts by kind, in store order.
    pub shares: Vec<LevelShare>,
    /// Mean level of the experts' weights, in bits; `None` without experts.
    pub expert_bits: Option<f64>,
}

impl AllocationSummary {
    /// Counts the levels of an allocation of the store with this index.
    pub fn of(index: &Index, allocation: &Allocation) -> Self {
        let mut shares: Vec<LevelShare> = Vec::new();
        let (mut bits, mut weights) = (0.0, 0.0);
        for group in index.groups() {
            let of_experts = matches!(group.id, GroupId::Expert(_));
            for (matrix, level) in group.matrices.iter().zip(allocation.levels(&group.id)) {
                if matches!(matrix.encoding, Encoding::Float(_)) {
                    continue;
                }
                if of_experts {
                    let count = matrix.rows as f64 * matrix.cols as f64;
                    bits += count * f64::from(level.bits());
                    weights += count;
                }
                let same =
                    |s: &&mut LevelShare| (s.kind, s.of_experts) == (matrix.kind, of_experts);
                match shares.iter_mut().find(same) {
                    Some(share) => share.matrices[level.index()] += 1,
                    None => {
                        let mut matrices = [0; Level::ALL.len()];
                        matrices[level.index()] = 1;
                        shares.push(LevelShare { kind: matrix.kind, of_experts, matrices });
                    }
                }
            }
        }
        Self { shares, expert_bits: (weights > 0.0).then(|| bits / weights) }
    }
}

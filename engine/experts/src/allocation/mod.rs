//! Static allocation: a level for every matrix of a store, chosen once for a budget in bytes.
//!
//! An allocation is a function of the store and the budget alone, so it belongs to a model's
//! identity as a level does. Gate, up and down of an expert have levels of their own, and so has
//! every dense matrix. Greater budgets give supersets: allocations are prefixes of one order of
//! refinements, the steepest error drop per byte first.

mod bytes;
mod choose;
mod errors;
mod summary;

use std::collections::HashMap;
use std::fmt;

use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix, StoreId};
use nestling_formats::{Level, MatrixKind};
use xxhash_rust::xxh3::Xxh3;

use nestling_core::error::EngineError;
use nestling_core::weights::MatrixWeights;

pub use bytes::cut;
pub use bytes::{Counting, bits_per_weight, budget_of_bits, layer_bytes, weight_bytes};
pub(crate) use choose::hull;
pub use choose::{ChooseOptions, choose};
pub(crate) use errors::prior_drops;
pub use summary::{AllocationSummary, LevelShare};

/// Which level every matrix of a store is used at.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    store: StoreId,
    levels: HashMap<GroupId, Vec<Level>>,
    hash: AllocationHash,
}

/// XXH3-128 of a store's id and the levels of its matrices in the order of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationHash(pub u128);

impl fmt::Display for AllocationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Allocation {
    /// Takes the level of every matrix from `level_of`, by its group and place in it; none gets
    /// more than it has in the model of `top`. Matrices of floats have level 8 whatever is said.
    pub fn new(index: &Index, top: Level, level_of: impl Fn(&Group, usize) -> Level) -> Self {
        let levels = index.groups().iter().map(|group| {
            let matrices = group.matrices.iter().enumerate();
            let levels = matrices.map(|(place, matrix)| match matrix.encoding {
                Encoding::Float(_) => Level::L8,
                Encoding::Nested { .. } => {
                    level_of(group, place).min(level_at(index, group, matrix, top))
                }
            });
            levels.collect()
        });
        Self::of_levels(index, levels.collect())
    }

    /// The levels of every group's matrices.
    fn of_levels(index: &Index, levels: Vec<Vec<Level>>) -> Self {
        let mut hash = Xxh3::new();
        hash.update(&index.id().0);
        levels.iter().flatten().for_each(|level| hash.update(&[level.bits()]));
        let groups = index.groups().iter().map(|group| group.id.clone());
        let levels = groups.zip(levels).filter(|(_, levels)| !levels.is_empty()).collect();
        Self { store: index.id(), levels, hash: AllocationHash(hash.digest128()) }
    }

    /// An allocation of no store and no groups.
    pub fn nothing() -> Self {
        Self { store: StoreId::default(), levels: HashMap::new(), hash: AllocationHash(0) }
    }

    /// What a level of the model means: every matrix at the level that the store's sections say.
    pub fn of_level(index: &Index, level: Level) -> Self {
        Self::new(index, level, |_, _| Level::L8)
    }

    /// The same with another level for attention and other matrices that every token uses.
    pub fn with_dense_level(&self, index: &Index, top: Level, dense: Level) -> Self {
        Self::new(index, top, |group, place| match group.id {
            GroupId::Dense { .. } => dense,
            _ => self.levels(&group.id).get(place).copied().unwrap_or(Level::L2),
        })
    }

    /// The levels of a group's matrices, in their order; none of a group that has no matrices.
    pub fn levels(&self, group: &GroupId) -> &[Level] {
        // Default: groups without matrices have no levels.
        self.levels.get(group).map(Vec::as_slice).unwrap_or_default()
    }

    /// The level of one matrix.
    pub fn level(&self, group: &Group, kind: MatrixKind) -> Option<Level> {
        let place = group.matrices.iter().position(|matrix| matrix.kind == kind)?;
        self.levels(&group.id).get(place).copied()
    }

    /// What tells it from all others.
    pub fn hash(&self) -> AllocationHash {
        self.hash
    }

    /// How many of a group's extents hold what is used.
    pub fn extents(&self, group: &Group) -> usize {
        let needed = group.matrices.iter().zip(self.levels(&group.id)).map(|(matrix, level)| {
            let reached = matrix.levels.iter().position(|held| *held >= Some(*level));
            reached.unwrap_or(matrix.levels.len() - 1) + 1
        });
        needed.max().unwrap_or(1)
    }

    /// The matrix with no level of the model above the allocated one.
    pub fn apply(&self, group: &GroupId, place: usize, matrix: MatrixWeights) -> MatrixWeights {
        match (matrix, self.levels(group).get(place)) {
            (MatrixWeights::Nested(matrix), Some(level)) => {
                MatrixWeights::Nested(matrix.at_most(*level))
            }
            (matrix, _) => matrix,
        }
    }

    /// Refuses an allocation of another store.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`].
    pub fn check(&self, store: StoreId) -> Result<(), EngineError> {
        if self.store == store {
            return Ok(());
        }
        Err(EngineError::mismatch("store of an allocation", store, self.store))
    }
}

/// The prefix of a matrix in the model of a level, all of it in one above the store's own; level 2
/// where the level means none of it.
fn level_at(index: &Index, group: &Group, matrix: &Matrix, level: Level) -> Level {
    let planes = index.planes_at(group, level).unwrap_or(matrix.levels.len());
    matrix.level_after(planes).unwrap_or(Level::L2)
}

#[cfg(test)]
mod tests;

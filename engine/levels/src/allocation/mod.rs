//! Static allocation: one level for each matrix of a store, chosen once for a budget in bytes.
//!
//! An allocation depends only on the store and the budget, so it is part of a model's identity, as a level
//! is. Gate, up and down of an expert have separate levels, and so does each dense matrix. Larger budgets
//! give supersets: allocations are prefixes of one list of refinements, sorted by error reduction per byte.

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
pub use errors::DIVERGENCE_MEASURES;
pub(crate) use errors::prior_drops;
pub use summary::{AllocationSummary, LevelShare};

/// Level of each matrix of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    store: StoreId,
    levels: HashMap<GroupId, Vec<Level>>,
    hash: AllocationHash,
}

/// XXH3-128 of a store's id and the levels of its matrices in index order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AllocationHash(pub u128);

impl fmt::Display for AllocationHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Allocation {
    /// Creates an allocation from `level_of`, which receives a group and a matrix index in it. No matrix gets
    /// a higher level than in the model of `top`. Float matrices always get level 8.
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

    fn of_levels(index: &Index, levels: Vec<Vec<Level>>) -> Self {
        let mut hash = Xxh3::new();
        hash.update(&index.id().0);
        levels.iter().flatten().for_each(|level| hash.update(&[level.bits()]));
        let groups = index.groups().iter().map(|group| group.id.clone());
        let levels = groups.zip(levels).filter(|(_, levels)| !levels.is_empty()).collect();
        Self { store: index.id(), levels, hash: AllocationHash(hash.digest128()) }
    }

    /// Returns an empty allocation that belongs to no store.
    pub fn nothing() -> Self {
        Self { store: StoreId::default(), levels: HashMap::new(), hash: AllocationHash(0) }
    }

    /// Returns the allocation of a model level: each matrix at the level given by the store's sections.
    ///
    /// ```
    /// use nestling_levels::Allocation;
    /// use nestling_formats::Level;
    /// use nestling_formats::store::{GroupId, Store};
    ///
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
    /// let store = Store::open(path)?;
    /// let allocation = Allocation::of_level(store.index(), Level::L3);
    /// allocation.check(store.id())?;
    /// assert_eq!(allocation.levels(&GroupId::expert_of(0, 0)).len(), 3); // gate, up, down
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of_level(index: &Index, level: Level) -> Self {
        Self::new(index, level, |_, _| Level::L8)
    }

    /// Returns a copy with another level for attention and other dense matrices.
    pub fn with_dense_level(&self, index: &Index, top: Level, dense: Level) -> Self {
        Self::new(index, top, |group, place| match group.id {
            GroupId::Dense { .. } => dense,
            _ => self.levels(&group.id).get(place).copied().unwrap_or(Level::L2),
        })
    }

    /// Returns the levels of a group's matrices, in order; empty for a group without matrices. A tied head, which
    /// is no group of its own, has those of the embedding.
    pub fn levels(&self, group: &GroupId) -> &[Level] {
        let tied =
            || (*group == GroupId::Head).then(|| self.levels.get(&GroupId::Embedding)).flatten();
        // Default: groups without matrices have no levels.
        self.levels.get(group).or_else(tied).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the level of one matrix, or `None` if the group lacks it.
    pub fn level(&self, group: &Group, kind: MatrixKind) -> Option<Level> {
        let place = group.matrices.iter().position(|matrix| matrix.kind == kind)?;
        self.levels(&group.id).get(place).copied()
    }

    /// Returns the hash that identifies the allocation.
    pub fn hash(&self) -> AllocationHash {
        self.hash
    }

    /// Returns the number of the group's extents that the allocated levels need.
    pub fn extents(&self, group: &Group) -> usize {
        let needed = group.matrices.iter().zip(self.levels(&group.id)).map(|(matrix, level)| {
            let reached = matrix.levels.iter().position(|held| *held >= Some(*level));
            reached.unwrap_or(matrix.levels.len() - 1) + 1
        });
        needed.max().unwrap_or(1)
    }

    /// Returns the matrix with its levels capped at the allocated level.
    pub fn apply(&self, group: &GroupId, place: usize, matrix: MatrixWeights) -> MatrixWeights {
        match (matrix, self.levels(group).get(place)) {
            (MatrixWeights::Nested(matrix), Some(level)) => {
                MatrixWeights::Nested(matrix.at_most(*level))
            }
            (matrix, _) => matrix,
        }
    }

    /// Checks that the allocation belongs to a store.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if it belongs to another store.
    pub fn check(&self, store: StoreId) -> Result<(), EngineError> {
        if self.store == store {
            return Ok(());
        }
        Err(EngineError::mismatch("store of an allocation", store, self.store))
    }
}

/// Returns the prefix of a matrix in the model of `level`: all of it above the store's own level, and level 2
/// if the model uses none of its planes.
fn level_at(index: &Index, group: &Group, matrix: &Matrix, level: Level) -> Level {
    let planes = index.planes_at(group, level).unwrap_or(matrix.levels.len());
    matrix.level_after(planes).unwrap_or(Level::L2)
}

#[cfg(test)]
mod tests;

//! Sizes of a store at each of its levels.

use nestling::Level;
use nestling::engine::allocation::{Allocation, Counting, bits_per_weight};
use nestling::formats::store::{Index, Store};

/// Size of a store at one level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelSize {
    pub level: Level,
    /// Length in bytes of the store's prefix that contains the level.
    pub bytes: u64,
    /// Mean over attention, feed-forward and expert matrices, including scales, tables and padding.
    pub bits_per_weight: f64,
}

/// Returns the sizes of all levels of a store, including levels that have not been downloaded.
pub fn level_sizes(store: &Store) -> Vec<LevelSize> {
    let mut sizes = level_sizes_of_index(store.index());
    if store.is_derived() {
        // Lower levels of a derived store require reading the whole file too.
        sizes.retain(|size| size.level == store.level());
    }
    sizes
}

/// Returns the sizes of all levels described by an index; the store itself may be incomplete or only planned.
pub fn level_sizes_of_index(index: &Index) -> Vec<LevelSize> {
    let of = |level: Level| {
        let section = index.sections().get(index.sections_for(level)?.checked_sub(1)?)?;
        let allocation = Allocation::of_level(index, level);
        let bits_per_weight = bits_per_weight(index, &allocation, Counting::File);
        Some(LevelSize { level, bytes: section.end, bits_per_weight })
    };
    Level::ALL.into_iter().filter_map(of).collect()
}

//! How large a store is at each of its levels.

use nestling::Level;
use nestling::engine::allocation::{Allocation, Counting, bits_per_weight};
use nestling::formats::store::{Index, Store};

/// One level of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelSize {
    pub level: Level,
    /// Bytes from the beginning of the store that hold the level.
    pub bytes: u64,
    /// Over attention, feed-forward and expert matrices; scales, tables and padding counted.
    pub bits_per_weight: f64,
}

/// The levels that a store has, whether or not they are all present.
pub fn level_sizes(store: &Store) -> Vec<LevelSize> {
    let mut sizes = level_sizes_of_index(store.index());
    if store.is_derived() {
        // Lower levels are read whole, too.
        sizes.retain(|size| size.level == store.level());
    }
    sizes
}

/// The same for a store of which only the index is there, or planned.
pub fn level_sizes_of_index(index: &Index) -> Vec<LevelSize> {
    let of = |level: Level| {
        let section = index.sections().get(index.sections_for(level)?.checked_sub(1)?)?;
        let allocation = Allocation::of_level(index, level);
        let bits_per_weight = bits_per_weight(index, &allocation, Counting::File);
        Some(LevelSize { level, bytes: section.end, bits_per_weight })
    };
    Level::ALL.into_iter().filter_map(of).collect()
}

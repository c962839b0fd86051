//! How large a store is at each of its levels.

use nestling::Level;
use nestling::formats::store::{GroupId, Store};

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
    let index = store.index();
    let counts = |id: &GroupId| matches!(id, GroupId::Dense { .. } | GroupId::Expert(_));
    let groups = index.groups().iter().filter(|group| counts(&group.id));
    let matrices = groups.flat_map(|group| &group.matrices);
    let weights: u64 = matrices.map(|matrix| matrix.rows as u64 * matrix.cols as u64).sum();
    let tables: u64 = index.codecs().iter().map(|codec| codec.bytes as u64).sum();
    let of = |level: Level| {
        let section = index.sections().get(index.sections_for(level)?.checked_sub(1)?)?;
        let extents = index.extents().iter().take(section.extents_end as usize);
        let ours = extents.filter(|e| index.group_of(e).is_some_and(|group| counts(&group.id)));
        let bytes: u64 = ours.map(|extent| extent.length.next_multiple_of(index.alignment())).sum();
        let bits_per_weight = 8.0 * (tables + bytes) as f64 / weights.max(1) as f64;
        Some(LevelSize { level, bytes: section.end, bits_per_weight })
    };
    Level::ALL.into_iter().filter_map(of).collect()
}

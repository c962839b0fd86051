//! Exact sizes of allocations in bytes, including padding.

use nestling_formats::Level;
use nestling_formats::Plane;
use nestling_formats::store::{Encoding, Group, GroupId, Index, Matrix};

use super::Allocation;
use super::errors::Floors;
use nestling_core::float_bytes;

/// Alignment in bytes of parts within extents and of planes in memory.
const PART_ALIGNMENT: u64 = 64;

/// Kind of size to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// Bytes in memory: the planes in use, each rounded up to 64 bytes. A plane that is read only because it
    /// shares an extent is not counted. Floats count as 32-bit floats.
    Memory,
    /// Bytes of the extents of a store that holds exactly the allocation, rounded up to the store's
    /// alignment.
    File,
}

impl Counting {
    fn round(self, index: &Index, bytes: u64) -> u64 {
        match self {
            Self::Memory => bytes,
            Self::File => bytes.next_multiple_of(index.alignment().max(1)),
        }
    }
}

/// Returns the matrix descriptor with all levels capped at `level`.
pub fn cut(matrix: &Matrix, level: Level) -> Matrix {
    match matrix.encoding {
        Encoding::Float(_) => *matrix,
        Encoding::Nested { .. } => {
            Matrix { levels: matrix.levels.map(|held| held.map(|held| held.min(level))), ..*matrix }
        }
    }
}

/// Returns the bytes of a group whose matrices have the given levels.
pub(super) fn group_bytes(
    index: &Index,
    group: &Group,
    levels: &[Level],
    counting: Counting,
) -> u64 {
    let levels = levels.iter().copied().chain(std::iter::repeat(Level::L8));
    let matrices = group.matrices.iter().zip(levels).map(|(matrix, level)| cut(matrix, level));
    let kept = Group { matrices: matrices.collect(), ..group.clone() };
    let mut bytes = 0;
    for plane in Plane::ALL {
        // Default: the index was refused if its sizes overflow.
        let parts = kept.parts(plane).unwrap_or_default();
        let end = parts.last().map_or(0, |part| part.range.end as u64);
        bytes += counting.round(index, end.next_multiple_of(PART_ALIGNMENT));
    }
    match counting {
        Counting::Memory => bytes + float_bytes::widened(group),
        Counting::File => bytes,
    }
}

/// Returns the bytes of all weights of an allocation, including floats, embedding and head. Asset files are
/// not counted.
pub fn weight_bytes(index: &Index, allocation: &Allocation, counting: Counting) -> u64 {
    let groups = index.groups().iter().filter(|group| !matches!(group.id, GroupId::Asset { .. }));
    groups.map(|group| group_bytes(index, group, allocation.levels(&group.id), counting)).sum()
}

/// Returns the bytes of attention and feed-forward matrices, including codecs.
pub fn layer_bytes(index: &Index, allocation: &Allocation, counting: Counting) -> u64 {
    let groups = index.groups().iter().filter(|group| is_of_layer(group));
    let bytes = groups.map(|g| group_bytes(index, g, allocation.levels(&g.id), counting));
    bytes.sum::<u64>() + codec_bytes(index)
}

/// Returns [`layer_bytes`] in bits per weight.
pub fn bits_per_weight(index: &Index, allocation: &Allocation, counting: Counting) -> f64 {
    layer_bytes(index, allocation, counting) as f64 * 8.0 / layer_weights(index) as f64
}

/// Returns the total weight budget that leaves `bits` per weight for attention and feed-forward matrices. All
/// other weights count at their lowest level.
pub fn budget_of_bits(index: &Index, top: Level, bits: f64, counting: Counting) -> u64 {
    let others = index
        .groups()
        .iter()
        .filter(|group| !matches!(group.id, GroupId::Asset { .. }) && !is_of_layer(group));
    let floors = Floors::of(index);
    let at_least = |group: &Group| {
        let levels = group.matrices.iter().enumerate().map(|(place, matrix)| {
            super::level_at(index, group, matrix, top).min(floors.level(group, place))
        });
        group_bytes(index, group, &levels.collect::<Vec<_>>(), counting)
    };
    let layers = (bits.max(0.0) * layer_weights(index) as f64 / 8.0) as u64;
    others.map(at_least).sum::<u64>() + layers.saturating_sub(codec_bytes(index))
}

fn is_of_layer(group: &Group) -> bool {
    matches!(group.id, GroupId::Dense { .. } | GroupId::Expert(_))
}

fn layer_weights(index: &Index) -> u64 {
    let matrices = index.groups().iter().filter(|group| is_of_layer(group));
    matrices.flat_map(|g| &g.matrices).map(|m| m.rows as u64 * m.cols as u64).sum()
}

fn codec_bytes(index: &Index) -> u64 {
    index.codecs().iter().map(|codec| codec.bytes as u64).sum()
}

//! Choice of levels: takes refinements by error reduction per byte until the budget is spent.
//!
//! The (bytes, error) points of a matrix have a lower convex hull, and the hull's edges are the matrix's
//! refinements. Always taking the steepest remaining edge is optimal for any budget that is spent exactly. A
//! larger budget only takes more edges.
//!
//! A model without experts gets the highest level that fits, and refinements to the next one. Measured errors compare
//! the matrices of one level well, and levels badly: chosen over all levels, an allocation of SmolLM2-135M diverged twice
//! as much as the level of the same size (docs/perf/033).

use nestling_formats::Level;
use nestling_formats::store::{Encoding, GroupId, Index, Matrix};

use super::bytes::{Counting, group_bytes, weight_bytes};
use super::errors::{Errors, Floors};
use super::{Allocation, level_at};
use nestling_core::error::EngineError;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Refinement {
    group: usize,
    place: usize,
    level: Level,
    /// Error reduction per byte.
    slope: f64,
}

/// Constraints of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChooseOptions {
    /// Upper bound: no matrix gets a higher level than in the model of this level.
    pub top: Level,
    /// Budget for all weights in bytes, including floats, embedding and head.
    pub budget: u64,
    /// Kind of size that the budget limits.
    pub counting: Counting,
    /// Fixed level for attention and other dense matrices; `None` chooses their levels too.
    pub dense: Option<Level>,
}

/// Chooses the levels of a store's matrices for a budget in bytes.
///
/// ```
/// use nestling_levels::Allocation;
/// use nestling_levels::allocation::{ChooseOptions, Counting, choose, weight_bytes};
/// use nestling_formats::Level;
/// use nestling_formats::store::Store;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
/// let store = Store::open(path)?;
/// let (index, counting) = (store.index(), Counting::File);
/// let budget = weight_bytes(index, &Allocation::of_level(index, Level::L4), counting);
/// let options = ChooseOptions { top: Level::L8, budget, counting, dense: None };
/// let allocation = choose(index, &options)?;
/// assert!(weight_bytes(index, &allocation, counting) <= budget);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`EngineError::WeightBudget`] if even the smallest allocation exceeds the budget.
pub fn choose(index: &Index, options: &ChooseOptions) -> Result<Allocation, EngineError> {
    let ChooseOptions { budget, counting, dense, .. } = *options;
    let errors = Errors::of(index);
    let has_experts = index.groups().iter().any(|group| matches!(group.id, GroupId::Expert(_)));
    let (mut levels, top) = match has_experts || dense.is_some() {
        true => (least(index, options.top, dense), options.top),
        false => highest_level(index, options),
    };
    let bytes_of = |group: usize, levels: &[Level]| {
        group_bytes(index, &index.groups()[group], levels, counting)
    };
    let weights = |group: &usize| !matches!(index.groups()[*group].id, GroupId::Asset { .. });
    let mut taken: u64 = (0..levels.len()).filter(weights).map(|g| bytes_of(g, &levels[g])).sum();
    if taken > budget {
        return Err(EngineError::WeightBudget { asked: budget, least: taken });
    }
    for next in refinements(index, top, &errors, &levels) {
        if dense.is_some() && matches!(index.groups()[next.group].id, GroupId::Dense { .. }) {
            continue;
        }
        let list = &mut levels[next.group];
        let before = bytes_of(next.group, list);
        let old = std::mem::replace(&mut list[next.place], next.level);
        let after = taken - before + bytes_of(next.group, list);
        if after > budget {
            // A later, smaller refinement might fit, but taking it would break the nesting of allocations.
            list[next.place] = old;
            break;
        }
        taken = after;
    }
    Ok(Allocation::of_levels(index, levels))
}

/// Returns the highest level whose weights fit, as levels of matrices, and the next one. The lowest level is returned even
/// if it does not fit.
fn highest_level(index: &Index, options: &ChooseOptions) -> (Vec<Vec<Level>>, Level) {
    let ChooseOptions { top, budget, counting, .. } = *options;
    let all: Vec<_> = Level::ALL.into_iter().filter(|level| *level <= top).collect();
    let fits = |level: &Level| {
        weight_bytes(index, &Allocation::of_level(index, *level), counting) <= budget
    };
    // Default: the caller refuses a budget that the lowest level exceeds.
    let place = all.iter().rposition(fits).unwrap_or(0);
    let allocation = Allocation::of_level(index, all[place]);
    let levels = index.groups().iter().map(|group| allocation.levels(&group.id).to_vec());
    // Default: nothing is above the top level.
    (levels.collect(), all.get(place + 1).copied().unwrap_or(top))
}

/// Returns the lowest level that may be chosen for each matrix.
fn least(index: &Index, top: Level, dense: Option<Level>) -> Vec<Vec<Level>> {
    let floors = Floors::of(index);
    let levels = index.groups().iter().map(|group| {
        let matrices = group.matrices.iter().enumerate().map(|(place, matrix)| {
            let held = level_at(index, group, matrix, top);
            match (matrix.encoding, dense, &group.id) {
                (Encoding::Float(_), ..) => Level::L8,
                (_, Some(dense), GroupId::Dense { .. }) => held.min(dense),
                _ => held.min(floors.level(group, place)),
            }
        });
        matrices.collect()
    });
    levels.collect()
}

/// Returns all refinements, steepest first. Refinements of one matrix keep the order of its levels.
fn refinements(
    index: &Index,
    top: Level,
    errors: &Errors,
    least: &[Vec<Level>],
) -> Vec<Refinement> {
    let mut list = Vec::new();
    for (group, of_group) in index.groups().iter().enumerate() {
        for (place, matrix) in of_group.matrices.iter().enumerate() {
            let (held, low) = (level_at(index, of_group, matrix, top), least[group][place]);
            let levels = Level::ALL.into_iter().filter(|level| (low..=held).contains(level));
            let edge = |level, slope| Refinement { group, place, level, slope };
            match errors.get(group, place) {
                Some(errors) => {
                    let points: Vec<_> = levels
                        .map(|level| (level, bytes_at(matrix, level), errors[level.index()]))
                        .collect();
                    list.extend(hull(&points).into_iter().map(|(level, slope)| edge(level, slope)));
                }
                // The slope of a matrix without an error estimate is 0, so its refinements sort last.
                None => list.extend(levels.skip(1).map(|level| edge(level, 0.0))),
            }
        }
    }
    list.sort_by(|a, b| {
        let place = |r: &Refinement| (r.group, r.place, r.level);
        b.slope.total_cmp(&a.slope).then(place(a).cmp(&place(b)))
    });
    list
}

/// Returns the bytes of a matrix's planes up to and including a level.
fn bytes_at(matrix: &Matrix, level: Level) -> f64 {
    let Encoding::Nested { layout, form, .. } = matrix.encoding else { return 0.0 };
    let planes = Level::ALL.into_iter().filter(|below| *below <= level).map(Level::plane);
    let bytes = planes.map(|plane| form.plane_bytes(layout, matrix.rows, matrix.cols, plane));
    bytes.map(|bytes| bytes.unwrap_or(usize::MAX) as f64).sum()
}

/// Returns the edges of the lower convex hull of `(level, bytes, error)` points, which ascend by bytes. Each
/// edge is the level it leads to and its slope; slopes never increase.
pub(crate) fn hull(points: &[(Level, f64, f64)]) -> Vec<(Level, f64)> {
    let slope = |from: &(Level, f64, f64), to: &(Level, f64, f64)| {
        ((from.2 - to.2) / (to.1 - from.1)).max(0.0)
    };
    let mut kept: Vec<(Level, f64, f64)> = Vec::new();
    for point in points {
        // A level whose measured error is higher than that of the level below gets the lower error.
        let mut point = *point;
        if let Some(last) = kept.last() {
            point.2 = point.2.min(last.2);
        }
        while let [.., before, last] = kept[..] {
            if slope(&before, &last) > slope(&last, &point) {
                break;
            }
            kept.pop();
        }
        kept.push(point);
    }
    kept.windows(2).map(|pair| (pair[1].0, slope(&pair[0], &pair[1]))).collect()
}

#[cfg(test)]
mod tests;

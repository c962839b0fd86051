//! Expected error of each matrix at each level, from the store's measures or from a prior.

use std::collections::BTreeMap;

use nestling_formats::store::{Encoding, Group, GroupId, Index};
use nestling_formats::{Level, MatrixKind};
use serde_json::Value;

/// Mean squared error of the nested code by level, relative to the mean square of the weights: -9.5, -15.6,
/// -21.8, -33.7 and -45.7 dB, as measured on trained experts.
const PRIOR: [f64; 5] = [0.112, 0.0275, 0.00661, 0.000427, 0.0000269];

/// Returns the expected error drop of each plane when a store has no measures. The first plane's drop is
/// relative to an error of 1, the error without any weights.
pub(crate) fn prior_drops() -> [f32; 5] {
    let mut left = 1.0;
    PRIOR.map(|error| (std::mem::replace(&mut left, error) - error) as f32)
}

/// Returns the share of an expert's error at level 2 by matrix kind: `down` is the sensitive matrix.
fn prior_of(kind: MatrixKind) -> f64 {
    match kind {
        MatrixKind::Down => 0.6,
        MatrixKind::Gate => 0.24,
        _ => 0.16,
    }
}

/// Minimum use of an expert, as a share of its layer's mean, for experts that calibration never used.
const USE_FLOOR: f64 = 0.02;

/// Expected cost per token of each matrix at each level, by group. Costs are comparable across matrices.
pub(super) struct Errors {
    by_group: Vec<Vec<Option<[f64; 5]>>>,
}

impl Errors {
    pub fn of(index: &Index) -> Self {
        let uses = Uses::of(index);
        let scale = Scale::of(index);
        let by_group = index.groups().iter().map(|group| {
            let weight = uses.weight(group);
            let matrices = (0..group.matrices.len()).map(|place| {
                let Encoding::Nested { .. } = group.matrices[place].encoding else { return None };
                let errors = measured(group, place).or_else(|| scale.expected(group, place))?;
                Some(errors.map(|error| error * weight))
            });
            matrices.collect()
        });
        Self { by_group: by_group.collect() }
    }

    /// Returns the cost of a matrix at each level, or `None` if it is unknown and its level cannot be chosen.
    pub fn get(&self, group: usize, place: usize) -> Option<[f64; 5]> {
        *self.by_group.get(group)?.get(place)?
    }
}

/// Returns the remaining error at each level: the sum of the error drops of the planes above it.
fn measured(group: &Group, place: usize) -> Option<[f64; 5]> {
    let drops = group.error_drops.get(place)?;
    let mut left = [0.0; 5];
    for level in (0..4).rev() {
        left[level] = left[level + 1] + f64::from(drops[level + 1]?);
    }
    Some(left)
}

/// Mean use (frequency times mean square weight) of a layer's experts.
struct Uses {
    mean: BTreeMap<u32, f64>,
}

impl Uses {
    fn raw(group: &Group) -> Option<f64> {
        Some(f64::from(group.frequency?) * f64::from(group.weight_square.unwrap_or(1.0)))
    }

    fn of(index: &Index) -> Self {
        let mut sums: BTreeMap<u32, (f64, f64)> = BTreeMap::new();
        for group in index.groups().iter().filter(|group| group.id.expert().is_some()) {
            if let (Some(layer), Some(uses)) = (group.id.layer(), Self::raw(group)) {
                let sum = sums.entry(layer).or_default();
                *sum = (sum.0 + uses, sum.1 + 1.0);
            }
        }
        Self { mean: sums.into_iter().map(|(layer, (sum, count))| (layer, sum / count)).collect() }
    }

    /// Returns frequency times mean square weight of an expert, and 1 for dense matrices.
    fn weight(&self, group: &Group) -> f64 {
        let mean = group.id.layer().and_then(|layer| self.mean.get(&layer)).copied();
        match (group.id.expert(), mean) {
            (Some(_), Some(mean)) => Self::raw(group).unwrap_or(mean).max(USE_FLOOR * mean),
            _ => 1.0,
        }
    }
}

/// Estimates for matrices without measures.
struct Scale {
    /// Sums and counts of the measured errors, by layer and kind.
    mean: BTreeMap<(Option<u32>, u8), ([f64; 5], f64)>,
    measured: usize,
}

impl Scale {
    fn of(index: &Index) -> Self {
        let mut mean: BTreeMap<(Option<u32>, u8), ([f64; 5], f64)> = BTreeMap::new();
        let mut count = 0;
        for group in index.groups().iter().filter(|group| group.id.expert().is_some()) {
            for (place, matrix) in group.matrices.iter().enumerate() {
                let Some(errors) = measured(group, place) else { continue };
                count += 1;
                let sum = mean.entry((group.id.layer(), matrix.kind as u8)).or_default();
                sum.0.iter_mut().zip(errors).for_each(|(sum, error)| *sum += error);
                sum.1 += 1.0;
            }
        }
        Self { mean, measured: count }
    }

    /// Returns the estimate for an expert's matrix. Dense matrices have none, so they keep their level.
    fn expected(&self, group: &Group, place: usize) -> Option<[f64; 5]> {
        let matrix = group.matrices.get(place)?;
        if !matches!(group.id, GroupId::Expert(_)) {
            return None;
        }
        if let Some((sum, count)) = self.mean.get(&(group.id.layer(), matrix.kind as u8)) {
            return Some(sum.map(|sum| sum / count));
        }
        // Relative errors of the prior cannot be compared with measured errors.
        (self.measured == 0).then(|| PRIOR.map(|error| error / PRIOR[0] * prior_of(matrix.kind)))
    }
}

/// Value of the parameter `measures` of a store whose error drops are divergences in nats per token, for all matrices. The
/// drops of other stores are shares of the residual stream.
pub const DIVERGENCE_MEASURES: &str = "divergence";

/// Minimum levels of a store's matrices.
///
/// Without measures of divergence, dense matrices stay at level 6: an error in attention costs the model more than its share
/// of the residual stream indicates (docs/perf/060).
#[derive(Clone, Copy, Debug)]
pub(super) struct Floors {
    dense: Level,
}

impl Floors {
    pub fn of(index: &Index) -> Self {
        let parameters = serde_json::from_str::<Value>(index.parameters_json());
        let measures = parameters.as_ref().ok().and_then(|known| known.get("measures")?.as_str());
        let is_divergence = measures == Some(DIVERGENCE_MEASURES);
        Self { dense: if is_divergence { Level::L2 } else { Level::L6 } }
    }

    /// Returns the minimum level of a group's matrix.
    pub fn level(self, group: &Group, place: usize) -> Level {
        match group.id {
            GroupId::Expert(_) => Level::L2,
            GroupId::Dense { .. } if measured(group, place).is_some() => self.dense,
            _ => Level::L6,
        }
    }
}

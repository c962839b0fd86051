//! Plane scores of all experts of a store.

use std::collections::HashMap;

use nestling_formats::store::{Group, GroupId, Index};
use nestling_formats::{Level, Plane};

use super::PlaneScores;
use crate::allocation::{hull, prior_drops};

/// Plane scores of one expert: error reduction of a token's output per byte, for a router weight of 1.
///
/// Scores are slopes of the lower convex hull of error over bytes, so they never increase from plane to
/// plane. A plane of low value before one of high value is therefore taken together with it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertScores {
    /// Slopes indexed by the highest level allowed, then by level.
    slopes: [[f32; 5]; 5],
}

impl ExpertScores {
    /// Computes scores from each plane's error drop and size; the first plane is always used. Drops that are
    /// negative or not finite count as 0.
    pub fn new(drops: [f32; 5], bytes: [u64; 5]) -> Self {
        let drops = drops.map(|drop| if drop.is_finite() { f64::from(drop.max(0.0)) } else { 0.0 });
        let slopes = Level::ALL.map(|highest| {
            let (mut left, mut read) = (drops.iter().sum::<f64>(), 0.0);
            let mut points = Vec::with_capacity(Level::ALL.len());
            for level in Level::ALL.into_iter().filter(|level| *level <= highest) {
                left -= drops[level.index()];
                // A plane without bytes counts as one byte.
                read += bytes[level.index()].max(1) as f64;
                points.push((level, read, left));
            }
            let mut slopes = [0.0; 5];
            let mut edges = hull(&points).into_iter().peekable();
            for level in points.iter().skip(1).map(|point| point.0) {
                while edges.next_if(|(end, _)| *end < level).is_some() {}
                slopes[level.index()] = edges.peek().map_or(0.0, |(_, slope)| *slope as f32);
            }
            slopes
        });
        Self { slopes }
    }

    /// Returns the plane scores for a token with this router weight, if no plane above `highest` is used. NaN
    /// weights give NaN scores, which request the fewest bytes.
    pub fn to_token(&self, weight: f32, highest: Level) -> PlaneScores {
        self.slopes[highest.index()].map(|slope| weight * weight * slope)
    }

    /// Returns the scores of each level's plane if no plane above `highest` is used; 0 for the first.
    pub fn slopes(&self, highest: Level) -> [f32; 5] {
        self.slopes[highest.index()]
    }
}

/// Plane scores of all experts of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpertSensitivities {
    scores: HashMap<(u32, u32), ExpertScores>, // (layer, expert)
}

impl ExpertSensitivities {
    /// Computes scores from the store's measures. An expert without measures gets the mean of its layer, or
    /// of the store. A store without any measures uses the prior error drops of the nested code for all
    /// experts.
    pub fn of_index(index: &Index) -> Self {
        let mut means = MeanDrops::default();
        for group in index.groups() {
            if let (GroupId::Expert(id), Some(drops)) = (&group.id, measured(index, group)) {
                means.add(id.layer, drops);
            }
        }
        let scores = index.groups().iter().filter_map(|group| {
            let GroupId::Expert(id) = group.id else { return None };
            let drops = measured(index, group).unwrap_or_else(|| means.of(id.layer));
            let extents = Plane::ALL.map(|plane| index.extent(group, plane));
            let bytes = extents.map(|extent| extent.map_or(0, |extent| extent.length));
            Some(((id.layer, id.expert), ExpertScores::new(drops, bytes)))
        });
        Self { scores: scores.collect() }
    }

    /// Returns the plane scores of one expert, or `None` if they are unknown.
    pub fn expert(&self, layer: u32, expert: u32) -> Option<&ExpertScores> {
        self.scores.get(&(layer, expert))
    }
}

/// Returns the error drop of each plane of an expert. `None` unless all its planes were measured and at least
/// one drop is positive.
fn measured(index: &Index, group: &Group) -> Option<[f32; 5]> {
    let mut drops = [0.0; 5];
    for (drop, plane) in drops.iter_mut().zip(Plane::ALL) {
        let Some(extent) = index.extent(group, plane) else { continue };
        *drop = extent.error_drop.filter(|drop| drop.is_finite() && *drop >= 0.0)?;
    }
    drops.iter().any(|drop| *drop > 0.0).then_some(drops)
}

/// Mean error drops, by layer and overall.
#[derive(Default)]
struct MeanDrops {
    layers: HashMap<u32, ([f64; 5], f64)>,
    all: ([f64; 5], f64),
}

impl MeanDrops {
    fn add(&mut self, layer: u32, drops: [f32; 5]) {
        for (sums, count) in [self.layers.entry(layer).or_default(), &mut self.all] {
            sums.iter_mut().zip(drops).for_each(|(sum, drop)| *sum += f64::from(drop));
            *count += 1.0;
        }
    }

    fn of(&self, layer: u32) -> [f32; 5] {
        let (sums, count) = self.layers.get(&layer).copied().unwrap_or(self.all);
        if count > 0.0 { sums.map(|sum| (sum / count) as f32) } else { prior_drops() }
    }
}

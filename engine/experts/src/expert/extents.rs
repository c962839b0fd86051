//! Where the planes of every expert lie, looked up in the store's index once: a step asks hundreds of
//! times.

use nestling_formats::store::{Extent, GroupId, Store};
use nestling_formats::{ExpertId, Level, Plane};

use super::source::ExpertSource;
use crate::residency::PlaneId;
use nestling_core::backend::ExpertUse;

/// One expert's planes in the store.
#[derive(Debug)]
struct ExpertExtents {
    extents: [Option<Extent>; Plane::ALL.len()],
    /// How many of them, from the first, each level needs.
    planes: [usize; Level::ALL.len()],
}

/// Planes of all experts of a model in its store.
#[derive(Debug)]
pub(super) struct ExtentTable {
    layers: Vec<Vec<ExpertExtents>>, // no experts in a dense layer
}

impl ExtentTable {
    /// Of so many experts in each layer.
    pub fn new(
        source: &dyn ExpertSource,
        store: &Store,
        experts: impl Iterator<Item = usize>,
    ) -> Self {
        let layers = (0..).zip(experts).map(|(layer, count)| {
            let entry = |expert| {
                let id = ExpertId { layer, expert };
                let group = store.group(&GroupId::Expert(id));
                let extent = |plane| store.extent(group?, plane).cloned();
                let planes = Level::ALL.map(|level| source.planes_of(id, level));
                ExpertExtents { extents: Plane::ALL.map(extent), planes }
            };
            (0..count as u32).map(entry).collect()
        });
        Self { layers: layers.collect() }
    }

    fn expert(&self, id: ExpertId) -> Option<&ExpertExtents> {
        self.layers.get(id.layer as usize)?.get(id.expert as usize)
    }

    /// How many experts each layer has.
    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.layers.iter().map(Vec::len)
    }

    /// Experts of one layer.
    pub fn experts_of(&self, layer: u32) -> usize {
        self.layers.get(layer as usize).map_or(0, Vec::len)
    }

    /// Where a plane lies, if the store has it.
    pub fn extent(&self, id: PlaneId) -> Option<&Extent> {
        let expert = self.expert(ExpertId { layer: id.layer, expert: id.expert })?;
        expert.extents[id.plane.index()].as_ref()
    }

    /// Bytes of a plane; 0 where the store has none.
    pub fn bytes(&self, id: PlaneId) -> u64 {
        self.extent(id).map_or(0, |extent| extent.length)
    }

    /// Bytes of an expert's first planes.
    pub fn prefix_bytes(&self, id: ExpertId, planes: usize) -> u64 {
        let extents = self.expert(id).map(|expert| &expert.extents);
        let extents = extents.into_iter().flatten().take(planes).flatten();
        extents.map(|extent| extent.length).sum()
    }

    /// The highest level that an expert's first planes make; none without any.
    pub fn level_of(&self, id: ExpertId, planes: usize) -> Option<Level> {
        let wanted = self.expert(id)?.planes;
        let complete = |level: &Level| (1..=planes).contains(&wanted[level.index()]);
        Level::ALL.into_iter().rfind(complete)
    }

    /// How many of an expert's planes, from the first, its rows need.
    pub fn planes_wanted(&self, id: ExpertId, rows: &[ExpertUse]) -> usize {
        let Some(expert) = self.expert(id) else { return 0 };
        // Default: no row needs no plane.
        rows.iter().map(|used| expert.planes[used.level.index()]).max().unwrap_or(0)
    }
}

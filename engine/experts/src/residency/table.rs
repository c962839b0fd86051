//! Table of all experts of a model: plane sizes and statistics, available before any read.

use crate::store_config::config_of;
use nestling_formats::memory::try_with_capacity;
use nestling_formats::store::{Group, GroupId, Index, Store};
use nestling_formats::{ExpertId, Level, Plane};
use nestling_import::ModelConfig;
use nestling_import::config::FeedForward;

use super::PLANES;
use super::Placement;
use nestling_core::error::EngineError;

/// Name of the bookkeeping memory in error messages.
pub const BOOKS: &str = "the books of streamed experts";

/// Size in bytes of the blocks that planes are read in. Memory is counted in whole blocks.
pub const BLOCK_BYTES: u64 = 4096;

/// Reduction of the output error by each plane if a store has no measures: the differences of -9.5, -15.6,
/// -21.8, -33.7 and -45.7 dB, as measured on trained experts. The first plane's reduction is relative to an
/// expert of zeros.
const PRIOR_DROPS: [f32; PLANES] = [0.888, 0.0845, 0.0209, 0.00618, 0.0004];

/// One plane of one expert: the unit of reading, caching and eviction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaneId {
    /// Index of the layer.
    pub layer: u32,
    /// Index of the expert in its layer.
    pub expert: u32,
    /// Plane of the expert.
    pub plane: Plane,
}

impl PlaneId {
    /// Creates the id of a plane of an expert.
    pub fn new(expert: ExpertId, plane: Plane) -> Self {
        Self { layer: expert.layer, expert: expert.expert, plane }
    }

    /// Returns the ids of an expert's first planes.
    pub fn first(expert: ExpertId, planes: usize) -> impl Iterator<Item = Self> {
        Plane::ALL.into_iter().take(planes).map(move |plane| Self::new(expert, plane))
    }

    /// Returns the id of the expert.
    pub fn expert_id(self) -> ExpertId {
        ExpertId { layer: self.layer, expert: self.expert }
    }
}

/// Sizes and statistics of one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertEntry {
    /// Memory of each plane in bytes; 0 if the store lacks it.
    pub plane_bytes: [u64; PLANES],
    /// Reduction of the expert's squared output error by each plane.
    pub error_drops: [f32; PLANES],
    /// Share of tokens that use the expert; 0 if not measured.
    pub frequency: f32,
    /// Mean square of the expert's router weight over its uses.
    pub weight_square: f32,
}

impl ExpertEntry {
    /// Returns the bytes of the first `planes` planes.
    pub fn bytes(&self, planes: usize) -> u64 {
        self.plane_bytes.iter().take(planes).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// All experts of a model, by layer; layers without experts are empty.
///
/// ```
/// use nestling_experts::residency::ExpertTable;
/// use nestling_formats::Level;
/// use nestling_formats::store::Store;
///
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nestling-storyteller.nest");
/// let table = ExpertTable::of_store(&Store::open(path)?, Level::L4)?;
/// assert_eq!(table.layers().len(), 4);
/// let expert = &table.layers()[0][0];
/// assert!(expert.bytes(1) < expert.bytes(3)); // planes P2, and P2 to P4
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertTable {
    layers: Vec<Vec<ExpertEntry>>,
    /// Index of the first expert of each layer, followed by the total.
    starts: Vec<usize>,
    experts_per_token: usize,
}

impl ExpertTable {
    /// Creates a table of experts, `experts_per_token` of which a token uses in each layer.
    pub fn new(layers: Vec<Vec<ExpertEntry>>, experts_per_token: usize) -> Self {
        let mut starts = vec![0];
        for layer in &layers {
            starts.push(starts.last().map_or(0, |start| start + layer.len()));
        }
        Self { layers, starts, experts_per_token: experts_per_token.max(1) }
    }

    /// Creates the table of a store, with the planes that the model of a level needs.
    ///
    /// # Errors
    /// [`EngineError::LevelMissing`]. Also returns an error if the configuration is missing, damaged or not
    /// supported.
    pub fn of_store(store: &Store, level: Level) -> Result<Self, EngineError> {
        if level > store.level() {
            let (asked, held) = (level.bits(), store.level().bits());
            return Err(EngineError::LevelMissing { asked, held });
        }
        Self::of_index(store.index(), &config_of(store)?, level)
    }

    /// Works like [`ExpertTable::of_store`], for a store of which only the index is available, or planned.
    ///
    /// # Errors
    /// [`EngineError::Mismatch`] if the index lacks an expert; [`EngineError::Memory`].
    pub fn of_index(
        index: &Index,
        config: &ModelConfig,
        level: Level,
    ) -> Result<Self, EngineError> {
        let mut experts_per_token = 1;
        let mut layers = Vec::new();
        for (layer, of_layer) in (0..).zip(&config.layers) {
            let FeedForward::Moe { num_experts, num_experts_per_tok, .. } = of_layer.feed_forward
            else {
                layers.push(Vec::new());
                continue;
            };
            experts_per_token = experts_per_token.max(num_experts_per_tok);
            let mut groups = try_with_capacity(BOOKS, num_experts)?;
            for expert in 0..num_experts as u32 {
                let id = GroupId::expert_of(layer, expert);
                let missing =
                    || EngineError::mismatch(index.id().to_string(), id.clone(), "no such group");
                groups.push(index.group(&id).ok_or_else(missing)?);
            }
            let usual = usual_drops(index, &groups, level);
            let mut entries = try_with_capacity(BOOKS, num_experts)?;
            entries.extend(groups.iter().map(|group| entry(index, group, level, usual)));
            layers.push(entries);
        }
        Ok(Self::new(layers, experts_per_token))
    }

    /// Returns the experts of each layer.
    pub fn layers(&self) -> &[Vec<ExpertEntry>] {
        &self.layers
    }

    /// Returns one expert, or `None` if it does not exist.
    pub fn entry(&self, layer: u32, expert: u32) -> Option<&ExpertEntry> {
        self.layers.get(layer as usize)?.get(expert as usize)
    }

    /// Returns the number of experts that a token uses in each layer.
    pub fn experts_per_token(&self) -> usize {
        self.experts_per_token
    }

    /// Returns the bytes of all planes of all experts.
    pub fn total_bytes(&self) -> u64 {
        let experts = self.layers.iter().flatten();
        experts.fold(0, |sum, entry| sum.saturating_add(entry.bytes(PLANES)))
    }

    /// Returns the bytes of all planes of the experts that a share holds.
    pub fn held_bytes(&self, placement: &Placement) -> u64 {
        let layers = (0u32..).zip(&self.layers);
        let experts = layers.flat_map(|(layer, of)| (0u32..).zip(of).map(move |at| (layer, at)));
        let held = experts.filter(|(layer, (expert, _))| placement.holds(*layer, *expert));
        held.fold(0, |sum, (_, (_, entry))| sum.saturating_add(entry.bytes(PLANES)))
    }

    /// Returns the maximum bytes of the experts that one token uses.
    pub fn token_bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(self.layer_bytes(layer)))
    }

    /// Returns the minimum budget for a step: one token's experts of one layer.
    pub fn least_bytes(&self) -> u64 {
        // Default: without layers, nothing is cached.
        self.layers.iter().map(|layer| self.layer_bytes(layer)).max().unwrap_or(0)
    }

    /// Returns the maximum bytes of one token's experts of a layer.
    fn layer_bytes(&self, layer: &[ExpertEntry]) -> u64 {
        let mut bytes: Vec<u64> = layer.iter().map(|entry| entry.bytes(PLANES)).collect();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        bytes.iter().take(self.experts_per_token).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    pub(super) fn len(&self) -> usize {
        self.starts[self.layers.len()]
    }

    /// Returns the bytes of a plane, and the index of its expert over all layers.
    ///
    /// # Panics
    /// Panics if the expert is not in the table.
    pub(super) fn plane(&self, id: PlaneId) -> (u64, usize) {
        let (layer, expert) = (id.layer as usize, id.expert as usize);
        let bytes = self.layers[layer][expert].plane_bytes[id.plane.index()];
        (bytes, self.starts[layer] + expert)
    }

    /// Returns the index of an expert over all layers.
    pub(super) fn number(&self, layer: u32, expert: u32) -> Option<usize> {
        self.entry(layer, expert)?;
        Some(self.starts.get(layer as usize)? + expert as usize)
    }
}

/// Reads one expert's entry from the index. `usual` replaces missing error drops.
fn entry(index: &Index, group: &Group, level: Level, usual: [f32; PLANES]) -> ExpertEntry {
    // Default: a level that the store cannot provide has no planes.
    let planes = index.planes_at(group, level).unwrap_or(0);
    let mut entry = ExpertEntry {
        plane_bytes: [0; PLANES],
        error_drops: measured_drops(index, group, planes).unwrap_or(usual),
        frequency: group.frequency.unwrap_or(0.0),
        weight_square: group.weight_square.unwrap_or(1.0),
    };
    for plane in Plane::ALL.into_iter().take(planes) {
        let Some(extent) = index.extent(group, plane) else { continue };
        let blocks = extent.length.div_ceil(BLOCK_BYTES);
        entry.plane_bytes[plane.index()] = blocks.saturating_mul(BLOCK_BYTES);
    }
    entry
}

/// Returns the measured drops if all of an expert's planes have them. Drops that sum to zero are ignored: no
/// token of the calibration used the expert.
fn measured_drops(index: &Index, group: &Group, planes: usize) -> Option<[f32; PLANES]> {
    let mut drops = [0.0; PLANES];
    for plane in Plane::ALL.into_iter().take(planes) {
        let drop = index.extent(group, plane)?.error_drop?;
        drops[plane.index()] = Some(drop).filter(|drop| drop.is_finite() && *drop >= 0.0)?;
    }
    Some(drops).filter(|drops| drops.iter().sum::<f32>() > 0.0)
}

/// Returns the mean measured drops of a layer's experts, or the prior without measures.
fn usual_drops(index: &Index, groups: &[&Group], level: Level) -> [f32; PLANES] {
    let mut sum = [0.0; PLANES];
    let mut count = 0.0;
    for group in groups {
        // Default: a level that the store cannot provide has no planes.
        let planes = index.planes_at(group, level).unwrap_or(0);
        let Some(drops) = measured_drops(index, group, planes) else { continue };
        sum.iter_mut().zip(drops).for_each(|(sum, drop)| *sum += drop);
        count += 1.0;
    }
    if count > 0.0 { sum.map(|sum| sum / count) } else { PRIOR_DROPS }
}

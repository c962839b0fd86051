//! What a cache must know of every expert before it has read any.

use crate::store_config::config_of;
use nestling_formats::memory::try_with_capacity;
use nestling_formats::store::{Group, GroupId, Index, Store};
use nestling_formats::{ExpertId, Level, Plane};
use nestling_import::ModelConfig;
use nestling_import::config::FeedForward;

use super::PLANES;
use nestling_core::error::EngineError;

/// What the memory of these books is called.
pub const BOOKS: &str = "the books of streamed experts";

/// Planes are read in whole blocks of this many bytes, and their memory is counted so.
pub const BLOCK_BYTES: u64 = 4096;

/// By how much each plane lowers the output error where a store has no measures: the differences
/// of -9.5, -15.6, -21.8, -33.7 and -45.7 dB, as measured on trained experts. The first plane
/// takes away everything that an expert of nothing but zeros would be wrong by.
const PRIOR_DROPS: [f32; PLANES] = [0.888, 0.0845, 0.0209, 0.00618, 0.0004];

/// One plane of one expert: what is read, kept and evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlaneId {
    /// Layer.
    pub layer: u32,
    /// Expert within the layer.
    pub expert: u32,
    /// Which plane.
    pub plane: Plane,
}

impl PlaneId {
    /// A plane of an expert.
    pub fn new(expert: ExpertId, plane: Plane) -> Self {
        Self { layer: expert.layer, expert: expert.expert, plane }
    }

    /// An expert's first planes.
    pub fn first(expert: ExpertId, planes: usize) -> impl Iterator<Item = Self> {
        Plane::ALL.into_iter().take(planes).map(move |plane| Self::new(expert, plane))
    }

    /// The expert.
    pub fn expert_id(self) -> ExpertId {
        ExpertId { layer: self.layer, expert: self.expert }
    }
}

/// What is known of one expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertEntry {
    /// Bytes of memory of each plane; 0 where the store has none.
    pub plane_bytes: [u64; PLANES],
    /// By how much each plane lowers the squared error of the expert's output.
    pub error_drops: [f32; PLANES],
    /// Share of tokens that use the expert; 0 where that was not measured.
    pub frequency: f32,
    /// Mean square of the weight that the router gives it where it is used.
    pub weight_square: f32,
}

impl ExpertEntry {
    /// Bytes of the first `planes` planes.
    pub fn bytes(&self, planes: usize) -> u64 {
        self.plane_bytes.iter().take(planes).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// All experts of a model, by layer; layers without experts are empty.
#[derive(Clone, Debug, PartialEq)]
pub struct ExpertTable {
    layers: Vec<Vec<ExpertEntry>>,
    /// Number of the first expert of each layer, and of all.
    starts: Vec<usize>,
    experts_per_token: usize,
}

impl ExpertTable {
    /// A table of these experts, `experts_per_token` of which a token uses in each layer.
    pub fn new(layers: Vec<Vec<ExpertEntry>>, experts_per_token: usize) -> Self {
        let mut starts = vec![0];
        for layer in &layers {
            starts.push(starts.last().map_or(0, |start| start + layer.len()));
        }
        Self { layers, starts, experts_per_token: experts_per_token.max(1) }
    }

    /// The experts of a store, with the planes that the model of that level needs.
    ///
    /// # Errors
    /// A configuration that is missing, damaged or not supported; [`EngineError::LevelMissing`].
    pub fn of_store(store: &Store, level: Level) -> Result<Self, EngineError> {
        if level > store.level() {
            let (asked, held) = (level.bits(), store.level().bits());
            return Err(EngineError::LevelMissing { asked, held });
        }
        Self::of_index(store.index(), &config_of(store)?, level)
    }

    /// The same for a store of which only the index is there, or planned.
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

    /// Experts of each layer.
    pub fn layers(&self) -> &[Vec<ExpertEntry>] {
        &self.layers
    }

    /// One expert.
    pub fn entry(&self, layer: u32, expert: u32) -> Option<&ExpertEntry> {
        self.layers.get(layer as usize)?.get(expert as usize)
    }

    /// Experts that a token uses in each layer.
    pub fn experts_per_token(&self) -> usize {
        self.experts_per_token
    }

    /// Bytes of all planes of all experts.
    pub fn total_bytes(&self) -> u64 {
        let experts = self.layers.iter().flatten();
        experts.fold(0, |sum, entry| sum.saturating_add(entry.bytes(PLANES)))
    }

    /// Bytes of the experts that one token uses, at the most.
    pub fn token_bytes(&self) -> u64 {
        self.layers.iter().fold(0, |sum, layer| sum.saturating_add(self.layer_bytes(layer)))
    }

    /// The least budget that a step can run in: one token's experts of one layer.
    pub fn least_bytes(&self) -> u64 {
        // Default: without layers, nothing is kept.
        self.layers.iter().map(|layer| self.layer_bytes(layer)).max().unwrap_or(0)
    }

    /// One token's experts of a layer: the largest.
    fn layer_bytes(&self, layer: &[ExpertEntry]) -> u64 {
        let mut bytes: Vec<u64> = layer.iter().map(|entry| entry.bytes(PLANES)).collect();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        bytes.iter().take(self.experts_per_token).fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Experts of all layers.
    pub(super) fn len(&self) -> usize {
        self.starts[self.layers.len()]
    }

    /// Bytes of a plane, and the number of its expert.
    ///
    /// # Panics
    /// If the expert is not in the table.
    pub(super) fn plane(&self, id: PlaneId) -> (u64, usize) {
        let (layer, expert) = (id.layer as usize, id.expert as usize);
        let bytes = self.layers[layer][expert].plane_bytes[id.plane.index()];
        (bytes, self.starts[layer] + expert)
    }

    /// An expert's number among those of all layers.
    pub(super) fn number(&self, layer: u32, expert: u32) -> Option<usize> {
        self.entry(layer, expert)?;
        Some(self.starts.get(layer as usize)? + expert as usize)
    }
}

/// What a store says of one expert; `usual` stands in for drops that it lacks.
fn entry(index: &Index, group: &Group, level: Level, usual: [f32; PLANES]) -> ExpertEntry {
    // Default: of a level that the store cannot make, it has no planes.
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

/// What the store measured: all of an expert's planes, or nothing. An expert that no token of the
/// calibration chose has measures of zero, which say nothing either.
fn measured_drops(index: &Index, group: &Group, planes: usize) -> Option<[f32; PLANES]> {
    let mut drops = [0.0; PLANES];
    for plane in Plane::ALL.into_iter().take(planes) {
        let drop = index.extent(group, plane)?.error_drop?;
        drops[plane.index()] = Some(drop).filter(|drop| drop.is_finite() && *drop >= 0.0)?;
    }
    Some(drops).filter(|drops| drops.iter().sum::<f32>() > 0.0)
}

/// The mean of what was measured of a layer's experts, or experience where nothing was.
fn usual_drops(index: &Index, groups: &[&Group], level: Level) -> [f32; PLANES] {
    let mut sum = [0.0; PLANES];
    let mut count = 0.0;
    for group in groups {
        // Default: of a level that the store cannot make, it has no planes.
        let planes = index.planes_at(group, level).unwrap_or(0);
        let Some(drops) = measured_drops(index, group, planes) else { continue };
        sum.iter_mut().zip(drops).for_each(|(sum, drop)| *sum += drop);
        count += 1.0;
    }
    if count > 0.0 { sum.map(|sum| sum / count) } else { PRIOR_DROPS }
}

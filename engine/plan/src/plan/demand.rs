//! Memory and disk demand of a model, read from its store's index.

use nestling_formats::store::{Group, GroupId, Index};
use nestling_formats::{Level, Plane};
use nestling_import::{FeedForward, ModelConfig};

use super::usage::supposed_rates;

/// Bytes that a model reads at a level, and the use of its experts.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Highest level of the experts.
    pub level: Level,
    /// Bytes of dense weights that each token reads: floats, head, attention. They are always in memory.
    pub dense_token_bytes: u64,
    /// Bytes of KV cache that a token reads; 0 at an empty context.
    pub context_bytes: u64,
    /// Total number of layers.
    pub num_layers: usize,
    /// Layers that have experts.
    pub layers: Vec<LayerDemand>,
    /// True if expert use was measured, false if it was assumed.
    pub is_measured: bool,
}

/// Experts of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDemand {
    /// Number of experts per token.
    pub chosen: usize,
    /// All experts of the layer.
    pub experts: Vec<ExpertDemand>,
}

/// Size and use of one expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertDemand {
    /// Bytes of each plane; 0 for planes above the level.
    pub plane_bytes: [u64; Plane::ALL.len()],
    /// Probability that a token uses the expert.
    pub rate: f64,
}

impl Demand {
    /// Returns the demand of the model in a store at a level. If the store has no use frequencies, assumes a
    /// router with the given `skew`.
    pub fn of_store(index: &Index, config: &ModelConfig, level: Level, skew: f64) -> Self {
        // A token only gathers one row of the embedding, unless the embedding is the head.
        let is_read = |group: &&Group| match group.id {
            GroupId::Asset { .. } | GroupId::Expert(_) => false,
            GroupId::Embedding => index.group(&GroupId::Head).is_none(),
            _ => true,
        };
        let bytes = |group: &Group| plane_bytes(index, group, level).iter().sum::<u64>();
        let dense_token_bytes = index.groups().iter().filter(is_read).map(bytes).sum();
        let mut demand = Self {
            level,
            dense_token_bytes,
            context_bytes: 0,
            num_layers: config.layers.len(),
            layers: Vec::new(),
            is_measured: false,
        };
        for (layer, parts) in (0u32..).zip(&config.layers) {
            let FeedForward::Moe { num_experts, num_experts_per_tok, .. } = parts.feed_forward
            else {
                continue;
            };
            let groups: Vec<Option<&Group>> = (0u32..)
                .take(num_experts)
                .map(|expert| index.group(&GroupId::expert_of(layer, expert)))
                .collect();
            let (rates, measured) = rates(&groups, num_experts_per_tok, skew);
            demand.is_measured |= measured;
            let experts = groups.iter().zip(rates).map(|(group, rate)| ExpertDemand {
                // Default: an expert that the store lacks takes no bytes; opening refuses such a store.
                plane_bytes: group
                    .map(|group| plane_bytes(index, group, level))
                    .unwrap_or_default(),
                rate,
            });
            let experts = experts.collect();
            demand.layers.push(LayerDemand { chosen: num_experts_per_tok, experts });
        }
        demand
    }

    /// Returns the demand at a context with this many bytes of KV cache.
    #[must_use]
    pub fn at_context(self, context_bytes: u64) -> Self {
        Self { context_bytes, ..self }
    }

    /// Returns the bytes of all experts.
    pub fn expert_bytes(&self) -> u64 {
        let experts = self.layers.iter().flat_map(|layer| &layer.experts);
        experts.map(|expert| expert.plane_bytes.iter().sum::<u64>()).sum()
    }
}

/// Returns the bytes of each plane of a group that a level needs.
fn plane_bytes(index: &Index, group: &Group, level: Level) -> [u64; Plane::ALL.len()] {
    // Default: a level that the group lacks takes no bytes.
    let planes = index.planes_at(group, level).unwrap_or(0);
    let mut bytes = [0; Plane::ALL.len()];
    for (plane, bytes) in Plane::ALL.into_iter().zip(&mut bytes).take(planes) {
        *bytes = index.extent(group, plane).map_or(0, |extent| extent.length);
    }
    bytes
}

fn rates(groups: &[Option<&Group>], chosen: usize, skew: f64) -> (Vec<f64>, bool) {
    let measured: Option<Vec<f64>> =
        groups.iter().map(|group| group.and_then(|group| group.frequency).map(f64::from)).collect();
    match measured {
        Some(rates) if rates.iter().sum::<f64>() > 0.0 => {
            let scale = chosen as f64 / rates.iter().sum::<f64>();
            (rates.into_iter().map(|rate| (rate * scale).min(1.0)).collect(), true)
        }
        _ => (supposed_rates(groups.len(), chosen, skew), false),
    }
}

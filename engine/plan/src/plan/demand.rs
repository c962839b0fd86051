//! What a model asks of memory and disk, read from its store's index.

use nestling_formats::store::{Group, GroupId, Index};
use nestling_formats::{Level, Plane};
use nestling_import::{FeedForward, ModelConfig};

use super::usage::supposed_rates;

/// What a model asks for at a level.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// The highest level that experts have.
    pub level: Level,
    /// Bytes of weights that every token reads: floats, head, attention. They are always in memory.
    pub dense_token_bytes: u64,
    /// Bytes of keys and values that a token reads; 0 at an empty context.
    pub context_bytes: u64,
    /// Layers in all.
    pub num_layers: usize,
    /// Layers that have experts.
    pub layers: Vec<LayerDemand>,
    /// Whether use was measured, and not supposed.
    pub is_measured: bool,
}

/// The experts of one layer.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerDemand {
    /// Experts that each token is sent to.
    pub chosen: usize,
    /// All of them.
    pub experts: Vec<ExpertDemand>,
}

/// One expert.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertDemand {
    /// Bytes of each plane, 0 where there is none at the level.
    pub plane_bytes: [u64; Plane::ALL.len()],
    /// The probability that a token uses it.
    pub rate: f64,
}

impl Demand {
    /// What the model in a store asks for at a level. Where the store does not say how often an
    /// expert is used, a router of that `skew` is supposed.
    pub fn of_store(index: &Index, config: &ModelConfig, level: Level, skew: f64) -> Self {
        // A token gathers one row of the embedding, unless that is the head too.
        let is_read = |group: &&Group| match group.id {
            GroupId::Asset { .. } | GroupId::Expert(_) => false,
            GroupId::Embedding => config.tie_word_embeddings,
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

    /// The same at a context of so many bytes of keys and values.
    #[must_use]
    pub fn at_context(self, context_bytes: u64) -> Self {
        Self { context_bytes, ..self }
    }

    /// Bytes of all experts.
    pub fn expert_bytes(&self) -> u64 {
        let experts = self.layers.iter().flat_map(|layer| &layer.experts);
        experts.map(|expert| expert.plane_bytes.iter().sum::<u64>()).sum()
    }
}

/// Bytes of each plane that a level needs of a group.
fn plane_bytes(index: &Index, group: &Group, level: Level) -> [u64; Plane::ALL.len()] {
    // Default: a level that the group does not have takes nothing.
    let planes = index.planes_at(group, level).unwrap_or(0);
    let mut bytes = [0; Plane::ALL.len()];
    for (plane, bytes) in Plane::ALL.into_iter().zip(&mut bytes).take(planes) {
        *bytes = index.extent(group, plane).map_or(0, |extent| extent.length);
    }
    bytes
}

/// The probability of each expert, and whether that was measured.
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

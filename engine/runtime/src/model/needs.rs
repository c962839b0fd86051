//! Device memory required by a model.

use std::sync::Arc;

use nestling_formats::store::{Encoding, Group, GroupId, Index};
use nestling_formats::{Level, Plane};

use nestling_core::backend::ModelNeeds;
use nestling_core::float_bytes;
use nestling_core::weights::ActivationMode;
use nestling_experts::expert::{ExpertSource, rows_that_stay};

/// Computes the requirements of a source's model.
///
/// `streamed` is the activation mode of streamed experts. If it is `None`, all experts are uploaded before
/// the first step.
pub(super) fn model_needs(
    source: &Arc<dyn ExpertSource>,
    streamed: Option<ActivationMode>,
    rows_max: usize,
) -> ModelNeeds<'_> {
    let config = source.config();
    let mut needs =
        ModelNeeds { config, rows_max, weight_bytes: 0, weights: 0, experts: Vec::new() };
    // Default: checkpoints do not run on devices, so only stores are counted.
    let Some(source) = Arc::clone(source).store_source() else { return needs };
    let store = source.store();
    let level = source.level_max().unwrap_or(store.level());
    let index = store.index();
    let is_stored = streamed.is_some() && rows_that_stay(index).is_some();
    for group in index.groups() {
        let level = match &group.id {
            GroupId::Asset { .. } => continue,
            GroupId::Expert(_) if streamed.is_some() => continue,
            GroupId::Embedding if is_stored => continue,
            // An allocation may choose less than the highest level.
            GroupId::Expert(_) => planes_level(source.planes_of(group, level), level),
            _ => level,
        };
        needs.weight_bytes += group_bytes(index, group, level);
        needs.weights += group.matrices.len() + group.tensors.len();
    }
    if let Some(activations) = streamed {
        let shape = |layer| source.expert_shape(layer, activations).ok().flatten();
        needs.experts = (0..config.layers.len()).map(shape).collect();
    }
    needs
}

/// Returns the level of the first `planes` planes, at most `most`.
fn planes_level(planes: usize, most: Level) -> Level {
    Level::ALL.get(planes.saturating_sub(1)).copied().unwrap_or(most).min(most)
}

/// Returns the bytes of a group at a level, including codecs and the widening of floats on load.
fn group_bytes(index: &Index, group: &Group, level: Level) -> u64 {
    // Default: a level without a section in the store uses no planes.
    let planes = Plane::ALL.into_iter().take(index.planes_at(group, level).unwrap_or(0));
    let extents = planes.filter_map(|plane| index.extent(group, plane));
    let codec = |encoding: &Encoding| match encoding {
        Encoding::Nested { codec, .. } => index.codecs().get(*codec as usize),
        _ => None,
    };
    let codecs = group.matrices.iter().filter_map(|matrix| codec(&matrix.encoding));
    extents.map(|extent| extent.length).sum::<u64>()
        + codecs.map(|codec| codec.bytes as u64).sum::<u64>()
        + float_bytes::widened(group)
}

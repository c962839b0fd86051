//! Bytes missed by the best static cache in hindsight, for a whole trace.

use super::uses::uses_of;
use nestling_core::routing_trace::RoutingTrace;
use nestling_experts::residency::{ExpertTable, PLANES};

/// Result of the best static set for a part of a trace.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StaticOptimum {
    /// Bytes that the steps use.
    pub used_bytes: u64,
    /// Bytes of uses missing from the set, counted once per plane, step and use.
    pub missed_bytes: u64,
    /// Uses of each plane of each expert, layer by layer.
    pub uses: Vec<[f64; 5]>,
}

/// Computes the planes within `budget_bytes` that miss the fewest bytes over the steps from `from` on. Its
/// uses are suitable for [`nestling_experts::residency::StaticHotSet`].
pub fn best_static(
    table: &ExpertTable,
    trace: &RoutingTrace,
    from: usize,
    budget_bytes: u64,
) -> StaticOptimum {
    let (mut starts, mut experts) = (Vec::new(), 0);
    for layer in table.layers() {
        starts.push(experts);
        experts += layer.len();
    }
    let mut best = StaticOptimum { uses: vec![[0.0; PLANES]; experts], ..StaticOptimum::default() };
    let mut uses = Vec::new();
    for step in trace.steps.iter().skip(from) {
        for (layer, routing) in step.layers.iter().enumerate() {
            uses_of(routing, &mut uses);
            for used in &uses {
                let number = starts.get(layer).map(|start| start + used.expert as usize);
                let Some(counts) = number.and_then(|n| best.uses.get_mut(n)) else { continue };
                counts.iter_mut().take(used.planes).for_each(|count| *count += 1.0);
            }
        }
    }
    // A resident byte saves one byte per use. No plane is used more often than those below it.
    let bytes = table.layers().iter().flatten().map(|entry| entry.plane_bytes);
    let planes = best.uses.iter().zip(bytes);
    let mut planes: Vec<(f64, u64)> =
        planes.flat_map(|(uses, bytes)| uses.iter().copied().zip(bytes)).collect();
    planes.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let mut left = budget_bytes;
    for (count, bytes) in planes {
        let moved = bytes.saturating_mul(count as u64);
        best.used_bytes = best.used_bytes.saturating_add(moved);
        if bytes <= left {
            left -= bytes;
        } else {
            best.missed_bytes = best.missed_bytes.saturating_add(moved);
        }
    }
    best
}

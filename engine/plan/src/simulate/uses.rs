//! Conversion of a layer's routing from rows, as in a trace, to experts, as in a cache.

use nestling_formats::Level;

use nestling_core::routing_trace::LayerRouting;

/// One expert of a layer in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ExpertRows {
    pub expert: u32,
    /// Planes needed by the most demanding row.
    pub planes: usize,
    pub rows: u32,
}

/// Collects the experts that a layer's rows use, in ascending order.
pub(super) fn uses_of(routing: &LayerRouting, uses: &mut Vec<ExpertRows>) {
    uses.clear();
    let entries = routing.ids.iter().zip(&routing.levels);
    uses.extend(entries.map(|(expert, bits)| {
        let planes = Level::from_bits(*bits).map_or(1, |level| level.index() + 1);
        ExpertRows { expert: *expert, planes, rows: 1 }
    }));
    uses.sort_unstable_by_key(|used| used.expert);
    uses.dedup_by(|next, kept| {
        let same = next.expert == kept.expert;
        if same {
            kept.planes = kept.planes.max(next.planes);
            kept.rows += next.rows;
        }
        same
    });
}

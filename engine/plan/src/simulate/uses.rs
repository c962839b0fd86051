//! The experts of one layer of one step, row by row in a trace, one by one for a cache.

use nestling_formats::Level;

use nestling_core::routing_trace::LayerRouting;

/// One expert of a layer in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use {
    pub expert: u32,
    /// Planes that the most demanding row needs.
    pub planes: usize,
    pub rows: u32,
}

/// Every expert that a layer's rows are sent to, ascending.
pub(super) fn uses_of(routing: &LayerRouting, uses: &mut Vec<Use>) {
    uses.clear();
    let entries = routing.ids.iter().zip(&routing.levels);
    uses.extend(entries.map(|(expert, bits)| {
        let planes = Level::from_bits(*bits).map_or(1, |level| level.index() + 1);
        Use { expert: *expert, planes, rows: 1 }
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

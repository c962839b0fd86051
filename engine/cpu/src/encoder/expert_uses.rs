//! Uses of feed-forward parts in a step: a dense part at each level of its rows, and experts.

use nestling_formats::Level;

use super::feed_forward::FeedForwardRows;
use super::products::{Output, RowMap, StoreMode, of_level};
use crate::device::{Cpu, FeedForwardScratch, Scratch};
use crate::matrix::CpuBuffer;
use crate::team::Team;
use nestling_core::backend::{ExpertUse, FeedForward, PinnedExpert, Routing};
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;

/// Computes the uses of a part that all rows pass, by ascending level.
pub(super) fn dense_uses(
    cpu: &mut Cpu,
    weights: &FeedForward<Cpu>,
    levels: &[Level], // [T]
    compute: impl FnOnce(&Team, &mut FeedForwardScratch, &[FeedForwardRows]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let Cpu { team, scratch, .. } = cpu;
    let Scratch { work, expert_rows: [all, _], uses: spare, .. } = scratch;
    all.clear();
    Level::ALL.iter().for_each(|level| all.extend(of_level(levels, *level)));
    let mut uses: Vec<FeedForwardRows> = recycle(std::mem::take(spare));
    for rows in all.chunk_by(|a, b| levels[*a as usize] == levels[*b as usize]) {
        let level = levels[rows[0] as usize];
        uses.push(FeedForwardRows { weights, level, rows: RowMap::same(rows) });
    }
    compute(team, work, &uses)?;
    *spare = recycle(uses);
    Ok(())
}

/// Computes the uses of experts, in the order of the experts and by ascending level.
pub(super) fn expert_uses(
    cpu: &mut Cpu,
    experts: &[PinnedExpert<'_, Cpu>],
    routing: &Routing,
    out: &mut CpuBuffer, // [T * K, D]
    compute: impl FnOnce(
        &Team,
        &mut FeedForwardScratch,
        &[FeedForwardRows],
        Output<'_>,
    ) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let per_token = routing.num_experts_per_tok;
    out.resize(routing.expert_weights.len())?;
    let Cpu { team, scratch, .. } = cpu;
    let Scratch { work, expert_rows: [x_rows, out_rows], uses: spare, .. } = scratch;
    x_rows.clear();
    out_rows.clear();
    for used in by_expert_and_level(experts) {
        x_rows.push(used.row);
        out_rows.push(used.row * per_token as u32 + used.rank);
    }
    let mut uses: Vec<FeedForwardRows> = recycle(std::mem::take(spare));
    let mut start = 0;
    for expert in experts {
        for level in Level::ALL {
            let count = expert.uses.iter().filter(|used| used.level == level).count();
            if count > 0 {
                let range = start..start + count;
                let rows = RowMap { x: &x_rows[range.clone()], out: &out_rows[range] };
                uses.push(FeedForwardRows { weights: &expert.weights, level, rows });
                start += count;
            }
        }
    }
    let (values, store) = (&mut out.values[..], StoreMode::Set);
    compute(team, work, &uses, Output { values, cols: out.cols, store })?;
    *spare = recycle(uses);
    Ok(())
}

/// Returns the uses of each expert by level, ascending.
fn by_expert_and_level<'a>(
    experts: &'a [PinnedExpert<'_, Cpu>],
) -> impl Iterator<Item = &'a ExpertUse> {
    let of = |expert: &'a PinnedExpert<'_, Cpu>, level| {
        expert.uses.iter().filter(move |used| used.level == level)
    };
    experts.iter().flat_map(move |expert| Level::ALL.into_iter().flat_map(move |l| of(expert, l)))
}

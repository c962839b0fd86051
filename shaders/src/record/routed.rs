//! Experts that shaders look up on the device, so that the host need not read the routing back first.

use nestling_core::EngineError;
use nestling_formats::nested::TILE_ROWS;
use nestling_gpu::{
    CommandRecorder, DeviceScratch, FindExperts, FoundExperts, FoundProducts, ScratchRoom,
    TableEntries, at_once, word,
};

use super::products::{Call, Kernel, dispatch};
use crate::backend::WgpuBackend;
use crate::found_blocks::{BLOCK_ALIGN, BLOCK_WORDS, FoundBlocks};
use crate::params::ExpertBlocksParams;
use crate::recorder::{Binding, Cost, spread};

/// Records a dispatch that builds the blocks of gates and ups and of downs from the routing.
pub(super) fn find(
    backend: &mut WgpuBackend,
    FindExperts { table, levels, routing, uses, noted }: &FindExperts<'_, WgpuBackend>,
) -> Result<FoundExperts<FoundBlocks>, EngineError> {
    let (uses, slabs) = (*uses, table.entries.slabs().len());
    let strides = [2 * uses, uses].map(|count| (count * BLOCK_WORDS).next_multiple_of(BLOCK_ALIGN));
    let pairs = (2 * uses).next_multiple_of(BLOCK_ALIGN);
    let out_first = slabs * strides[0];
    let inner_pairs = out_first + slabs * strides[1];
    let made = backend.scratch(ScratchRoom::Blocks, inner_pairs + 2 * pairs)?;
    let params = ExpertBlocksParams {
        uses: word("uses of experts", uses)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts)?,
        slabs: word("slabs", slabs)?,
        inner_rows: word("rows of a gate", table.form.gate.rows)?,
        out_rows: word("rows of a down", table.form.down.rows)?,
        inner_stride: word("blocks", strides[0])?,
        out_stride: word("blocks", strides[1])?,
        out_first: word("blocks", out_first)?,
        inner_pairs: word("pairs of rows", inner_pairs)?,
        out_pairs: word("pairs of rows", inner_pairs + pairs)?,
        noted: noted.first,
        call: noted.call,
        by_weight: u32::from(table.by_weight),
        biased: u32::from(table.biases().is_some()),
    };
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let WgpuBackend { recorder, pipelines, .. } = backend;
    recorder.make_room()?;
    let bindings = [
        routing.ids(),
        routing.weights(),
        recorder.table(&levels)?,
        table.entries.binding(),
        made.clone(),
        noted.notes.clone(),
        recorder.miss_flag(),
    ];
    let cost = Cost::elements(spread((slabs * uses).div_ceil(64)), (slabs * uses * uses) as u64);
    recorder.dispatch(&pipelines.expert_blocks, &bindings, &params, cost)?;
    let blocks = |first, count, stride, first_pair| {
        let made = made.clone();
        FoundBlocks { made, first, count, stride, first_pair, pairs: uses }
    };
    Ok(FoundExperts {
        inner: blocks(0, 2 * uses, strides[0], inner_pairs),
        outer: blocks(out_first, uses, strides[1], inner_pairs + pairs),
    })
}

/// Records the products of the blocks.
pub(super) fn multiply(
    backend: &mut WgpuBackend,
    FoundProducts { table, blocks, form, input, output }: &FoundProducts<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let kernel = Kernel::of(form.kind, form.is_scaled, 1);
    let block_work = kernel.row_work(form.cols).saturating_mul(form.rows as u64);
    let most = backend.recorder.meter.rates.launch_work(kernel.work_kind());
    let blocks_max = at_once(block_work, most, BLOCK_ALIGN / BLOCK_WORDS);
    for (slab, buffer) in table.entries.slabs().iter().enumerate() {
        for first in (0..blocks.count).step_by(blocks_max) {
            let count = blocks_max.min(blocks.count - first);
            let call = Call {
                kernel,
                slab: Binding::from(buffer),
                blocks: blocks.of_slab(slab, first, count),
                count,
                pairs: blocks.all_pairs(),
                bias: table.biases().unwrap_or_else(|| none.clone()),
                tiles: form.rows.div_ceil(TILE_ROWS),
                work: block_work.saturating_mul(count as u64),
            };
            dispatch(backend, call, input, output)?;
        }
    }
    if table.may_miss() {
        backend.recorder.reads_slot(None);
    }
    Ok(())
}

//! Experts that kernels look up on the device, so that the host need not read the routing back first.

use nestling_core::EngineError;
use nestling_formats::nested::TILE_ROWS;
use nestling_gpu::{
    CommandRecorder, DeviceScratch, FindExperts, FoundExperts, FoundProducts, ProductForm,
    ProductKind, ScratchRoom, TableEntries, word, work_of,
};

use super::products::{Call, call_kernel, counted_pairs};
use crate::backend::CudaBackend;
use crate::error::CudaError;
use crate::found_blocks::FoundBlocks;
use crate::kernel::Kernel;
use crate::params::{Block, EXPERT_USES_MAX, ExpertBlocksParams, MATVEC_PAIRS_MAX, Pair};
use crate::recorder::Recorder;

/// Returns a call of a kernel for blocks whose matrices have the form `like`.
pub(super) fn call_of_blocks(blocks: &FoundBlocks, kernel: Kernel, like: ProductForm) -> Call {
    let FoundBlocks { first, count, pairs, .. } = *blocks;
    let pairs_max = counted_pairs(kernel, MATVEC_PAIRS_MAX as usize);
    let work = vec![work_of(&[pairs_max, like.rows, like.cols]); count];
    Call { kernel, blocks: first, work, tiles: like.rows.div_ceil(TILE_ROWS), pairs }
}

/// Records a kernel that builds the blocks of gates and ups and of downs from the routing.
pub(super) fn find(
    backend: &mut CudaBackend,
    FindExperts { table, levels, routing, uses, noted }: &FindExperts<'_, CudaBackend>,
) -> Result<FoundExperts<FoundBlocks>, EngineError> {
    let uses = *uses;
    if uses > EXPERT_USES_MAX {
        let (what, limit) = ("uses of experts in a layer", EXPERT_USES_MAX as u64);
        return Err(CudaError::Limit { what, limit, found: uses as u64 }.into());
    }
    let (block, pair) = (size_of::<Block>() as u64, size_of::<Pair>() as u64);
    let words = uses * (3 * size_of::<Block>() + 2 * size_of::<Pair>()) / 4;
    let inner = backend.scratch(ScratchRoom::Blocks, words)?;
    let outer = inner + 2 * uses as u64 * block;
    let inner_pairs = outer + uses as u64 * block;
    let outer_pairs = inner_pairs + uses as u64 * pair;
    let recorder = &mut backend.recorder;
    if table.may_miss() {
        recorder.may_miss();
    }
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let least = if table.by_weight { table.entries.least(table.experts) } else { 0 };
    let params = ExpertBlocksParams {
        entries: table.entries.binding(),
        least,
        // Default: address 0 stands for no biases.
        biases: table.biases().unwrap_or(0),
        ids: routing.ids(),
        weights: routing.weights(),
        levels: recorder.table(&levels)?,
        inner,
        outer,
        inner_pairs,
        outer_pairs,
        notes: noted.notes + 4 * u64::from(noted.first),
        halt: recorder.miss_flag(),
        uses: word("uses of experts", uses)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts)?,
        inner_rows: word("rows of a gate", table.form.gate.rows)?,
        out_rows: word("rows of a down", table.form.down.rows)?,
        call: noted.call,
        together: MATVEC_PAIRS_MAX,
        padding: 0,
    };
    recorder.launch(params.launch(), &params)?;
    // A token uses each expert at most once.
    let are_several = levels.len() > 1;
    Ok(FoundExperts {
        inner: FoundBlocks { first: inner, count: 2 * uses, pairs: inner_pairs, are_several },
        outer: FoundBlocks { first: outer, count: uses, pairs: outer_pairs, are_several },
    })
}

/// Records the products of the blocks.
pub(super) fn multiply(
    recorder: &mut Recorder,
    FoundProducts { blocks, form, input, output, .. }: &FoundProducts<'_, CudaBackend>,
) -> Result<(), EngineError> {
    // Each of the two kernels skips the blocks of the other.
    let kernels: &[Kernel] = match (form.kind, blocks.are_several) {
        (ProductKind::Float, _) => &[Kernel::MatvecFloat],
        (ProductKind::Int8, _) if form.is_scaled => &[Kernel::MatvecScaled],
        (ProductKind::Int8, false) => &[Kernel::MatvecNested],
        (ProductKind::Int8, true) => &[Kernel::MatvecNested, Kernel::MatvecNestedRows],
    };
    kernels.iter().try_for_each(|kernel| {
        call_kernel(recorder, &call_of_blocks(blocks, *kernel, *form), input, output)
    })
}

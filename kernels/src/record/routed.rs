//! Experts that kernels find by themselves: the routing is not read back before them.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::nested::TILE_ROWS;
use nestling_gpu::{
    Device, ExpertForm, Input, Joint, Notes, Output, ProductForm, ProductKind, RoutedExperts,
    ScratchRoom, gated, input_for, word, work_of,
};

use super::experts::gated_call;
use super::products::{Call, call_kernel, counted_pairs};
use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::error::CudaError;
use crate::kernel::Kernel;
use crate::params::{Block, EXPERT_USES_MAX, ExpertBlocksParams, MATVEC_PAIRS_MAX, Pair};
use crate::recorder::Recorder;

/// Blocks in memory of the device and the pairs of rows that they are for.
#[derive(Clone, Copy)]
struct Blocks {
    first: Address,
    count: usize,
    pairs: Address,
    /// Whether some may have several pairs.
    are_several: bool,
}

impl Blocks {
    fn call(&self, kernel: Kernel, like: ProductForm) -> Call {
        let Self { first, count, pairs, .. } = *self;
        let pairs_max = counted_pairs(kernel, MATVEC_PAIRS_MAX as usize);
        let work = vec![work_of(&[pairs_max, like.rows, like.cols]); count];
        Call { kernel, blocks: first, work, tiles: like.rows.div_ceil(TILE_ROWS), pairs }
    }
}

pub(super) fn experts(
    backend: &mut CudaBackend,
    of: &RoutedExperts<'_, CudaBackend>,
) -> Result<(), EngineError> {
    let RoutedExperts { table, x, out, uses, .. } = of;
    let ExpertForm { activation, gate, down } = table.form;
    let mut notes = std::mem::take(&mut backend.notes);
    let found = find(backend, &mut notes, of);
    backend.notes = notes;
    let [inner, outer] = found?;
    let input = input_for(backend, x, gate.kind)?;
    let joint = Joint { activation, kind: down.kind, rotated: down.rotated };
    let is_fused = !inner.are_several && gate.kind == down.kind && gate.kind == ProductKind::Int8;
    let input = if is_fused {
        let call = inner.call(Kernel::MatvecGatedQuantize, gate);
        gated_call(backend, &call, joint, &input, *uses, gate.rows)?
    } else {
        let gate_up = backend.scratch(ScratchRoom::GateUp, 2 * uses * gate.rows)?;
        let to_inner = Output { values: gate_up, cols: 2 * gate.rows, write: Write::Set };
        multiply(&mut backend.recorder, inner, gate, &input, &to_inner)?;
        gated(backend, joint, gate_up, *uses, gate.rows)?
    };
    multiply(&mut backend.recorder, outer, down, &input, &Output::of(out, Write::Set))
}

/// Has the blocks of gates and ups, and those of downs, made from the routing.
fn find(
    backend: &mut CudaBackend,
    notes: &mut Notes<CudaBackend>,
    RoutedExperts { table, levels, routing, uses, .. }: &RoutedExperts<'_, CudaBackend>,
) -> Result<[Blocks; 2], EngineError> {
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
    let (noted, first) = notes.take(backend, uses)?;
    let recorder = &mut backend.recorder;
    if table.may_miss() {
        notes.uses.open();
        recorder.may_halt();
    }
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let least = if table.by_weight { table.entries.least() } else { 0 };
    let params = ExpertBlocksParams {
        entries: table.entries.address(),
        least,
        // Default: kernels take the address 0 for no biases.
        biases: table.biases().unwrap_or(0),
        ids: routing.ids(),
        weights: routing.weights(),
        levels: recorder.table(&levels)?,
        inner,
        outer,
        inner_pairs,
        outer_pairs,
        notes: noted + 4 * first as u64,
        halt: recorder.halt(),
        uses: word("uses of experts", uses)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts)?,
        inner_rows: word("rows of a gate", table.form.gate.rows)?,
        out_rows: word("rows of a down", table.form.down.rows)?,
        call: word("layers", notes.uses.calls())?,
        together: MATVEC_PAIRS_MAX,
        padding: 0,
    };
    recorder.launch(params.launch(), &params)?;
    // A token uses an expert once.
    let are_several = levels.len() > 1;
    Ok([
        Blocks { first: inner, count: 2 * uses, pairs: inner_pairs, are_several },
        Blocks { first: outer, count: uses, pairs: outer_pairs, are_several },
    ])
}

/// Multiplies what the blocks name. `like` is what their matrices have in common.
fn multiply(
    recorder: &mut Recorder,
    blocks: Blocks,
    like: ProductForm,
    input: &Input<Address>,
    output: &Output<Address>,
) -> Result<(), EngineError> {
    // Each of two kernels passes over the blocks of the other.
    let kernels: &[Kernel] = match (like.kind, blocks.are_several) {
        (ProductKind::Float, _) => &[Kernel::MatvecFloat],
        (ProductKind::Int8, false) => &[Kernel::MatvecNested],
        (ProductKind::Int8, true) => &[Kernel::MatvecNested, Kernel::MatvecNestedRows],
    };
    kernels
        .iter()
        .try_for_each(|kernel| call_kernel(recorder, &blocks.call(*kernel, like), input, output))
}

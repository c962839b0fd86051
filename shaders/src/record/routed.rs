//! Experts that shaders find by themselves: the routing is not read back before them.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::nested::TILE_ROWS;
use nestling_gpu::{
    Device, ExpertForm, GpuExpertTable, Input, Joint, Notes, Output, ProductForm, RoutedExperts,
    ScratchRoom, at_once, gated, input_for, word,
};

use super::products::{Call, Kernel, dispatch};
use crate::backend::WgpuBackend;
use crate::params::ExpertBlocksParams;
use crate::recorder::{Binding, spread};

/// Words of a block, and words that a binding's first one is a multiple of.
const BLOCK_WORDS: usize = 8;
const ALIGN: usize = 64;

/// Blocks of all slabs and the pairs of rows that they are for, in words.
struct Blocks {
    made: Binding,
    first: usize,
    /// Blocks of one slab, and words from one slab to the next.
    count: usize,
    stride: usize,
    /// Where pairs begin, and how many there are.
    pairs: (usize, usize),
}

impl Blocks {
    fn part(&self, first: usize, words: usize) -> Binding {
        let (offset, size) = (4 * first as u64, Some(4 * words as u64));
        Binding { buffer: self.made.buffer.clone(), offset, size }
    }

    /// So many of a slab, from one on.
    fn of_slab(&self, slab: usize, first: usize, count: usize) -> Binding {
        let first = self.first + slab * self.stride + BLOCK_WORDS * first;
        self.part(first, BLOCK_WORDS * count)
    }
}

pub(super) fn experts(
    backend: &mut WgpuBackend,
    of: &RoutedExperts<'_, WgpuBackend>,
) -> Result<(), EngineError> {
    let RoutedExperts { table, x, out, uses, .. } = of;
    let ExpertForm { activation, gate, down } = table.form;
    let mut notes = std::mem::take(&mut backend.notes);
    let found = find(backend, &mut notes, of, table.entries.slabs().len());
    backend.notes = notes;
    let [inner, outer] = found?;
    let input = input_for(backend, x, gate.kind)?;
    let gate_up = backend.scratch(ScratchRoom::GateUp, 2 * uses * gate.rows)?;
    let to_inner = Output { values: gate_up.clone(), cols: 2 * gate.rows, write: Write::Set };
    multiply(backend, table, &inner, gate, &input, &to_inner)?;
    let joint = Joint { activation, kind: down.kind, rotated: down.rotated };
    let input = gated(backend, joint, gate_up, *uses, gate.rows)?;
    multiply(backend, table, &outer, down, &input, &Output::of(out, Write::Set))?;
    if table.may_miss() {
        backend.recorder.reads_slot(None);
    }
    Ok(())
}

/// Has the blocks of gates and ups, and those of downs, made from the routing.
fn find(
    backend: &mut WgpuBackend,
    notes: &mut Notes<WgpuBackend>,
    RoutedExperts { table, levels, routing, uses, .. }: &RoutedExperts<'_, WgpuBackend>,
    slabs: usize,
) -> Result<[Blocks; 2], EngineError> {
    let uses = *uses;
    let strides = [2 * uses, uses].map(|count| (count * BLOCK_WORDS).next_multiple_of(ALIGN));
    let pairs = (2 * uses).next_multiple_of(ALIGN);
    let out_first = slabs * strides[0];
    let inner_pairs = out_first + slabs * strides[1];
    let made = backend.scratch(ScratchRoom::Blocks, inner_pairs + 2 * pairs)?;
    if table.may_miss() {
        notes.uses.open();
    }
    let (noted_in, noted) = notes.take(backend, uses)?;
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
        noted: word("uses of experts", noted)?,
        call: word("layers", notes.uses.calls())?,
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
        Binding::from(&table.entries.memory),
        made.clone(),
        noted_in,
        Binding::from(&recorder.halt),
    ];
    let cost = (spread((slabs * uses).div_ceil(64)), (slabs * uses * uses) as u64);
    recorder.dispatch(&pipelines.expert_blocks, &bindings, &params, cost)?;
    let blocks = |first, count: usize, stride, pairs| {
        let made = made.clone();
        Blocks { made, first, count, stride, pairs: (pairs, uses) }
    };
    Ok([
        blocks(0, 2 * uses, strides[0], inner_pairs),
        blocks(out_first, uses, strides[1], inner_pairs + pairs),
    ])
}

/// Multiplies what the blocks name, slab by slab. `like` is what their matrices have in common.
fn multiply(
    backend: &mut WgpuBackend,
    table: &GpuExpertTable<WgpuBackend>,
    blocks: &Blocks,
    like: ProductForm,
    input: &Input<Binding>,
    output: &Output<Binding>,
) -> Result<(), EngineError> {
    let none = backend.scratch(ScratchRoom::Nothing, 1)?;
    let kernel = Kernel::of(like.kind, 1);
    let block_work = kernel.row_work(like.cols).saturating_mul(like.rows as u64);
    let most = backend.rates().launch_work(kernel.work_kind());
    let blocks_max = at_once(block_work, most, ALIGN / BLOCK_WORDS);
    for (slab, buffer) in table.entries.slabs().iter().enumerate() {
        for first in (0..blocks.count).step_by(blocks_max) {
            let count = blocks_max.min(blocks.count - first);
            let call = Call {
                kernel,
                slab: Binding::from(buffer),
                blocks: blocks.of_slab(slab, first, count),
                count,
                pairs: blocks.part(blocks.pairs.0, 2 * blocks.pairs.1),
                bias: table.biases().unwrap_or_else(|| none.clone()),
                tiles: like.rows.div_ceil(TILE_ROWS),
                work: block_work.saturating_mul(count as u64),
            };
            dispatch(backend, call, input, output)?;
        }
    }
    Ok(())
}

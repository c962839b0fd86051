//! Experts that kernels find by themselves: the routing is not read back.

use nestling_core::EngineError;
use nestling_core::backend::Write;
use nestling_formats::Level;
use nestling_formats::nested::TILE_ROWS;
use nestling_gpu::{
    ExpertForm, NOTED_USES_MAX, NotedUses, ProductForm, ProductKind, RoutedRows, work_of,
};

use super::Tools;
use super::experts::{Joint, gated, gated_products};
use super::products::{Call, Input, Output, call_kernel, counted_pairs, input_for};
use crate::driver::{Address, DeviceMemory};
use crate::error::CudaError;
use crate::expert_table::CudaExpertTable;
use crate::kernel::Kernel;
use crate::memory::{CudaBuffer, CudaRouting, word};
use crate::params::{Block, EXPERT_USES_MAX, ExpertBlocksParams, MATVEC_PAIRS_MAX, Pair};
use crate::recorder::Recorder;

/// The experts that kernels found in a step.
#[derive(Default)]
pub(crate) struct Notes {
    memory: Option<DeviceMemory>,
    pub uses: NotedUses,
}

impl Notes {
    /// Room for so many uses more.
    fn take(&mut self, recorder: &mut Recorder, uses: usize) -> Result<Address, EngineError> {
        let first = self.uses.call(uses)?;
        let memory = match &self.memory {
            Some(memory) => memory,
            None => {
                let bytes = 4 * NOTED_USES_MAX as u64;
                self.memory.insert(recorder.driver.allocate("uses of experts", bytes)?)
            }
        };
        Ok(memory.address() + 4 * first as u64)
    }

    /// What is to be read back.
    pub fn part(&self) -> Option<(Address, usize)> {
        let memory = self.memory.as_ref().filter(|_| self.uses.count() > 0)?;
        Some((memory.address(), 4 * self.uses.count()))
    }
}

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
    tools: &mut Tools<'_>,
    (table, notes): (&CudaExpertTable, &mut Notes),
    (levels, routing): (&[Level], &CudaRouting),
    x: &CudaBuffer,
    out: &mut CudaBuffer,
) -> Result<(), EngineError> {
    let ExpertForm { activation, gate, down } = table.form;
    let (routed, out_cols) = (routing.rows, out.cols);
    let rows = RoutedRows { x: (x.rows, x.cols), routed, levels, out_cols };
    table.form.check(rows, |level| table.check(level))?;
    let uses = x.rows * routing.per_token;
    out.resize(tools.recorder, uses)?;
    let [inner, outer] = find(tools, (table, notes), (levels, routing), uses)?;
    let input = input_for(tools, x, gate.kind)?;
    let joint = Joint { activation, kind: down.kind, rotated: down.rotated };
    let is_fused = !inner.are_several && gate.kind == down.kind && gate.kind == ProductKind::Int8;
    if is_fused {
        let call = inner.call(Kernel::MatvecGatedQuantize, gate);
        let input = gated_products(tools, (&call, joint), &input, (uses, gate.rows))?;
        return multiply(tools, (outer, down), &input, &Output::of(out, Write::Set));
    }
    let gate_up = tools.scratch.gate_up.of(tools.recorder, 2 * uses * gate.rows)?;
    let to_inner = Output { values: gate_up, cols: 2 * gate.rows, write: Write::Set };
    multiply(tools, (inner, gate), &input, &to_inner)?;
    let input = gated(tools, joint, gate_up, (uses, gate.rows))?;
    multiply(tools, (outer, down), &input, &Output::of(out, Write::Set))
}

/// Has the blocks of gates and ups, and those of downs, made from the routing.
fn find(
    Tools { recorder, scratch }: &mut Tools<'_>,
    (table, notes): (&CudaExpertTable, &mut Notes),
    (levels, routing): (&[Level], &CudaRouting),
    uses: usize,
) -> Result<[Blocks; 2], EngineError> {
    if uses > EXPERT_USES_MAX {
        let (what, limit) = ("uses of experts in a layer", EXPERT_USES_MAX as u64);
        return Err(CudaError::Limit { what, limit, found: uses as u64 }.into());
    }
    let (block, pair) = (size_of::<Block>() as u64, size_of::<Pair>() as u64);
    let inner =
        scratch.blocks.of(recorder, uses * (3 * size_of::<Block>() + 2 * size_of::<Pair>()) / 4)?;
    let outer = inner + 2 * uses as u64 * block;
    let inner_pairs = outer + uses as u64 * block;
    let outer_pairs = inner_pairs + uses as u64 * pair;
    let noted = notes.take(recorder, uses)?;
    if table.may_miss() {
        notes.uses.open();
        recorder.may_halt();
    }
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let [entries, least, biases] = table.addresses();
    let params = ExpertBlocksParams {
        entries,
        least,
        biases,
        ids: routing.ids(),
        weights: routing.weights(),
        levels: recorder.table(&levels)?,
        inner,
        outer,
        inner_pairs,
        outer_pairs,
        notes: noted,
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
    tools: &mut Tools<'_>,
    (blocks, like): (Blocks, ProductForm),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    // Each of two kernels passes over the blocks of the other.
    let kernels: &[Kernel] = match (like.kind, blocks.are_several) {
        (ProductKind::Float, _) => &[Kernel::MatvecFloat],
        (ProductKind::Int8, false) => &[Kernel::MatvecNested],
        (ProductKind::Int8, true) => &[Kernel::MatvecNested, Kernel::MatvecNestedRows],
    };
    kernels
        .iter()
        .try_for_each(|kernel| call_kernel(tools, &blocks.call(*kernel, like), input, output))
}

//! Experts that shaders find by themselves: the routing is not read back.

use bytemuck::{Pod, Zeroable};
use nestling_engine::EngineError;
use nestling_engine::backend::FeedForward;
use nestling_formats::Level;
use nestling_formats::nested::TILE_ROWS;

use super::Tools;
use super::experts::gated;
use super::products::{Call, Input, Kernel, Output, Pair, Write, dispatch, input_of};
use crate::device::Gpu;
use crate::error::WgpuError;
use crate::expert_table::WgpuExpertTable;
use crate::matrix::WgpuMatrix;
use crate::memory::{WgpuBuffer, WgpuRouting, expect, word};
use crate::recorder::{Binding, spread};

/// Uses that one step may note.
const NOTES_MAX: usize = 1 << 16;

/// Words of a block, and blocks that a binding's first one is a multiple of.
const BLOCK_WORDS: usize = 8;
const BLOCKS_ALIGN: usize = 8;

/// The experts that shaders found in a step.
#[derive(Default)]
pub(crate) struct Notes {
    buffer: Option<wgpu::Buffer>,
    /// Uses noted by what was recorded.
    pub used: usize,
    /// Those of the last step, read back.
    pub ids: Vec<u32>,
}

impl Notes {
    /// Room for so many uses more, and where they begin.
    fn take(&mut self, gpu: &Gpu, uses: usize) -> Result<(Binding, usize), WgpuError> {
        let first = self.used;
        if first + uses > NOTES_MAX {
            let (limit, found) = (NOTES_MAX as u64, (first + uses) as u64);
            return Err(WgpuError::Limit { what: "uses of experts in a step", limit, found });
        }
        let buffer = match &self.buffer {
            Some(buffer) => buffer,
            None => self.buffer.insert(gpu.buffer("uses of experts", 4 * NOTES_MAX as u64)?),
        };
        self.used += uses;
        Ok((Binding::from(buffer), first))
    }

    /// What is to be read back.
    pub fn part(&self) -> Option<(&wgpu::Buffer, u64, u64)> {
        let buffer = self.buffer.as_ref().filter(|_| self.used > 0)?;
        Some((buffer, 0, 4 * self.used as u64))
    }
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    uses: u32,
    per_token: u32,
    experts: u32,
    slabs: u32,
    inner_rows: u32,
    out_rows: u32,
    inner_stride: u32,
    out_stride: u32,
    noted: u32,
}

/// Blocks of all slabs.
struct Blocks {
    all: Binding,
    /// Blocks of one slab, and from one to the next.
    count: usize,
    stride: usize,
}

impl Blocks {
    fn of_slab(&self, slab: usize) -> Binding {
        let bytes = |blocks: usize| (4 * BLOCK_WORDS * blocks) as u64;
        let (offset, size) = (bytes(slab * self.stride), Some(bytes(self.count)));
        Binding { buffer: self.all.buffer.clone(), offset, size }
    }
}

pub(super) fn experts(
    tools: &mut Tools<'_>,
    (table, notes): (&WgpuExpertTable, &mut Notes),
    (levels, routing): (&[Level], &WgpuRouting),
    x: &WgpuBuffer,
    out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    let Some(first) = table.experts.first() else { return Ok(()) };
    let FeedForward { gate, down, .. } = &**first;
    expect("rows of the routing", x.rows, routing.rows)?;
    expect("rows of levels", x.rows, levels.len())?;
    expect("inputs of an expert", gate.matrix.cols, x.cols)?;
    expect("outputs of an expert", down.matrix.rows, out.cols)?;
    expect("outputs of gate", gate.matrix.rows, down.matrix.cols)?;
    for (index, level) in levels.iter().enumerate() {
        if !levels[..index].contains(level) {
            table.check(*level)?;
        }
    }
    let uses = x.rows * routing.per_token;
    out.resize(tools.gpu, uses)?;
    let [inner, outer] = find(tools, (table, notes), (levels, routing), uses)?;
    let input = input_of(tools, x, std::iter::once(&gate.matrix))?;
    let width = gate.matrix.rows;
    let per_token = routing.per_token.max(1);
    let numbered = 0..uses as u32;
    let inner_pairs: Vec<Pair> = numbered.clone().map(|n| [n / per_token as u32, n]).collect();
    let out_pairs: Vec<Pair> = numbered.map(|n| [n, n]).collect();
    let gate_up = tools.scratch.gate_up.of(tools.gpu, 2 * uses * width)?;
    let to_inner = Output { values: gate_up.clone(), cols: 2 * width, write: Write::Set };
    multiply(tools, (table, &gate.matrix), (&inner, &inner_pairs), &input, &to_inner)?;
    let input = gated(tools, first, &gate_up, (uses, width))?;
    let to_out = Output::of(out, Write::Set);
    multiply(tools, (table, &down.matrix), (&outer, &out_pairs), &input, &to_out)
}

/// Has the blocks of gates and ups, and those of downs, made from the routing.
fn find(
    tools: &mut Tools<'_>,
    (table, notes): (&WgpuExpertTable, &mut Notes),
    (levels, routing): (&[Level], &WgpuRouting),
    uses: usize,
) -> Result<[Blocks; 2], EngineError> {
    let Some(first) = table.experts.first() else {
        return Err(EngineError::mismatch("experts of a table", "some", "none"));
    };
    let slabs = table.slabs.len();
    let blocks = |all: Binding, count: usize, stride| Blocks { all, count, stride };
    let strides = [2 * uses, uses].map(|count| count.next_multiple_of(BLOCKS_ALIGN));
    let words = strides.map(|stride| slabs * stride * BLOCK_WORDS);
    let inner = tools.scratch.inner_blocks.of(tools.gpu, words[0])?;
    let outer = tools.scratch.out_blocks.of(tools.gpu, words[1])?;
    let (notes, noted) = notes.take(tools.gpu, uses)?;
    let params = Params {
        uses: word("uses of experts", uses)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts.len())?,
        slabs: word("slabs", slabs)?,
        inner_rows: word("rows of a gate", first.gate.matrix.rows)?,
        out_rows: word("rows of a down", first.down.matrix.rows)?,
        inner_stride: word("blocks", strides[0])?,
        out_stride: word("blocks", strides[1])?,
        noted: word("uses of experts", noted)?,
    };
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    tools.recorder.make_room()?;
    let levels = tools.recorder.table(&levels)?;
    let bindings = [
        Binding::from(&routing.ids),
        levels,
        Binding::from(&table.entries),
        inner.clone(),
        outer.clone(),
        notes,
    ];
    let cost = (spread((slabs * uses).div_ceil(64)), (slabs * uses) as u64);
    tools.recorder.dispatch(&tools.pipelines.expert_blocks, &bindings, &params, cost)?;
    Ok([blocks(inner, 2 * uses, strides[0]), blocks(outer, uses, strides[1])])
}

/// Multiplies what the blocks name, slab by slab. `like` is one of their matrices.
fn multiply(
    tools: &mut Tools<'_>,
    (table, like): (&WgpuExpertTable, &WgpuMatrix),
    (blocks, pairs): (&Blocks, &[Pair]),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let none = tools.scratch.none.of(tools.gpu, 1)?;
    for (slab, buffer) in table.slabs.iter().enumerate() {
        tools.recorder.make_room()?;
        let call = Call {
            kernel: Kernel::of(like.kind, 1),
            slab: Binding::from(buffer),
            blocks: (blocks.of_slab(slab), blocks.count),
            pairs: tools.recorder.table(pairs)?,
            bias: none.clone(),
            tiles: like.rows.div_ceil(TILE_ROWS),
            multiplications: (blocks.count * like.rows * like.cols) as u64,
        };
        dispatch(tools, &call, input, output)?;
    }
    Ok(())
}

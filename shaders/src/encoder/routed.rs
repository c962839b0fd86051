//! Experts that shaders find by themselves: the routing is not read back.

use bytemuck::{Pod, Zeroable};
use nestling_engine::EngineError;
use nestling_formats::Level;
use nestling_formats::nested::TILE_ROWS;

use super::Tools;
use super::experts::{Joint, gated};
use super::products::{Call, Input, Kernel, Output, Pair, Write, dispatch, input_for};
use crate::device::{Gpu, Memory};
use crate::error::WgpuError;
use crate::expert_table::{Like, Side, WgpuExpertTable};
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
    buffer: Option<Memory>,
    /// Where each call's uses end.
    ends: Vec<usize>,
    /// Those of the last step, read back.
    pub ids: Vec<u32>,
    /// The call that lacked an expert, read back.
    missed: Option<usize>,
    /// Whether what was recorded may lack an expert, and nobody knows yet.
    is_open: bool,
}

impl Notes {
    /// A step begins. True if shaders must be told that nothing is missing any more.
    pub fn begin(&mut self) -> bool {
        self.ends.clear();
        self.missed = None;
        std::mem::take(&mut self.is_open)
    }

    /// Uses noted by what was recorded.
    fn used(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Room for so many uses more, and where they begin.
    fn take(&mut self, gpu: &Gpu, uses: usize) -> Result<(Binding, usize), WgpuError> {
        let first = self.used();
        if first + uses > NOTES_MAX {
            let (limit, found) = (NOTES_MAX as u64, (first + uses) as u64);
            return Err(WgpuError::Limit { what: "uses of experts in a step", limit, found });
        }
        let buffer = match &self.buffer {
            Some(buffer) => buffer,
            None => self.buffer.insert(gpu.buffer("uses of experts", 4 * NOTES_MAX as u64)?),
        };
        self.ends.push(first + uses);
        Ok((Binding::from(buffer), first))
    }

    /// What is to be read back.
    pub fn part(&self) -> Option<(&wgpu::Buffer, u64, u64)> {
        let buffer = self.buffer.as_ref().filter(|_| self.used() > 0)?;
        Some((&buffer.raw, 0, 4 * self.used() as u64))
    }

    /// Whether a call may have lacked an expert.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// What shaders left: the number of the call that lacked an expert, from 1 on.
    pub fn close(&mut self, halt: u32) {
        self.missed = (halt as usize).checked_sub(1).filter(|call| *call < self.ends.len());
        self.is_open = halt != 0;
    }

    /// The call that lacked an expert; it and those behind it did not take place.
    pub fn take_missed(&mut self) -> Option<usize> {
        let missed = self.missed.take()?;
        self.ids.truncate(self.ends.get(missed).copied().unwrap_or(0));
        self.ends.truncate(missed);
        self.is_open = false;
        Some(missed)
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
    call: u32,
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
    let Like { activation, gate, down } = table.like;
    expect("rows of the routing", x.rows, routing.rows)?;
    expect("rows of levels", x.rows, levels.len())?;
    expect("inputs of an expert", gate.cols, x.cols)?;
    expect("outputs of an expert", down.rows, out.cols)?;
    expect("outputs of gate", gate.rows, down.cols)?;
    for (index, level) in levels.iter().enumerate() {
        if !levels[..index].contains(level) {
            table.check(*level)?;
        }
    }
    let uses = x.rows * routing.per_token;
    out.resize(tools.gpu, uses)?;
    let slabs = table.slabs();
    let found = (levels, routing, slabs.len());
    let [inner, outer] = find(tools, (table, notes), found, uses)?;
    let input = input_for(tools, x, gate.kind)?;
    let width = gate.rows;
    let per_token = routing.per_token.max(1);
    let numbered = 0..uses as u32;
    let inner_pairs: Vec<Pair> = numbered.clone().map(|n| [n / per_token as u32, n]).collect();
    let out_pairs: Vec<Pair> = numbered.map(|n| [n, n]).collect();
    let gate_up = tools.scratch.gate_up.of(tools.gpu, 2 * uses * width)?;
    let to_inner = Output { values: gate_up.clone(), cols: 2 * width, write: Write::Set };
    multiply(tools, (&slabs, gate), (&inner, &inner_pairs), &input, &to_inner)?;
    let joint = Joint { activation, kind: down.kind, rotated: down.rotated };
    let input = gated(tools, joint, &gate_up, (uses, width))?;
    let to_out = Output::of(out, Write::Set);
    multiply(tools, (&slabs, down), (&outer, &out_pairs), &input, &to_out)
}

/// Has the blocks of gates and ups, and those of downs, made from the routing.
fn find(
    tools: &mut Tools<'_>,
    (table, notes): (&WgpuExpertTable, &mut Notes),
    (levels, routing, slabs): (&[Level], &WgpuRouting, usize),
    uses: usize,
) -> Result<[Blocks; 2], EngineError> {
    let blocks = |all: Binding, count: usize, stride| Blocks { all, count, stride };
    let strides = [2 * uses, uses].map(|count| count.next_multiple_of(BLOCKS_ALIGN));
    let words = strides.map(|stride| slabs * stride * BLOCK_WORDS);
    let inner = tools.scratch.inner_blocks.of(tools.gpu, words[0])?;
    let outer = tools.scratch.out_blocks.of(tools.gpu, words[1])?;
    notes.is_open |= table.may_miss();
    let (noted_in, noted) = notes.take(tools.gpu, uses)?;
    let params = Params {
        uses: word("uses of experts", uses)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts)?,
        slabs: word("slabs", slabs)?,
        inner_rows: word("rows of a gate", table.like.gate.rows)?,
        out_rows: word("rows of a down", table.like.down.rows)?,
        inner_stride: word("blocks", strides[0])?,
        out_stride: word("blocks", strides[1])?,
        noted: word("uses of experts", noted)?,
        call: word("layers", notes.ends.len())?,
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
        noted_in,
        Binding::from(&tools.recorder.halt),
    ];
    let cost = (spread((slabs * uses).div_ceil(64)), (slabs * uses) as u64);
    tools.recorder.dispatch(&tools.pipelines.expert_blocks, &bindings, &params, cost)?;
    Ok([blocks(inner, 2 * uses, strides[0]), blocks(outer, uses, strides[1])])
}

/// Multiplies what the blocks name, slab by slab. `like` is what they have in
/// common.
fn multiply(
    tools: &mut Tools<'_>,
    (slabs, like): (&[wgpu::Buffer], Side),
    (blocks, pairs): (&Blocks, &[Pair]),
    input: &Input,
    output: &Output,
) -> Result<(), EngineError> {
    let none = tools.scratch.none.of(tools.gpu, 1)?;
    for (slab, buffer) in slabs.iter().enumerate() {
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

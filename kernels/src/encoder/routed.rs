//! Experts that kernels find by themselves: the routing is not read back.

use nestling_engine::EngineError;
use nestling_engine::backend::FeedForward;
use nestling_formats::Level;
use nestling_formats::nested::GROUP;

use super::Tools;
use super::experts::gated;
use super::products::{Input, input_of, tiles_per_block};
use crate::driver::{Address, DeviceMemory};
use crate::error::CudaError;
use crate::expert_table::CudaExpertTable;
use crate::matrix::CudaMatrix;
use crate::memory::{CudaBuffer, CudaRouting, expect, word};
use crate::params::ExpertProductParams;
use crate::recorder::Recorder;
use crate::scratch::Quantized;

/// Uses that one step may note.
const NOTES_MAX: usize = 1 << 16;

/// The experts that kernels found in a step.
#[derive(Default)]
pub(crate) struct Notes {
    memory: Option<DeviceMemory>,
    /// Uses noted by what was recorded.
    pub used: usize,
    /// Those of the last step, read back.
    pub ids: Vec<u32>,
}

impl Notes {
    /// Notes so many uses.
    fn take(
        &mut self,
        recorder: &mut Recorder,
        (ids, uses): (Address, usize),
    ) -> Result<(), CudaError> {
        let first = self.used;
        if first + uses > NOTES_MAX {
            let (limit, found) = (NOTES_MAX as u64, (first + uses) as u64);
            return Err(CudaError::Limit { what: "uses of experts in a step", limit, found });
        }
        let memory = match &self.memory {
            Some(memory) => memory,
            None => {
                let bytes = 4 * NOTES_MAX as u64;
                self.memory.insert(recorder.driver.allocate("uses of experts", bytes)?)
            }
        };
        self.used += uses;
        recorder.copy(ids, memory.address() + 4 * first as u64, 4 * uses as u64)
    }

    /// What is to be read back.
    pub fn part(&self) -> Option<(Address, usize)> {
        let memory = self.memory.as_ref().filter(|_| self.used > 0)?;
        Some((memory.address(), 4 * self.used))
    }
}

/// Uses of experts of one table.
struct Uses<'a> {
    table: &'a CudaExpertTable,
    routing: &'a CudaRouting,
    /// Level of each row.
    levels: Address,
}

pub(super) fn experts(
    tools: &mut Tools<'_>,
    (table, notes): (&CudaExpertTable, &mut Notes),
    (levels, routing): (&[Level], &CudaRouting),
    x: &CudaBuffer,
    out: &mut CudaBuffer,
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
    let (rows, width) = (x.rows * routing.per_token, gate.matrix.rows);
    out.resize(tools.recorder, rows)?;
    notes.take(tools.recorder, (routing.ids(), rows))?;
    let levels: Vec<u32> = levels.iter().map(|level| level.index() as u32).collect();
    let uses = Uses { table, routing, levels: tools.recorder.table(&levels)? };
    let input = input_of(tools, x, std::iter::once(&gate.matrix))?;
    let gate_up = tools.scratch.gate_up.of(tools.recorder, 2 * rows * width)?;
    multiply(tools, &uses, (&input, &gate.matrix, Part::GateUp), (gate_up, 2 * width))?;
    let input = gated(tools, first, gate_up, (rows, width))?;
    multiply(tools, &uses, (&input, &down.matrix, Part::Down), (out.address(), out.cols))
}

/// Which matrices of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    GateUp,
    Down,
}

/// Multiplies with the matrices of what the routing names. `like` is one of them.
fn multiply(
    Tools { recorder, .. }: &mut Tools<'_>,
    Uses { table, routing, levels }: &Uses<'_>,
    (input, like, part): (&Input, &CudaMatrix, Part),
    (out, out_cols): (Address, usize),
) -> Result<(), EngineError> {
    let groups = like.cols.div_ceil(GROUP);
    let x = input.quantized.unwrap_or(Quantized { values: 0, scales: 0 });
    let params = ExpertProductParams {
        matrices: table.address(),
        ids: routing.ids(),
        levels: *levels,
        x_values: x.values,
        x_scales: x.scales,
        out,
        x_groups: word("groups", groups)?,
        out_cols: word("columns", out_cols)?,
        uses: word("uses of experts", routing.rows * routing.per_token)?,
        per_token: word("experts of a token", routing.per_token)?,
        experts: word("experts", table.experts.len())?,
        first_matrix: if part == Part::GateUp { 0 } else { 2 },
        x_per_token: u32::from(part == Part::GateUp),
        tiles_per_block: tiles_per_block(groups),
    };
    let launch = params.launch(word("tiles", like.tiles())?);
    Ok(recorder.launch(launch, &params)?)
}

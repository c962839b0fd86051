//! SwiGLU feed-forward parts, several experts at once.
//!
//! With int8 activations there are two stages for all experts together: gate, up, SwiGLU and the
//! quantization of the result, by groups of 32 columns; then down, by tiles. Every part does its
//! columns for all experts, so the experts' different numbers of rows need no balancing.

use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_formats::{Activation, Level};

use super::products::{
    FEW_ROWS, Int8Product, Output, ROW_BLOCK, RowMap, Tiles, Write, multiply_float, multiply_int8,
    of_level,
};
use crate::backend::{FeedForward, Linear};
use crate::cpu::columns::{ColumnsMut, Cut, for_each_block};
use crate::cpu::device::{Cpu, CpuBuffer, CpuMatrix, Team, Work};
use crate::cpu::nested::TileValues;
use crate::cpu::rows::{QuantizedGroup, RowList};
use crate::error::EngineError;
use crate::recycle::recycle;

/// Groups of gate that are computed before the same ones of up, for one row and for few: matrices that come
/// from memory in long runs come faster (PERF.md, "Runs of gate and up").
pub(super) const RUN: usize = 32;
const FEW_ROWS_RUN: usize = 4;

/// One feed-forward part at one level, for some rows.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Use<'a> {
    pub weights: &'a FeedForward<Cpu>,
    pub level: Level,
    pub rows: RowMap<'a>,
}

/// The first product of a [`Use`]; its rows come one after another in the inner activations.
pub(in crate::cpu) struct Inner<'a> {
    activation: Activation,
    gate: Tiles<'a>,
    up: Tiles<'a>,
    biases: [Option<&'a [f32]>; 2],
    rows: &'a [u32],
    /// Row of the inner activations that its first row goes to.
    start: usize,
    width: usize,
    /// Whether down takes its inputs rotated.
    rotated: bool,
}

/// Computes all uses; each row of the output belongs to one of them. `x` is `[rows, D]`.
pub(super) fn feed_forward(
    team: &Team,
    work: &mut Work,
    uses: &[Use],
    x: &CpuBuffer,
    out: Output,
) -> Result<(), EngineError> {
    for used in uses {
        let FeedForward { gate, up, down, .. } = used.weights;
        super::expect("inputs of a feed-forward part", gate.matrix.cols(), x.cols)?;
        super::expect("inputs of up", gate.matrix.cols(), up.matrix.cols())?;
        super::expect("gate and up", gate.matrix.rows(), up.matrix.rows())?;
        super::expect("inputs of down", gate.matrix.rows(), down.matrix.cols())?;
        super::expect("outputs of down", out.cols, down.matrix.rows())?;
        super::check_bias(gate)?;
        super::check_bias(up)?;
        super::check_bias(down)?;
    }
    let width = uses.first().map_or(0, |used| used.weights.gate.matrix.rows());
    let int8 = |used: &Use| {
        let FeedForward { gate, up, down, .. } = used.weights;
        gate.matrix.rows() == width
            && [gate, up, down].iter().all(|linear| linear.matrix.takes_int8())
    };
    if uses.iter().all(int8) {
        team.quantize(&x.values, x.cols, &mut work.x);
        return fused(team, work, uses, width, out);
    }
    for used in uses {
        let part = Output { values: &mut *out.values, cols: out.cols, write: out.write };
        separate(team, work, used, x, part)?;
    }
    Ok(())
}

fn fused(
    team: &Team,
    work: &mut Work,
    uses: &[Use],
    width: usize,
    out: Output,
) -> Result<(), EngineError> {
    let mut inners: Vec<Inner> = recycle(std::mem::take(&mut work.inners));
    let mut rows = 0;
    for used in uses {
        let FeedForward { activation, gate, up, down } = used.weights;
        inners.push(Inner {
            activation: *activation,
            gate: Tiles::new(&gate.matrix, used.level)?,
            up: Tiles::new(&up.matrix, used.level)?,
            biases: [gate.bias.as_deref(), up.bias.as_deref()],
            rows: used.rows.x,
            start: rows,
            width,
            rotated: down.matrix.is_rotated(),
        });
        rows += used.rows.len();
    }
    let (x, inner, packed) = (&work.x, &mut work.inner, &mut work.packed);
    packed.pack(team, x, inners.iter().map(|inner| inner.rows));
    let packed = &*packed;
    inner.resize(rows, width);
    let groups = inner.groups();
    let multiplications = 2 * rows * width * x.groups() * GROUP;
    let size = team.cols_per_part(groups, 1, multiplications);
    let forks = (&*team.pool, team.forks(multiplications));
    let cuts = (Cut::Every(rows), Cut::Every(size));
    for_each_block(forks, (inner.cells_mut(), groups), cuts, &|_, block| {
        for (index, inner) in inners.iter().enumerate() {
            inner.fill(team, packed.list(index, x, inner.rows), block);
        }
    });
    work.inners = recycle(inners);
    count_to(rows, &mut work.all);
    let mut products = work.products.list();
    let mut start = 0;
    for used in uses {
        let down = &used.weights.down;
        let tiles = Tiles::new(&down.matrix, used.level)?;
        let (bias, rows) = (down.bias.as_deref(), down.matrix.rows());
        let map = RowMap { x: &work.all[start..][..used.rows.len()], out: used.rows.out };
        products.push((Int8Product { tiles, bias, first: 0, rows }, map));
        start += used.rows.len();
    }
    multiply_int8(team, &mut work.products, &products, inner, out);
    work.products.put_back(products);
    Ok(())
}

/// Makes `numbers` begin with 0, 1, … `count - 1`.
pub(super) fn count_to(count: usize, numbers: &mut Vec<u32>) {
    let have = numbers.len();
    numbers.extend((have..count.max(have)).map(|number| number as u32));
}

impl Inner<'_> {
    /// Computes the groups of one block.
    fn fill(&self, team: &Team, rows: RowList, block: &mut ColumnsMut<'_, QuantizedGroup>) {
        match rows.rows().len() {
            1 => self.fill_by::<1, RUN>(team, rows, block),
            2..=FEW_ROWS => self.fill_by::<FEW_ROWS, FEW_ROWS_RUN>(team, rows, block),
            _ => self.fill_by::<ROW_BLOCK, 1>(team, rows, block),
        }
    }

    /// The same, `N` rows at a time, `G` groups of gate and then the same of up.
    fn fill_by<const N: usize, const G: usize>(
        &self,
        team: &Team,
        rows: RowList,
        block: &mut ColumnsMut<'_, QuantizedGroup>,
    ) {
        let range = block.range();
        let (mut gate, mut up) = ([[[0.0; GROUP]; N]; G], [[[0.0; GROUP]; N]; G]);
        let mut values = [[0.0; TILE_ROWS]; N];
        for first in range.clone().step_by(G) {
            let groups = first..range.end.min(first + G);
            for (index, rows) in rows.chunks(N).enumerate() {
                let count = rows.rows().len();
                let values = &mut values[..count];
                for (tiles, out) in [(&self.gate, &mut gate), (&self.up, &mut up)] {
                    for (group, out) in groups.clone().zip(&mut *out) {
                        multiply(team, tiles, (group, self.live(group)), rows, (values, out));
                    }
                }
                for (group, (gate, up)) in groups.clone().zip(gate.iter_mut().zip(&mut up)) {
                    let pairs = gate.iter_mut().zip(up).take(count);
                    for (row, (gate, up)) in pairs.enumerate() {
                        let row = block.row(self.start + index * N + row);
                        let cells = &mut row[group - range.start..][..1];
                        self.finish(team, group, (gate, up), cells);
                    }
                }
            }
        }
    }

    /// Outputs of a group of 32 that there are.
    fn live(&self, group: usize) -> usize {
        GROUP.min(self.width - group * GROUP)
    }

    /// From the products of one group of one row to quantized activations.
    fn finish(
        &self,
        team: &Team,
        group: usize,
        (gate, up): (&mut [f32; GROUP], &mut [f32; GROUP]),
        cells: &mut [QuantizedGroup],
    ) {
        let live = self.live(group);
        let columns = group * GROUP..group * GROUP + live;
        for (values, bias) in [(&mut *gate, self.biases[0]), (up, self.biases[1])] {
            let bias = bias.map_or(&[][..], |bias| &bias[columns.clone()]);
            values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
        }
        team.kernels.gated(self.activation, &mut gate[..live], &up[..live]);
        if self.rotated {
            gate[live..].fill(0.0);
            team.kernels.hadamard(gate);
        }
        team.kernels.quantize(&gate[..live], cells);
    }
}

/// The one or two tiles of a group of 32 outputs; `values` is room for those of one tile.
fn multiply(
    team: &Team,
    tiles: &Tiles,
    (group, live): (usize, usize),
    rows: RowList,
    (values, out): (&mut [TileValues], &mut [[f32; GROUP]]),
) {
    for half in 0..live.div_ceil(TILE_ROWS) {
        let tile = group * (GROUP / TILE_ROWS) + half;
        tiles.multiply(team, tile, rows, values);
        for (out, values) in out.iter_mut().zip(&*values) {
            out.as_chunks_mut::<TILE_ROWS>().0[half] = *values;
        }
    }
}

/// The general case, a matrix at a time: float weights, float activations.
fn separate(
    team: &Team,
    work: &mut Work,
    used: &Use,
    x: &CpuBuffer,
    out: Output,
) -> Result<(), EngineError> {
    let FeedForward { gate, up, down, .. } = used.weights;
    let count = used.rows.len();
    let levels = vec![used.level; count];
    let all: Vec<u32> = (0..count as u32).collect();
    let map = RowMap { x: used.rows.x, out: &all };
    let mut inner = CpuBuffer::new(count, gate.matrix.rows());
    let mut other = CpuBuffer::new(count, up.matrix.rows());
    let cols = inner.cols;
    for (linear, values) in [(gate, &mut inner.values), (up, &mut other.values)] {
        let out = Output { values, cols, write: Write::Set };
        linear_rows(team, work, (linear, &levels), map, (x, 0), out)?;
    }
    team.kernels.gated(used.weights.activation, &mut inner.values, &other.values);
    if down.matrix.is_rotated() {
        // Rows are whole groups.
        team.kernels.hadamard(&mut inner.values);
    }
    let map = RowMap { x: &all, out: used.rows.out };
    linear_rows(team, work, (down, &levels), map, (&inner, 0), out)
}

/// One matrix for the rows of `map`, `levels` one for each of them, in whatever way its weights
/// are multiplied.
pub(super) fn linear_rows(
    team: &Team,
    work: &mut Work,
    (linear, levels): (&Linear<Cpu>, &[Level]),
    map: RowMap,
    (x, first): (&CpuBuffer, usize),
    out: Output,
) -> Result<(), EngineError> {
    super::check_bias(linear)?;
    let (matrix, bias): (&CpuMatrix, _) = (&linear.matrix, linear.bias.as_deref());
    if matrix.takes_int8() {
        team.quantize(&x.values, x.cols, &mut work.x);
    }
    let Work { level_rows: [x_rows, out_rows], products, x: quantized, .. } = work;
    for level in Level::ALL {
        x_rows.clear();
        out_rows.clear();
        for index in of_level(levels, level) {
            x_rows.push(map.x[index as usize]);
            out_rows.push(map.out[index as usize]);
        }
        if x_rows.is_empty() {
            continue;
        }
        let rows = RowMap { x: x_rows, out: out_rows };
        let part = Output { values: &mut *out.values, cols: out.cols, write: out.write };
        if matrix.takes_int8() {
            let tiles = Tiles::new(matrix, level)?;
            let product = Int8Product { tiles, bias, first, rows: matrix.rows() };
            multiply_int8(team, products, &[(product, rows)], quantized, part);
        } else {
            multiply_float(team, (matrix, bias, level), rows, &x.values, first, part)?;
        }
    }
    Ok(())
}

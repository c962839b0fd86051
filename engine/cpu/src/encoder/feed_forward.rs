//! Feed-forward parts of several experts at once.
//!
//! With int8 activations there are two stages for all experts together. The first computes gate, up, the activation
//! and the quantization of the result, by groups of 32 columns; the second computes down, by tiles. Each part
//! computes its columns for all experts, so that different numbers of rows per expert need no balancing.

use nestling_formats::Level;
use nestling_formats::nested::GROUP;

use super::inner::Inner;
use super::products::{
    FloatProduct, Int8Product, Output, RowMap, StoreMode, multiply_float, multiply_int8, of_level,
};
use super::scratch::LeveledRows;
use super::tiles::Tiles;
use crate::columns::{Cut, for_each_block};
use crate::device::{Cpu, FeedForwardScratch};
use crate::matrix::{CpuBuffer, CpuMatrix};
use crate::team::Team;
use nestling_core::backend::{CompleteInner, FeedForward, Linear};
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;

/// A feed-forward part at one level, for some rows.
pub(super) type FeedForwardRows<'a> = LeveledRows<'a, FeedForward<Cpu>>;

/// Computes all uses. Each row of the output belongs to exactly one of them. `x` is `[rows, D]`.
pub(super) fn feed_forward(
    team: &Team,
    work: &mut FeedForwardScratch,
    uses: &[FeedForwardRows],
    x: &CpuBuffer,
    mut out: Output,
) -> Result<(), EngineError> {
    let width = uses.first().map_or(0, |used| used.weights.up.matrix.rows());
    let int8 = |used: &FeedForwardRows| {
        used.weights.up.matrix.rows() == width
            && used.weights.linears().all(|linear| linear.matrix.takes_int8())
    };
    if uses.iter().all(int8) {
        team.quantize(&x.values, x.cols, &mut work.x)?;
        return fused(team, work, uses, width, out);
    }
    for used in uses {
        separate(team, work, used, x, out.reborrow())?;
    }
    Ok(())
}

fn fused(
    team: &Team,
    work: &mut FeedForwardScratch,
    uses: &[FeedForwardRows],
    width: usize,
    out: Output,
) -> Result<(), EngineError> {
    let mut inners: Vec<Inner> = recycle(std::mem::take(&mut work.inners));
    let mut rows = 0;
    for used in uses {
        let FeedForward { activation, gate, up, down } = used.weights;
        inners.push(Inner {
            activation: *activation,
            gate: gate.as_ref().map(|gate| Tiles::new(&gate.matrix, used.level)).transpose()?,
            up: Tiles::new(&up.matrix, used.level)?,
            biases: [gate.as_ref().and_then(|gate| gate.bias.as_deref()), up.bias.as_deref()],
            rows: used.rows.x,
            start: rows,
            width,
            rotated: down.matrix.is_rotated(),
        });
        rows += used.rows.len();
    }
    let (x, inner, packed) = (&work.x, &mut work.inner, &mut work.packed);
    packed.pack(team, x, inners.iter().map(|inner| inner.rows))?;
    let packed = &*packed;
    inner.try_reserve(rows, width)?;
    inner.resize(rows, width);
    let groups = inner.groups();
    let multiplications = 2 * rows * width * x.groups() * GROUP;
    let size = team.cols_per_part(groups, 1, multiplications);
    for_each_block(
        &team.pool,
        team.forks(multiplications),
        inner.cells_mut(),
        groups,
        Cut::Every(rows),
        Cut::Every(size),
        &|_, block| {
            for (index, inner) in inners.iter().enumerate() {
                inner.fill(team, packed.list(index, x, inner.rows), block);
            }
        },
    );
    work.inners = recycle(inners);
    count_to(rows, &mut work.all);
    let mut products = work.products.list();
    let mut start = 0;
    for used in uses {
        let down = &used.weights.down;
        let tiles = Tiles::new(&down.matrix, used.level)?;
        let (bias, rows) = (down.bias.as_deref(), down.matrix.rows());
        let map = RowMap { x: &work.all[start..][..used.rows.len()], out: used.rows.out };
        products.push((Int8Product { tiles, bias, first: down.outputs.first, rows }, map));
        start += used.rows.len();
    }
    multiply_int8(team, &mut work.products, &products, inner, out)?;
    work.products.put_back(products);
    Ok(())
}

/// Extends `numbers` to start with 0, 1, … `count - 1`.
pub(super) fn count_to(count: usize, numbers: &mut Vec<u32>) {
    let have = numbers.len();
    numbers.extend((have..count.max(have)).map(|number| number as u32));
}

/// Computes the general case, one matrix at a time: float weights or float activations.
fn separate(
    team: &Team,
    work: &mut FeedForwardScratch,
    used: &FeedForwardRows,
    x: &CpuBuffer,
    out: Output,
) -> Result<(), EngineError> {
    let FeedForward { gate, up, down, .. } = used.weights;
    let count = used.rows.len();
    let levels = vec![used.level; count];
    let all: Vec<u32> = (0..count as u32).collect();
    let rows = RowLevels { rows: RowMap { x: used.rows.x, out: &all }, levels: &levels };
    let mut inner = CpuBuffer::new(count, up.matrix.rows())?;
    let mut other = CpuBuffer::new(count, up.matrix.rows())?;
    let cols = inner.cols;
    for (linear, values) in [(gate.as_ref(), &mut inner.values), (Some(up), &mut other.values)] {
        let Some(linear) = linear else { continue };
        let out = Output { values, cols, store: StoreMode::Set };
        linear_rows(team, work, linear, rows, x, 0, out)?;
    }
    if gate.is_none() {
        inner.values.copy_from_slice(&other.values);
    }
    team.kernels.gated(used.weights.activation, &mut inner.values, &other.values);
    if down.matrix.is_rotated() {
        // Rows are whole groups.
        team.kernels.hadamard(&mut inner.values);
    }
    let rows = RowLevels { rows: RowMap { x: &all, out: used.rows.out }, levels: &levels };
    linear_rows(team, work, down, rows, &inner, down.outputs.first, out)
}

/// Computes parts of which this rank may hold some rows, such as sliced experts. The bits are those of
/// [`feed_forward`]. Each row of the output belongs to exactly one of the uses.
pub(super) fn feed_forward_of_rank(
    team: &Team,
    work: &mut FeedForwardScratch,
    uses: &[FeedForwardRows],
    x: &CpuBuffer,
    complete: CompleteInner<'_>,
    out: Output,
) -> Result<(), EngineError> {
    let Some(first) = uses.first() else { return Ok(()) };
    let FeedForward { activation, gate, up, .. } = first.weights;
    let count = uses.iter().map(|used| used.rows.len()).sum();
    let (cols, held) = (up.outputs.whole, up.outputs.first..up.outputs.first + up.matrix.rows());
    let mut all = std::mem::take(&mut work.all);
    count_to(count, &mut all);
    let mut halves = std::mem::take(&mut work.halves);
    for (is_up, half) in [false, true].into_iter().zip(&mut halves) {
        half.cols = cols;
        half.resize(count)?;
        if !is_up && gate.is_none() {
            continue;
        }
        let products = slices(uses, &all, |used, inner| {
            // Default: parts that are computed together have a gate, or none has.
            let linear = if is_up { &used.weights.up } else { used.weights.gate_or_up() };
            (linear, RowMap { x: used.rows.x, out: inner })
        });
        let out = Output { values: &mut half.values[..], cols, store: StoreMode::Set };
        multiply_slices(team, work, &products, x, out)?;
    }
    let [inner, other] = &mut halves;
    if gate.is_none() {
        inner.values.copy_from_slice(&other.values);
    }
    let rows = inner.values.chunks_exact_mut(cols.max(1));
    let rows = rows.zip(other.values.chunks_exact(cols.max(1)));
    for (inner, other) in rows {
        team.kernels.gated(*activation, &mut inner[held.clone()], &other[held.clone()]);
    }
    complete(&mut inner.values)?;
    let rows = inner.values.chunks_exact_mut(cols.max(1));
    let rotated = uses.iter().map(|used| (used.weights.down.matrix.is_rotated(), used.rows.len()));
    let rotated = rotated.flat_map(|(is_rotated, count)| std::iter::repeat_n(is_rotated, count));
    for (row, _) in rows.zip(rotated).filter(|(_, is_rotated)| *is_rotated) {
        // Rows are whole groups.
        team.kernels.hadamard(row);
    }
    let products = slices(uses, &all, |used, inner| {
        (&used.weights.down, RowMap { x: inner, out: used.rows.out })
    });
    multiply_slices(team, work, &products, inner, out)?;
    (work.halves, work.all) = (halves, all);
    Ok(())
}

/// A matrix of which a rank may hold some rows, and the rows that it is multiplied with at one level.
struct Slice<'a> {
    linear: &'a Linear<Cpu>,
    level: Level,
    rows: RowMap<'a>,
}

/// Returns the slices of all uses. `of` returns the matrix of a use and its rows, given their numbers in `all`.
fn slices<'a>(
    uses: &[FeedForwardRows<'a>],
    all: &'a [u32],
    of: impl Fn(&FeedForwardRows<'a>, &'a [u32]) -> (&'a Linear<Cpu>, RowMap<'a>),
) -> Vec<Slice<'a>> {
    let mut start = 0;
    let slice = |used: &FeedForwardRows<'a>| {
        let inner = &all[start..][..used.rows.len()];
        start += used.rows.len();
        let (linear, rows) = of(used, inner);
        Slice { linear, level: used.level, rows }
    };
    uses.iter().map(slice).collect()
}

/// Multiplies all slices with their rows of `x`, each with whatever method fits its weights.
fn multiply_slices(
    team: &Team,
    work: &mut FeedForwardScratch,
    slices: &[Slice<'_>],
    x: &CpuBuffer,
    mut out: Output,
) -> Result<(), EngineError> {
    let mut products = work.products.list();
    for Slice { linear, level, rows } in slices {
        let (matrix, bias, first) = (&linear.matrix, linear.bias.as_deref(), linear.outputs.first);
        if matrix.takes_int8() {
            let tiles = Tiles::new(matrix, *level)?;
            products.push((Int8Product { tiles, bias, first, rows: matrix.rows() }, *rows));
        } else {
            let product = FloatProduct { matrix, bias, level: *level, first };
            multiply_float(team, &product, *rows, &x.values, out.reborrow())?;
        }
    }
    if !products.is_empty() {
        team.quantize(&x.values, x.cols, &mut work.x)?;
        multiply_int8(team, &mut work.products, &products, &work.x, out)?;
    }
    work.products.put_back(products);
    Ok(())
}

/// Rows of a product with their levels.
#[derive(Clone, Copy)]
pub(super) struct RowLevels<'a> {
    pub rows: RowMap<'a>,
    pub levels: &'a [Level],
}

/// Multiplies one matrix with some rows, with whatever method fits its weights. Outputs start at column
/// `first`.
pub(super) fn linear_rows(
    team: &Team,
    work: &mut FeedForwardScratch,
    linear: &Linear<Cpu>,
    rows: RowLevels,
    x: &CpuBuffer,
    first: usize,
    mut out: Output,
) -> Result<(), EngineError> {
    let RowLevels { rows: map, levels } = rows;
    let (matrix, bias): (&CpuMatrix, _) = (&linear.matrix, linear.bias.as_deref());
    if matrix.takes_int8() {
        team.quantize(&x.values, x.cols, &mut work.x)?;
    }
    let FeedForwardScratch { level_rows: [x_rows, out_rows], products, x: quantized, .. } = work;
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
        let part = out.reborrow();
        if matrix.takes_int8() {
            let tiles = Tiles::new(matrix, level)?;
            let product = Int8Product { tiles, bias, first, rows: matrix.rows() };
            multiply_int8(team, products, &[(product, rows)], quantized, part)?;
        } else {
            let product = FloatProduct { matrix, bias, level, first };
            multiply_float(team, &product, rows, &x.values, part)?;
        }
    }
    Ok(())
}

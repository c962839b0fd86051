//! Products of heads that each have a separate matrix. The heads of all rows form the rows of one product,
//! and a tile of outputs uses the rows of its head.

use nestling_formats::Level;
use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::TILE_ROWS;

use super::products::{FEW_ROWS, FloatSource, PackedProduct, ROW_BLOCK, of_level};
use super::tiles::Tiles;
use crate::aligned::try_resize;
use crate::columns::{ColumnsMut, Cut, for_each_block};
use crate::device::{Cpu, FeedForwardScratch};
use crate::kernels::FloatInputs;
use crate::matrix::CpuBuffer;
use crate::nested::TileValues;
use crate::rows::QuantizedRows;
use crate::team::{ROW_COST, Team};
use nestling_core::backend::HeadMatrices;
use nestling_core::error::EngineError;

#[derive(Clone, Copy)]
struct Sizes {
    heads: usize,
    /// Number of inputs of a head's matrix, K.
    inputs: usize,
    /// Number of outputs of a head's matrix, N.
    outputs: usize,
    /// Number of elements that are copied after the product, R.
    rest: usize,
}

impl Sizes {
    fn new(weights: &HeadMatrices<Cpu>, x: &CpuBuffer) -> Self {
        let (heads, matrix) = (weights.heads, &weights.matrix);
        let (inputs, outputs) = (matrix.cols(), matrix.rows() / heads);
        Self { heads, inputs, outputs, rest: x.cols / heads - inputs }
    }

    /// Returns a head of a row of the input.
    fn head<'a>(&self, x: &'a CpuBuffer, row: usize, head: usize) -> &'a [f32] {
        let width = self.inputs + self.rest;
        &x.values[row * x.cols + head * width..][..width]
    }
}

/// Operands of the product, with one row per head and row, `[T * H, K]`.
enum Product<'a> {
    Int8(Tiles<'a>, &'a PackedProduct, &'a QuantizedRows),
    Float(FloatSource<'a>, &'a [f32]),
}

/// Computes `out[t, h] = [W_h x[t, h, ..K], x[t, h, K..]]`.
pub(super) fn multiply_heads(
    team: &Team,
    work: &mut FeedForwardScratch,
    weights: &HeadMatrices<Cpu>,
    levels: &[Level],
    x: &CpuBuffer,
    out: &mut CpuBuffer,
) -> Result<(), EngineError> {
    let sizes = Sizes::new(weights, x);
    out.resize(x.row_count())?;
    let FeedForwardScratch {
        x: quantized, heads: floats, level_rows: [rows, inputs], packed, ..
    } = work;
    let int8 = weights.matrix.takes_int8();
    match int8 {
        true => quantize(team, sizes, x, quantized)?,
        false => gather(team, sizes, x, floats)?,
    }
    for level in Level::ALL {
        rows.clear();
        rows.extend(of_level(levels, level));
        if rows.is_empty() {
            continue;
        }
        let Sizes { heads, outputs, rest, .. } = sizes;
        inputs.clear();
        for head in 0..heads as u32 {
            inputs.extend(rows.iter().map(|row| row * heads as u32 + head));
        }
        if int8 {
            packed.pack(team, quantized, inputs.chunks(rows.len()))?;
        }
        let (rows, inputs) = (&**rows, &**inputs);
        let product = match int8 {
            true => Product::Int8(Tiles::new(&weights.matrix, level)?, packed, quantized),
            false => Product::Float(FloatSource::new(&weights.matrix, level)?, floats),
        };
        let multiplications = rows.len().saturating_mul(heads * outputs * sizes.inputs);
        for_each_block(
            &team.pool,
            team.forks(multiplications),
            &mut out.values,
            out.cols,
            Cut::Every(levels.len()),
            Cut::Every(outputs + rest),
            &|head, block| {
                for row in rows.iter().map(|row| *row as usize) {
                    block.row(row)[outputs..]
                        .copy_from_slice(&sizes.head(x, row, head)[sizes.inputs..]);
                }
                let inputs = &inputs[head * rows.len()..][..rows.len()];
                match rows.len() {
                    1 => product.fill::<1>(team, sizes, head, rows, inputs, block),
                    2..=FEW_ROWS => {
                        product.fill::<FEW_ROWS>(team, sizes, head, rows, inputs, block)
                    }
                    _ => product.fill::<ROW_BLOCK>(team, sizes, head, rows, inputs, block),
                }
            },
        );
    }
    Ok(())
}

fn quantize(
    team: &Team,
    sizes: Sizes,
    x: &CpuBuffer,
    out: &mut QuantizedRows,
) -> Result<(), OutOfMemory> {
    out.try_reserve(x.row_count() * sizes.heads, sizes.inputs)?;
    out.resize(x.row_count() * sizes.heads, sizes.inputs);
    let groups = out.groups();
    team.for_each_row(out.cells_mut(), groups, ROW_COST * sizes.inputs, |index, cells| {
        let head = sizes.head(x, index / sizes.heads, index % sizes.heads);
        team.kernels.quantize(&head[..sizes.inputs], cells);
    });
    Ok(())
}

fn gather(team: &Team, sizes: Sizes, x: &CpuBuffer, out: &mut Vec<f32>) -> Result<(), OutOfMemory> {
    try_resize(out, x.row_count() * sizes.heads * sizes.inputs, 0.0)?;
    team.for_each_row(&mut *out, sizes.inputs, sizes.inputs, |index, out| {
        let head = sizes.head(x, index / sizes.heads, index % sizes.heads);
        out.copy_from_slice(&head[..sizes.inputs]);
    });
    Ok(())
}

impl Product<'_> {
    /// Computes one head, whose columns are those of the block, for some rows, `ROWS` at a time. A tile may
    /// overlap the previous and the next head.
    fn fill<const ROWS: usize>(
        &self,
        team: &Team,
        sizes: Sizes,
        head: usize,
        rows: &[u32],
        inputs: &[u32],
        block: &mut ColumnsMut<'_, f32>,
    ) {
        let (start, end) = (head * sizes.outputs, (head + 1) * sizes.outputs);
        let mut values = [[0.0; TILE_ROWS]; ROWS];
        let mut room = Vec::new();
        let list = match self {
            Self::Int8(_, packed, x) => Some(packed.list(head, x, inputs)),
            Self::Float(..) => None,
        };
        for tile in start / TILE_ROWS..end.div_ceil(TILE_ROWS) {
            let first = tile * TILE_ROWS;
            let lanes = start.max(first) - first..end.min(first + TILE_ROWS) - first;
            let to = first + lanes.start - start;
            for (index, rows) in rows.chunks(ROWS).enumerate() {
                let values = &mut values[..rows.len()];
                match self {
                    Self::Int8(tiles, ..) => {
                        if let Some(list) = list {
                            tiles.multiply(team, tile, list.chunk(index, ROWS), values);
                        }
                    }
                    Self::Float(source, x) => {
                        let inputs = &inputs[index * ROWS..][..rows.len()];
                        let x = FloatInputs { values: x, cols: sizes.inputs, rows: inputs };
                        multiply_float(team, source, tile, sizes, x, &mut room, values);
                    }
                }
                for (values, row) in values.iter().zip(rows) {
                    let out = &mut block.row(*row as usize)[to..][..lanes.len()];
                    out.copy_from_slice(&values[lanes.clone()]);
                }
            }
        }
    }
}

fn multiply_float(
    team: &Team,
    source: &FloatSource,
    tile: usize,
    sizes: Sizes,
    x: FloatInputs,
    room: &mut Vec<f32>,
    out: &mut [TileValues],
) {
    let (first, stride) = (tile * TILE_ROWS, source.stride(sizes.inputs));
    let live = TILE_ROWS.min(sizes.heads * sizes.outputs - first);
    let weights = source.rows(first, live, room);
    team.kernels.float_tile(weights, stride, x, out);
}

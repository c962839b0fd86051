//! Matrix products, split into blocks of output columns.
//!
//! A part computes whole outputs, so that the number of parts never changes a result.

use nestling_formats::memory::OutOfMemory;
use nestling_formats::nested::{GROUP, TILE_ROWS};
use nestling_formats::{DType, Level};

use super::tiles::Tiles;
use crate::columns::{ColumnsMut, Cut, fence, for_each_block};
use crate::kernels::{FloatInputs, FloatWeights};
use crate::math::Element;
use crate::matrix::{CpuBuffer, CpuMatrix};
use crate::nested::TileValues;
use crate::rows::{PACKED_ROWS, PackedRows, QuantizedRows, RowList};
use crate::team::Team;
use nestling_core::backend::Write;
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;
use nestling_core::weights::{FloatMatrix, MatrixWeights};

/// Number of activation rows that are multiplied with a tile before the next ones. One decoded tile serves
/// all of them, and their groups stay in the second-level cache.
pub(super) const ROW_BLOCK: usize = 128;

/// Block size for few rows, which reduces the cost of zeroing.
pub(super) const FEW_ROWS: usize = 16;

/// Size of outputs in bytes from which they do not stay in the second-level cache until they are read. Their
/// rows are so far apart that reading each line before it is written cost a tenth of a prompt (docs/perf/026).
const NON_TEMPORAL_BYTES: usize = 2 << 20;

/// Store mode of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreMode {
    Set,
    /// Set with non-temporal stores where possible.
    SetNonTemporal,
    Add,
}

impl From<Write> for StoreMode {
    fn from(write: Write) -> Self {
        match write {
            Write::Set => Self::Set,
            Write::Add => Self::Add,
        }
    }
}

/// Rows of a product: row `x[i]` of the input gives row `out[i]` of the output.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RowMap<'a> {
    pub x: &'a [u32],
    pub out: &'a [u32],
}

impl<'a> RowMap<'a> {
    pub fn same(rows: &'a [u32]) -> Self {
        Self { x: rows, out: rows }
    }

    pub fn len(&self) -> usize {
        self.x.len()
    }
}

/// Returns the indices of one level.
pub(super) fn of_level(levels: &[Level], level: Level) -> impl Iterator<Item = u32> {
    let indices = (0u32..).zip(levels);
    indices.filter(move |(_, other)| **other == level).map(|(index, _)| index)
}

/// Packed rows of a product with many rows, and the first block of each matrix.
#[derive(Default)]
pub(crate) struct PackedProduct {
    rows: PackedRows,
    firsts: Vec<Option<usize>>,
}

impl PackedProduct {
    /// Packs the rows of `x` that some matrices use. Consecutive matrices with the same rows share blocks.
    pub fn pack<'a>(
        &mut self,
        team: &Team,
        x: &QuantizedRows,
        lists: impl Iterator<Item = &'a [u32]>,
    ) -> Result<(), OutOfMemory> {
        self.rows.clear(x.groups());
        self.firsts.clear();
        let mut before: Option<&[u32]> = None;
        for rows in lists {
            let first = match before.replace(rows) {
                _ if rows.len() < team.kernels.packs_from() => None,
                Some(before) if std::ptr::eq(before, rows) => self.firsts.last().copied().flatten(),
                _ => Some(self.rows.push(rows)),
            };
            self.firsts.push(first);
        }
        let groups = x.groups();
        self.rows.try_reserve()?;
        let (cells, blocks) = self.rows.cells_mut();
        team.for_each_row(cells, groups, PACKED_ROWS * GROUP * groups, |block, cells| {
            blocks.fill(block, x, cells);
        });
        Ok(())
    }

    pub fn list<'a>(&'a self, index: usize, x: &'a QuantizedRows, rows: &'a [u32]) -> RowList<'a> {
        let first = self.firsts.get(index).copied().flatten();
        let list = RowList::new(x, rows);
        first.map_or(list, |first| list.with_packed(&self.rows, first))
    }
}

/// Memory that products reuse.
#[derive(Default)]
pub(crate) struct ProductScratch {
    /// First columns of tiles, and the first columns of parts.
    starts: Vec<usize>,
    borders: Vec<usize>,
    packed: PackedProduct,
    list: Vec<(Int8Product<'static>, RowMap<'static>)>,
}

impl ProductScratch {
    /// Returns an empty list of products in reused memory. [`Self::put_back`] returns the memory.
    pub fn list<'a>(&mut self) -> Vec<(Int8Product<'a>, RowMap<'a>)> {
        recycle(std::mem::take(&mut self.list))
    }

    pub fn put_back(&mut self, list: Vec<(Int8Product, RowMap)>) {
        self.list = recycle(list);
    }
}

/// One matrix of an int8 product. Its outputs start at column `first`.
pub(crate) struct Int8Product<'a> {
    pub tiles: Tiles<'a>,
    pub bias: Option<&'a [f32]>,
    pub first: usize,
    pub rows: usize,
}

/// Destination of products, `[rows, cols]`.
pub(super) struct Output<'a> {
    pub values: &'a mut [f32],
    pub cols: usize,
    pub store: StoreMode,
}

impl<'a> Output<'a> {
    /// Creates an output of `rows` rows in a buffer. The buffer must already have them if products are added.
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn of(out: &'a mut CpuBuffer, rows: usize, write: Write) -> Result<Self, OutOfMemory> {
        if write == Write::Set {
            out.resize(rows)?;
        }
        Ok(Self { values: &mut out.values, cols: out.cols, store: write.into() })
    }

    pub fn reborrow(&mut self) -> Output<'_> {
        Output { values: &mut *self.values, cols: self.cols, store: self.store }
    }
}

/// Computes `out = W x + b` for several matrices, each for its rows of `x`. Matrices that share columns of
/// the output must have different rows of it.
pub(super) fn multiply_int8(
    team: &Team,
    scratch: &mut ProductScratch,
    products: &[(Int8Product, RowMap)],
    x: &QuantizedRows,
    out: Output,
) -> Result<(), OutOfMemory> {
    let macs = |(product, rows): &(Int8Product, RowMap)| {
        product.rows.saturating_mul(rows.len()).saturating_mul(x.groups() * GROUP)
    };
    let multiplications = products.iter().map(macs).fold(0, usize::saturating_add);
    let ProductScratch { starts, borders, packed, .. } = scratch;
    packed.pack(team, x, products.iter().map(|(_, rows)| rows.x))?;
    let packed = &*packed;
    starts.clear();
    let mut before = None;
    for (product, _) in products {
        // Experts of a layer have the same columns.
        if before.replace((product.first, product.rows)) != Some((product.first, product.rows)) {
            starts.extend((0..product.rows).step_by(TILE_ROWS).map(|row| product.first + row));
        }
    }
    starts.sort_unstable();
    starts.dedup();
    let parts = team.parts(starts.len(), multiplications);
    // Default: there are no columns without products.
    let last = products.iter().map(|(p, _)| p.first + p.rows).max().unwrap_or(0);
    let border = |part| starts.get(starts.len() * part / parts).copied().unwrap_or(last);
    borders.clear();
    borders.extend((0..=parts).map(border));
    let mode = match out.store {
        StoreMode::Set if size_of_val(out.values) >= NON_TEMPORAL_BYTES => {
            StoreMode::SetNonTemporal
        }
        mode => mode,
    };
    // Default: a buffer without columns has no rows.
    let rows = out.values.len().checked_div(out.cols).unwrap_or(0);
    for_each_block(
        &team.pool,
        true,
        out.values,
        out.cols,
        Cut::Every(rows),
        Cut::At(borders),
        &|_, block| {
            for (index, (product, rows)) in products.iter().enumerate() {
                product.fill(team, packed.list(index, x, rows.x), rows.out, block, mode);
            }
            if mode == StoreMode::SetNonTemporal {
                fence();
            }
        },
    );
    Ok(())
}

impl Int8Product<'_> {
    fn fill(
        &self,
        team: &Team,
        rows: RowList,
        out_rows: &[u32],
        block: &mut ColumnsMut<'_, f32>,
        mode: StoreMode,
    ) {
        match rows.rows().len() {
            1 => self.fill_by::<1>(team, rows, out_rows, block, mode),
            2..=FEW_ROWS => self.fill_by::<FEW_ROWS>(team, rows, out_rows, block, mode),
            _ => self.fill_by::<ROW_BLOCK>(team, rows, out_rows, block, mode),
        }
    }

    /// Computes the columns of one block, `N` rows at a time.
    fn fill_by<const N: usize>(
        &self,
        team: &Team,
        rows: RowList,
        out_rows: &[u32],
        block: &mut ColumnsMut<'_, f32>,
        mode: StoreMode,
    ) {
        let range = block.range();
        let start = range.start.max(self.first);
        let end = range.end.min(self.first + self.rows);
        let mut values = [[0.0; TILE_ROWS]; N];
        for col in (start..end).step_by(TILE_ROWS) {
            let row = col - self.first;
            let width = TILE_ROWS.min(end - col);
            let bias = self.bias.map(|bias| &bias[row..row + width]);
            for (rows, out_rows) in rows.chunks(N).zip(out_rows.chunks(N)) {
                let values = &mut values[..rows.rows().len()];
                self.tiles.multiply(team, row / TILE_ROWS, rows, values);
                if bias.is_none() && width == TILE_ROWS && mode == StoreMode::SetNonTemporal {
                    team.kernels.write_tile(block, col - range.start, out_rows, values);
                    continue;
                }
                for (values, out_row) in values.iter_mut().zip(out_rows) {
                    let out = &mut block.row(*out_row as usize)[col - range.start..][..width];
                    store(values, bias, out, mode);
                }
            }
        }
    }
}

/// Adds the bias, then stores or adds as many values as `out` takes.
#[inline]
fn store<const N: usize>(
    values: &mut [f32; N],
    bias: Option<&[f32]>,
    out: &mut [f32],
    mode: StoreMode,
) {
    if let Some(bias) = bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    // A slice of constant length is copied without a call.
    match (mode, <&mut [f32; N]>::try_from(&mut *out)) {
        (StoreMode::Set | StoreMode::SetNonTemporal, Ok(out)) => *out = *values,
        (StoreMode::Set | StoreMode::SetNonTemporal, Err(_)) => {
            out.copy_from_slice(&values[..out.len()])
        }
        (StoreMode::Add, Ok(out)) => (0..N).for_each(|i| out[i] += values[i]),
        (StoreMode::Add, Err(_)) => out.iter_mut().zip(values).for_each(|(out, v)| *out += *v),
    }
}

/// A float product of a matrix; nested weights have a level. Its outputs start at column `first`.
#[derive(Clone, Copy)]
pub(super) struct FloatProduct<'a> {
    pub matrix: &'a CpuMatrix,
    pub bias: Option<&'a [f32]>,
    pub level: Level,
    pub first: usize,
}

/// Computes `out = W x + b` in floats for the given rows of `x`, `[rows, K]`.
pub(super) fn multiply_float(
    team: &Team,
    product: &FloatProduct,
    rows: RowMap,
    x: &[f32],
    out: Output,
) -> Result<(), EngineError> {
    let FloatProduct { matrix, bias, level, first } = *product;
    let (n, k) = (matrix.rows(), matrix.cols());
    let source = FloatSource::new(matrix, level)?;
    let multiplications = n.saturating_mul(k).saturating_mul(rows.len());
    let size = team.cols_per_part(n, TILE_ROWS, multiplications);
    // Default: a buffer without columns has no rows.
    let all = out.values.len().checked_div(out.cols).unwrap_or(0);
    let mode = out.store;
    for_each_block(
        &team.pool,
        team.forks(multiplications),
        out.values,
        out.cols,
        Cut::Every(all),
        Cut::Within(first, first + n, size),
        &|_, block| {
            let range = block.range();
            let mut room = Vec::new();
            let mut values = [[0.0; TILE_ROWS]; ROW_BLOCK];
            for col in range.clone().step_by(TILE_ROWS) {
                let live = TILE_ROWS.min(range.end - col);
                let weights = source.rows(col - first, live, &mut room);
                let bias = bias.map(|bias| &bias[col - first..][..live]);
                let first = col - range.start;
                let tile = FloatTile { weights, stride: source.stride(k), bias, first, live };
                let blocks = rows.x.chunks(ROW_BLOCK).zip(rows.out.chunks(ROW_BLOCK));
                for (x_rows, out_rows) in blocks {
                    let inputs = FloatInputs { values: x, cols: k, rows: x_rows };
                    let values = &mut values[..x_rows.len()];
                    team.kernels.float_tile(tile.weights, tile.stride, inputs, values);
                    tile.store(values, out_rows, mode, block);
                }
            }
        },
    );
    Ok(())
}

/// Up to 16 rows of a matrix.
#[derive(Clone, Copy)]
struct FloatTile<'a> {
    weights: FloatWeights<'a>,
    stride: usize,
    bias: Option<&'a [f32]>,
    /// First output column in the block.
    first: usize,
    /// Number of valid rows.
    live: usize,
}

impl FloatTile<'_> {
    /// Stores or adds the products of the tile with some rows.
    fn store(
        &self,
        values: &mut [TileValues],
        out_rows: &[u32],
        mode: StoreMode,
        block: &mut ColumnsMut<'_, f32>,
    ) {
        for (values, row) in values.iter_mut().zip(out_rows) {
            let out = &mut block.row(*row as usize)[self.first..][..self.live];
            store(values, self.bias, out, mode);
        }
    }
}

/// Weights as floats, 16 rows at a time.
#[expect(clippy::large_enum_variant, reason = "one lives on the stack for each product")]
pub(super) enum FloatSource<'a> {
    Float(&'a FloatMatrix),
    Codes(Tiles<'a>),
}

impl<'a> FloatSource<'a> {
    pub fn new(matrix: &'a CpuMatrix, level: Level) -> Result<Self, EngineError> {
        match &matrix.weights {
            MatrixWeights::Float(matrix) => Ok(Self::Float(matrix)),
            MatrixWeights::Nested(_) => Ok(Self::Codes(Tiles::new(matrix, level)?)),
        }
    }

    /// Returns the number of elements from one row to the next in the output of [`Self::read`].
    pub fn stride(&self, cols: usize) -> usize {
        match self {
            Self::Float(_) => cols,
            Self::Codes(tiles) => tiles.stride(),
        }
    }

    /// Returns rows from `row` on, which is a multiple of 16: in place, or converted to floats in `room`.
    pub fn rows<'r>(&'r self, row: usize, live: usize, room: &'r mut Vec<f32>) -> FloatWeights<'r> {
        match self {
            Self::Float(matrix) => {
                if let Some(weights) = in_place(matrix, row, live) {
                    return weights;
                }
                room.resize(TILE_ROWS * matrix.cols(), 0.0);
                read_float(matrix, row, room);
            }
            Self::Codes(tiles) => tiles.dequantize(row / TILE_ROWS, room),
        }
        FloatWeights::F32(room)
    }
}

/// Returns rows of a float matrix in place, if this machine can read them there.
fn in_place(matrix: &FloatMatrix, row: usize, live: usize) -> Option<FloatWeights<'_>> {
    let row_bytes = matrix.cols() * matrix.dtype().bytes();
    let bytes = matrix.bytes().get(row * row_bytes..(row + live) * row_bytes)?;
    if cfg!(target_endian = "big") {
        return None;
    }
    Some(match matrix.dtype() {
        DType::F32 => FloatWeights::F32(bytemuck::try_cast_slice(bytes).ok()?),
        DType::F16 => FloatWeights::F16(bytemuck::try_cast_slice(bytes).ok()?),
        DType::Bf16 => FloatWeights::Bf16(bytemuck::try_cast_slice(bytes).ok()?),
        DType::U8 => return None,
    })
}

/// Reads rows of a float matrix from `row` on, up to the end of the matrix or of `out`.
fn read_float(matrix: &FloatMatrix, row: usize, out: &mut [f32]) {
    let start = row * matrix.cols() * matrix.dtype().bytes();
    let bytes = &matrix.bytes()[start..];
    match matrix.dtype() {
        DType::F32 => widen(bytes, f32::from_le_bytes, out),
        DType::F16 => widen(bytes, half::f16::from_le_bytes, out),
        DType::Bf16 => widen(bytes, half::bf16::from_le_bytes, out),
        DType::U8 => DType::U8.decode(bytes, out),
    }
}

fn widen<const N: usize, T: Element>(
    bytes: &[u8],
    element: impl Fn([u8; N]) -> T,
    out: &mut [f32],
) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = element(*bytes).to_f32();
    }
}

//! Matrix products, cut by blocks of output columns.
//!
//! A part computes whole outputs, so how many parts there are never changes a result.

use nestling_formats::nested::{GROUP, NestedView, TILE_ROWS};
use nestling_formats::{DType, Level};

use crate::cpu::columns::{ColumnsMut, Cut, for_each_block, split_columns};
use crate::cpu::device::{CpuMatrix, Team};
use crate::cpu::kernels::FLOAT_ROWS;
use crate::cpu::math::Element;
use crate::cpu::nested::{NestedWeights, TileValues, dequantize_tile};
use crate::cpu::rows::QuantizedRows;
use crate::error::EngineError;
use crate::weights::{FloatMatrix, MatrixWeights};

/// Rows of activations that are multiplied with a tile before the next ones: one that is decoded
/// serves them all, and their groups stay in the second cache.
pub(super) const ROW_BLOCK: usize = 128;

/// The same where there are no more: less to set to zero.
pub(super) const FEW_ROWS: usize = 16;

/// Products below this many multiplications stay on the calling thread: a fork and join costs as
/// much as about this many (PERF.md).
const FORK_MIN: usize = 1 << 16;

/// Parts for each thread, so that a thread that was interrupted does not keep the others waiting.
const PARTS_PER_THREAD: usize = 4;

/// Whether outputs are stored or added to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Write {
    Set,
    Add,
}

/// The rows of a product: row `x[i]` of the input gives row `out[i]` of the output.
#[derive(Clone, Debug, Default)]
pub(super) struct RowMap {
    pub x: Vec<u32>,
    pub out: Vec<u32>,
}

impl RowMap {
    pub fn same(rows: Vec<u32>) -> Self {
        Self { x: rows.clone(), out: rows }
    }

    pub fn len(&self) -> usize {
        self.x.len()
    }
}

/// The rows at each level that occurs.
pub(super) fn by_level(levels: &[Level]) -> Vec<(Level, Vec<u32>)> {
    let rows = |level| (0u32..).zip(levels).filter(move |(_, l)| **l == level).map(|(row, _)| row);
    let all = Level::ALL.into_iter().map(|level| (level, rows(level).collect::<Vec<u32>>()));
    all.filter(|(_, rows)| !rows.is_empty()).collect()
}

impl Team {
    /// How many parts to cut work into that has so many units and multiplications.
    pub fn parts(&self, units: usize, multiplications: usize) -> usize {
        match self.pool.threads() {
            1 => 1,
            _ if multiplications < FORK_MIN => 1,
            threads => units.clamp(1, threads * PARTS_PER_THREAD),
        }
    }

    /// Borders that cut `cols` columns into parts of whole units.
    pub fn borders(&self, cols: usize, unit: usize, multiplications: usize) -> Vec<usize> {
        let units = cols.div_ceil(unit);
        let parts = self.parts(units, multiplications);
        (0..=parts).map(|part| (units * part / parts * unit).min(cols)).collect()
    }

    /// How many rows a part of row-by-row work takes.
    pub fn rows_per_part(&self, rows: usize, cols: usize) -> usize {
        // Norms and the like do several operations for each element.
        rows.div_ceil(self.parts(rows, 4 * rows * cols)).max(1)
    }

    /// Whether work of so many multiplications is worth a fork and join.
    pub fn forks(&self, multiplications: usize) -> bool {
        self.pool.threads() > 1 && multiplications >= FORK_MIN
    }

    /// Calls `job` for every item, on all threads if the work is worth it.
    pub fn for_each_mut<T: Send>(
        &self,
        items: &mut [T],
        multiplications: usize,
        job: &(dyn Fn(usize, &mut T) + Sync),
    ) {
        if self.forks(multiplications) {
            return self.pool.for_each_mut(items, job);
        }
        items.iter_mut().enumerate().for_each(|(index, item)| job(index, item));
    }

    /// Calls `job` for every row of `values`, `[rows, cols]`: norms and the like, of several
    /// operations for each element.
    pub fn for_each_row<T: Send>(
        &self,
        (values, cols): (&mut [T], usize),
        job: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let rows = values.len().checked_div(cols).unwrap_or(0);
        let chunk = self.rows_per_part(rows, cols);
        let forks = (&*self.pool, self.forks(4 * rows * cols));
        let cuts = (Cut::Every(chunk), Cut::Every(cols));
        for_each_block(forks, (values, cols), cuts, &|_, block| {
            for row in 0..block.rows().len() {
                job(block.rows().start + row, block.row(row));
            }
        });
    }

    /// Quantizes rows of activations, `[rows, cols]`.
    pub fn quantize(&self, x: &[f32], cols: usize, out: &mut QuantizedRows) {
        let rows = x.len().checked_div(cols).unwrap_or(0);
        out.resize(rows, cols);
        let (groups, chunk) = (out.groups(), self.rows_per_part(rows, cols));
        let cells = out.cells_mut().chunks_mut((chunk * groups).max(1));
        let mut parts: Vec<_> = x.chunks((chunk * cols).max(1)).zip(cells).collect();
        self.pool.for_each_mut(&mut parts, &|_, (x, cells)| {
            for (x, cells) in x.chunks(cols).zip(cells.chunks_mut(groups)) {
                self.kernels.quantize(x, cells);
            }
        });
    }
}

/// A nested matrix at one level.
pub(super) enum Tiles<'a> {
    Tiled(NestedWeights<'a>),
    /// Read by the scalar reader: row-major tables are meant for gathers.
    RowMajor(NestedView<'a>, Level),
}

impl<'a> Tiles<'a> {
    pub fn new(matrix: &'a CpuMatrix, level: Level) -> Result<Self, EngineError> {
        let (MatrixWeights::Nested(nested), Some(tables)) = (&matrix.weights, &matrix.tables)
        else {
            return Err(EngineError::mismatch("matrix of an int8 product", "nested", "float"));
        };
        let (view, level) = (nested.view()?, nested.prefix(level)?);
        if !matrix.is_tiled() {
            return Ok(Self::RowMajor(view, level));
        }
        Ok(Self::Tiled(NestedWeights::new(&view, level, tables)?))
    }

    /// Products of one tile with some rows.
    pub fn multiply(
        &self,
        team: &Team,
        tile: usize,
        x: &QuantizedRows,
        rows: &[u32],
        out: &mut [TileValues],
    ) {
        match self {
            Self::Tiled(weights) => team.kernels.nested_tile(weights, tile, x, rows, out),
            Self::RowMajor(view, level) => multiply_row_major(view, *level, tile, x, rows, out),
        }
    }
}

fn multiply_row_major(
    view: &NestedView,
    level: Level,
    tile: usize,
    x: &QuantizedRows,
    rows: &[u32],
    out: &mut [TileValues],
) {
    let mut values = [0i16; TILE_ROWS * GROUP]; // [16 rows, 32 columns]
    out.fill([0.0; TILE_ROWS]);
    for group in 0..view.groups() {
        // The tile and the level were checked: nothing can fail, and zeros would be the result.
        if view.decode_group_values(level, tile, group, &mut values).is_err() {
            return;
        }
        let scales = view.weight_scales(level, tile, group);
        for (row, out) in rows.iter().zip(out.iter_mut()) {
            let Some(x) = x.row(*row as usize).get(group) else { continue };
            for (lane, weights) in values.chunks_exact(GROUP).enumerate() {
                let products = weights.iter().zip(&x.values);
                let sum: i32 = products.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
                out[lane] = (sum as f32).mul_add(x.scale * scales[lane], out[lane]);
            }
        }
    }
}

/// One matrix of an int8 product: its outputs begin at column `first`.
pub(super) struct Int8Product<'a> {
    pub tiles: Tiles<'a>,
    pub bias: Option<&'a [f32]>,
    pub first: usize,
    pub rows: usize,
}

/// Where products go: `[rows, cols]`.
pub(super) struct Output<'a> {
    pub values: &'a mut [f32],
    pub cols: usize,
    pub write: Write,
}

/// `out = W x + b` for several matrices, each for its rows of `x`. Matrices that share columns of
/// the output have different rows of it.
pub(super) fn multiply_int8(
    team: &Team,
    products: &[(Int8Product, &RowMap)],
    x: &QuantizedRows,
    out: Output,
) {
    let macs = |(product, rows): &(Int8Product, &RowMap)| {
        product.rows.saturating_mul(rows.len()).saturating_mul(x.groups() * GROUP)
    };
    let multiplications = products.iter().map(macs).fold(0, usize::saturating_add);
    let mut starts: Vec<usize> = Vec::new();
    for (product, _) in products {
        starts.extend((0..product.rows).step_by(TILE_ROWS).map(|row| product.first + row));
    }
    starts.sort_unstable();
    starts.dedup();
    let parts = team.parts(starts.len(), multiplications);
    let last = products.iter().map(|(p, _)| p.first + p.rows).max().unwrap_or(0);
    let border = |part| starts.get(starts.len() * part / parts).copied().unwrap_or(last);
    let borders: Vec<usize> = (0..=parts).map(border).collect();
    let write = out.write;
    let mut blocks = split_columns(out.values, out.cols, &borders);
    team.pool.for_each_mut(&mut blocks, &|_, block| {
        for (product, rows) in products {
            product.fill(team, rows, x, block, write);
        }
    });
}

impl Int8Product<'_> {
    /// Computes the columns of one block.
    fn fill(
        &self,
        team: &Team,
        rows: &RowMap,
        x: &QuantizedRows,
        block: &mut ColumnsMut<'_, f32>,
        write: Write,
    ) {
        match rows.len() {
            1 => self.fill_by::<1>(team, rows, x, block, write),
            2..=FEW_ROWS => self.fill_by::<FEW_ROWS>(team, rows, x, block, write),
            _ => self.fill_by::<ROW_BLOCK>(team, rows, x, block, write),
        }
    }

    /// The same, `N` rows at a time.
    fn fill_by<const N: usize>(
        &self,
        team: &Team,
        rows: &RowMap,
        x: &QuantizedRows,
        block: &mut ColumnsMut<'_, f32>,
        write: Write,
    ) {
        let range = block.range();
        let start = range.start.max(self.first);
        let end = range.end.min(self.first + self.rows);
        let mut values = [[0.0; TILE_ROWS]; N];
        for col in (start..end).step_by(TILE_ROWS) {
            let row = col - self.first;
            let width = TILE_ROWS.min(end - col);
            let bias = self.bias.map(|bias| &bias[row..row + width]);
            let blocks = rows.x.chunks(N).zip(rows.out.chunks(N));
            for (x_rows, out_rows) in blocks {
                let values = &mut values[..x_rows.len()];
                self.tiles.multiply(team, row / TILE_ROWS, x, x_rows, values);
                for (values, out_row) in values.iter_mut().zip(out_rows) {
                    let out = &mut block.row(*out_row as usize)[col - range.start..][..width];
                    store(&mut values[..width], bias, out, write);
                }
            }
        }
    }
}

/// Adds the bias, then stores or adds.
#[inline]
fn store(values: &mut [f32], bias: Option<&[f32]>, out: &mut [f32], write: Write) {
    if let Some(bias) = bias {
        values.iter_mut().zip(bias).for_each(|(value, bias)| *value += bias);
    }
    match write {
        Write::Set => out.copy_from_slice(values),
        Write::Add => out.iter_mut().zip(values).for_each(|(out, value)| *out += *value),
    }
}

/// `out = W x + b` in floats, for the rows of `x` `[rows, K]` that `rows` names; outputs begin at
/// column `first`.
pub(super) fn multiply_float(
    team: &Team,
    (matrix, bias, level): (&CpuMatrix, Option<&[f32]>, Level),
    rows: &RowMap,
    x: &[f32],
    first: usize,
    out: Output,
) -> Result<(), EngineError> {
    let (n, k) = (matrix.rows(), matrix.cols());
    let source = FloatSource::new(matrix, level)?;
    let stride = source.stride(k);
    let multiplications = n.saturating_mul(k).saturating_mul(rows.len());
    let borders: Vec<usize> =
        team.borders(n, TILE_ROWS, multiplications).iter().map(|border| first + border).collect();
    let write = out.write;
    let mut blocks = split_columns(out.values, out.cols, &borders);
    let inputs: Vec<&[f32]> = rows.x.iter().map(|row| &x[*row as usize * k..][..k]).collect();
    team.pool.for_each_mut(&mut blocks, &|_, block| {
        let range = block.range();
        let mut weights = vec![0.0; TILE_ROWS * stride];
        let mut values = vec![[0.0; FLOAT_ROWS]; inputs.len()];
        for col in range.clone().step_by(TILE_ROWS) {
            source.read(col - first, &mut weights);
            for (part, weights) in weights.chunks(FLOAT_ROWS * stride).enumerate() {
                let col = col + part * FLOAT_ROWS;
                let width = FLOAT_ROWS.min(range.end.saturating_sub(col));
                if width == 0 {
                    break;
                }
                team.kernels.float_rows((weights, stride), &inputs, &mut values);
                let bias = bias.map(|bias| &bias[col - first..][..width]);
                for (values, row) in values.iter_mut().zip(&rows.out) {
                    let out = &mut block.row(*row as usize)[col - range.start..][..width];
                    store(&mut values[..width], bias, out, write);
                }
            }
        }
    });
    Ok(())
}

/// Weights as floats, 16 rows at a time.
enum FloatSource<'a> {
    Float(&'a FloatMatrix),
    Tiled(NestedWeights<'a>),
    RowMajor(NestedView<'a>, Level),
}

impl<'a> FloatSource<'a> {
    fn new(matrix: &'a CpuMatrix, level: Level) -> Result<Self, EngineError> {
        match &matrix.weights {
            MatrixWeights::Float(matrix) => Ok(Self::Float(matrix)),
            MatrixWeights::Nested(_) => Ok(match Tiles::new(matrix, level)? {
                Tiles::Tiled(weights) => Self::Tiled(weights),
                Tiles::RowMajor(view, level) => Self::RowMajor(view, level),
            }),
        }
    }

    /// Elements from one row to the next in what [`Self::read`] fills.
    fn stride(&self, cols: usize) -> usize {
        match self {
            Self::Tiled(weights) => weights.groups() * GROUP,
            Self::Float(_) | Self::RowMajor(..) => cols,
        }
    }

    /// Reads 16 rows from `row` on, a multiple of 16; rows beyond the matrix are not written.
    fn read(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Tiled(weights) => dequantize_tile(weights, row / TILE_ROWS, out),
            Self::Float(matrix) => read_float(matrix, row, out),
            Self::RowMajor(view, level) => {
                let rows = out.chunks_exact_mut(view.cols());
                for (out, row) in rows.zip(row..view.rows()) {
                    // The row and the level were checked, so this cannot fail.
                    let _ = view.dequantize_row(*level, row, out);
                }
            }
        }
    }
}

/// Rows of a float matrix from `row` on, as many as there are and `out` holds.
fn read_float(matrix: &FloatMatrix, row: usize, out: &mut [f32]) {
    let start = row * matrix.cols() * matrix.dtype().bytes();
    let bytes = matrix.bytes().get(start..).unwrap_or_default();
    match matrix.dtype() {
        DType::F32 => widen(bytes, f32::from_le_bytes, out),
        DType::F16 => widen(bytes, half::f16::from_le_bytes, out),
        DType::Bf16 => widen(bytes, half::bf16::from_le_bytes, out),
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

//! Matrices of codes at one level, ready for products, 16 rows at a time.

use nestling_formats::Level;
use nestling_formats::nested::{GROUP, GroupScales, Layout, NestedView, TILE_ROWS};

use crate::fused::Fused;
use crate::matrix::{CpuMatrix, MatrixTables};
use crate::nested::{self, NestedWeights, TileValues};
use crate::rows::{QuantizedGroup, RowList};
use crate::scaled::{self, ScaledWeights};
use crate::team::Team;
use nestling_core::error::EngineError;
use nestling_core::weights::MatrixWeights;

pub(crate) enum Tiles<'a> {
    Nested(NestedWeights<'a>),
    Scaled(ScaledWeights<'a>),
    /// Row-major matrix, read by the scalar reader: this layout is meant for gathers.
    Scalar(NestedView<'a>, Level),
}

impl<'a> Tiles<'a> {
    pub fn new(matrix: &'a CpuMatrix, level: Level) -> Result<Self, EngineError> {
        let MatrixWeights::Nested(nested) = &matrix.weights else {
            return Err(EngineError::mismatch("matrix of an int8 product", "codes", "floats"));
        };
        let (view, level) = (nested.view(), nested.prefix(level)?);
        if view.layout() != Layout::Tile16 {
            return Ok(Self::Scalar(view, level));
        }
        Ok(match &matrix.tables {
            Some(MatrixTables::Nested(tables)) => {
                Self::Nested(NestedWeights::new(&view, level, tables)?)
            }
            Some(MatrixTables::Scaled(tables)) => {
                Self::Scaled(ScaledWeights::new(&view, level, tables)?)
            }
            None => Self::Scalar(view, level),
        })
    }

    /// Multiplies one tile with some rows.
    pub fn multiply(&self, team: &Team, tile: usize, rows: RowList, out: &mut [TileValues]) {
        match self {
            Self::Nested(weights) => team.kernels.nested_tile(weights, tile, rows, out),
            Self::Scaled(weights) => team.kernels.scaled_tile(weights, tile, rows, out),
            Self::Scalar(view, level) => multiply_scalar(view, *level, tile, rows, out),
        }
    }

    /// Returns the number of elements from one row to the next in the output of [`Self::dequantize`].
    pub fn stride(&self) -> usize {
        match self {
            Self::Nested(weights) => weights.groups() * GROUP,
            Self::Scaled(weights) => weights.groups() * GROUP,
            Self::Scalar(view, _) => view.cols(),
        }
    }

    /// Converts the 16 rows of a tile to floats in `room`. Values beyond the matrix are unspecified.
    pub fn dequantize(&self, tile: usize, room: &mut Vec<f32>) {
        room.resize(TILE_ROWS * self.stride(), 0.0);
        match self {
            Self::Nested(weights) => nested::dequantize_tile(weights, tile, room),
            Self::Scaled(weights) => scaled::dequantize_tile(weights, tile, room),
            Self::Scalar(view, level) => {
                let rows = room.chunks_exact_mut(view.cols());
                for (out, row) in rows.zip(tile * TILE_ROWS..view.rows()) {
                    // The row and the level were checked, so this cannot fail.
                    let _ = view.dequantize_row(*level, row, out);
                }
            }
        }
    }
}

fn multiply_scalar(
    view: &NestedView,
    level: Level,
    tile: usize,
    rows: RowList,
    out: &mut [TileValues],
) {
    let mut values = [0i16; TILE_ROWS * GROUP]; // [16 rows, 32 columns]
    out.fill([0.0; TILE_ROWS]);
    for group in 0..view.groups() {
        let decoded = view.decode_group_values(level, tile, group, &mut values);
        assert!(decoded.is_ok(), "the tile and the level were checked: {decoded:?}");
        let scales = view.group_scales(level, tile, group);
        for (row, out) in rows.rows().iter().zip(out.iter_mut()) {
            let Some(x) = rows.source().row(*row as usize).get(group) else { continue };
            add_group(&values, &scales, x, out);
        }
    }
}

/// Adds a group to the sums of 16 rows: products of each sub-block, then their minima.
fn add_group(
    values: &[i16; TILE_ROWS * GROUP],
    scales: &GroupScales,
    x: &QuantizedGroup,
    out: &mut TileValues,
) {
    let columns = GROUP / scales.sub_blocks;
    for (sub, x_values) in x.values.chunks_exact(columns).enumerate() {
        for (lane, weights) in values.chunks_exact(GROUP).enumerate() {
            let products = weights[sub * columns..].iter().zip(x_values);
            let sum: i32 = products.map(|(w, x)| i32::from(*w) * i32::from(*x)).sum();
            out[lane] = (sum as f32).fused(x.scale * scales.scales[sub][lane], out[lane]);
        }
    }
    // Default: nothing is added without minima.
    let Some(minima) = &scales.minima else { return };
    for (minima, x_values) in minima.iter().zip(x.values.chunks_exact(columns)) {
        let sum: i32 = x_values.iter().map(|x| i32::from(*x)).sum();
        for (out, minimum) in out.iter_mut().zip(minima) {
            *out = (x.scale * sum as f32).fused(*minimum, *out);
        }
    }
}

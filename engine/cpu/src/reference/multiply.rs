//! Matrix products, one element at a time.

use nestling_formats::Level;
use nestling_formats::nested::{GROUP, GroupScales, InputTransform, TILE_ROWS};

use super::ReferenceBuffer;
use crate::math;
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, MatrixWeights, NestedMatrix};

/// Weights with their multiplication mode.
#[derive(Clone, Debug)]
pub struct ReferenceMatrix {
    weights: MatrixWeights,
    activations: ActivationMode,
}

impl ReferenceMatrix {
    pub(super) fn new(weights: MatrixWeights, activations: ActivationMode) -> Self {
        Self { weights, activations }
    }

    /// Returns whether the inputs are rotated before the product.
    pub(super) fn is_rotated(&self) -> bool {
        self.weights.inputs() == InputTransform::Hadamard
    }

    pub(crate) fn weights(&self) -> &MatrixWeights {
        &self.weights
    }

    pub(crate) fn rows(&self) -> usize {
        self.weights.rows()
    }

    pub(crate) fn cols(&self) -> usize {
        self.weights.cols()
    }

    /// Reads one row of weights as floats, `[cols]`.
    pub(super) fn read_row(
        &self,
        level: Level,
        row: usize,
        out: &mut [f32],
    ) -> Result<(), EngineError> {
        match &self.weights {
            MatrixWeights::Float(matrix) => matrix.read_row(row, out),
            MatrixWeights::Nested(matrix) => {
                matrix.view().dequantize_row(matrix.prefix(level)?, row, out)?;
            }
        }
        Ok(())
    }

    /// Computes `out[t] = W x[t]` for the listed rows `t`.
    pub(super) fn multiply(
        &self,
        level: Level,
        rows: &[usize],
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        match (&self.weights, self.activations) {
            (MatrixWeights::Nested(matrix), ActivationMode::Int8) => {
                multiply_int8(matrix, level, rows, x, out)
            }
            _ => self.multiply_float(level, rows, x, out),
        }
    }

    fn multiply_float(
        &self,
        level: Level,
        rows: &[usize],
        x: &ReferenceBuffer,
        out: &mut ReferenceBuffer,
    ) -> Result<(), EngineError> {
        let (n, d) = (self.rows(), self.cols());
        let mut weights = vec![0.0; d];
        for row in 0..n {
            self.read_row(level, row, &mut weights)?;
            for &t in rows {
                out.values[t * n + row] = math::dot(&weights, &x.values[t * d..][..d]);
            }
        }
        Ok(())
    }
}

/// One row of activations in int8.
struct QuantizedRow {
    values: Vec<i8>,  // [groups, 32]
    scales: Vec<f32>, // [groups]
}

/// One row of weights in one group, with its scales.
struct GroupOfRow<'a> {
    weights: &'a [i16], // [32]
    scales: &'a GroupScales,
    lane: usize,
}

impl GroupOfRow<'_> {
    /// Adds a group to a row's sum: products of each sub-block, then their minima.
    fn add(&self, activations: &[i8], x_scale: f32, mut acc: f32) -> f32 {
        let columns = GROUP / self.scales.sub_blocks;
        let blocks = || self.weights.chunks(columns).zip(activations.chunks(columns)).enumerate();
        for (sub, (weights, activations)) in blocks() {
            let products = weights.iter().zip(activations);
            let sum: i32 = products.map(|(&w, &a)| i32::from(w) * i32::from(a)).sum();
            let scale = x_scale * self.scales.scales[sub][self.lane];
            acc = (sum as f32).mul_add(scale, acc);
        }
        let Some(minima) = &self.scales.minima else { return acc };
        for (sub, (_, activations)) in blocks() {
            let sum: i32 = activations.iter().map(|&a| i32::from(a)).sum();
            acc = (x_scale * sum as f32).mul_add(minima[sub][self.lane], acc);
        }
        acc
    }
}

impl QuantizedRow {
    fn new(x: &[f32]) -> Self {
        let groups = x.len().div_ceil(GROUP);
        let mut row = Self { values: vec![0; groups * GROUP], scales: vec![0.0; groups] };
        let out = row.values.chunks_exact_mut(GROUP).zip(&mut row.scales);
        for (x, (values, scale)) in x.chunks(GROUP).zip(out) {
            *scale = math::quantize_group(x, values);
        }
        row
    }
}

fn multiply_int8(
    matrix: &NestedMatrix,
    level: Level,
    rows: &[usize],
    x: &ReferenceBuffer,
    out: &mut ReferenceBuffer,
) -> Result<(), EngineError> {
    let (view, level) = (matrix.view(), matrix.prefix(level)?);
    let (n, d) = (matrix.rows(), matrix.cols());
    let quantized: Vec<QuantizedRow> =
        rows.iter().map(|t| QuantizedRow::new(&x.values[t * d..][..d])).collect();
    let mut values = [0i16; TILE_ROWS * GROUP]; // [16 rows, 32 columns]
    for tile in 0..view.tiles() {
        for group in 0..view.groups() {
            view.decode_group_values(level, tile, group, &mut values)?;
            let scales = view.group_scales(level, tile, group);
            for (&t, x) in rows.iter().zip(&quantized) {
                let activations = &x.values[group * GROUP..][..GROUP];
                for lane in 0..TILE_ROWS.min(n - tile * TILE_ROWS) {
                    let weights = &values[lane * GROUP..][..GROUP];
                    let row = GroupOfRow { weights, scales: &scales, lane };
                    let acc = &mut out.values[t * n + tile * TILE_ROWS + lane];
                    *acc = row.add(activations, x.scales[group], *acc);
                }
            }
        }
    }
    Ok(())
}

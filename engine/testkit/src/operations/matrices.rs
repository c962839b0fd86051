//! Matrices in all storage forms.

use std::sync::Arc;

use nestling_core::backend::{Backend, Linear};
use nestling_core::weights::{
    ActivationMode, ByteRegion, FloatMatrix, MatrixWeights, NestedMatrix, PlaneRegions,
};
use nestling_formats::nested::{
    CodecFitter, InputTransform, Layout, Mxfp4Fitter, PlaneForm, QuantizeOptions, QuantizedMatrix,
    decode_mxfp4, merge_p3_p4, merged_bytes, pack_plane, plane_bytes, quantize_matrix,
    quantize_mxfp4,
};
use nestling_formats::{DType, Level, Plane};
use nestling_import::gguf::BlockType;

use super::scaled_matrix::{ScaleBits, ScaledPlanes, scaled};
use crate::values::{EPSILON, noise};

/// Storage form of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixForm {
    Float(DType),
    /// Tiles, with P3 and P4 separate.
    Tiled,
    /// Tiles, with P3 and P4 merged.
    Merged,
    RowMajor,
    /// Tiles with rotated inputs.
    Rotated,
    /// Tiles of MXFP4 weights: scales are powers of two, and levels end at 4.
    Octaves,
    /// Scaled integers of a GGUF block type.
    Scaled(BlockType, ScaledPlanes),
}

/// Returns deterministic weights. Nested matrices have several tables.
pub fn weights(form: MatrixForm, rows: usize, cols: usize, seed: u32) -> MatrixWeights {
    let values = noise(rows * cols, seed);
    match form {
        MatrixForm::Float(dtype) => float(dtype, rows, cols, &values),
        MatrixForm::Octaves => MatrixWeights::Nested(octaves(rows, cols, &values)),
        MatrixForm::Scaled(kind, lie) => {
            MatrixWeights::Nested(scaled((kind, lie), (rows, cols), seed, ScaleBits::All))
        }
        _ => MatrixWeights::Nested(nested(form, rows, cols, &values)),
    }
}

fn float(dtype: DType, rows: usize, cols: usize, values: &[f32]) -> MatrixWeights {
    let bytes = values.iter().flat_map(|x| match dtype {
        DType::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        _ => x.to_le_bytes().to_vec(),
    });
    let region = ByteRegion::from_vec(bytes.collect());
    MatrixWeights::Float(FloatMatrix::new(rows, cols, dtype, region).unwrap())
}

fn nested(form: MatrixForm, rows: usize, cols: usize, values: &[f32]) -> NestedMatrix {
    let mut options = QuantizeOptions::default();
    options.tables = 3;
    let mut fitter = CodecFitter::new(&options);
    fitter.add(values, rows, cols, None).unwrap();
    let mut codec = fitter.finish().unwrap();
    if form == MatrixForm::Rotated {
        codec.inputs = InputTransform::Hadamard;
    }
    let matrix = quantize_matrix(values, rows, cols, &codec, None, &options).unwrap();
    let layout = if form == MatrixForm::RowMajor { Layout::RowMajor } else { Layout::Tile16 };
    let mut regions = regions(&matrix, layout, Level::L8);
    if let (MatrixForm::Merged, Some(p3), Some(p4)) = (form, &regions.p3, &regions.p4) {
        let mut merged = vec![0; merged_bytes(layout, rows, cols).unwrap()];
        merge_p3_p4(layout, p3.bytes(), p4.bytes(), &mut merged).unwrap();
        (regions.p3, regions.p4) = (None, None);
        regions.p34 = Some(ByteRegion::from_vec(merged));
    }
    NestedMatrix::new(rows, cols, layout, Arc::new(codec), regions, Level::ALL).unwrap()
}

/// Returns the planes of a matrix up to a level.
fn regions(matrix: &QuantizedMatrix, layout: Layout, level: Level) -> PlaneRegions {
    let region = |plane: Plane| {
        let mut bytes = vec![0; plane_bytes(layout, matrix.rows, matrix.cols, plane).unwrap()];
        pack_plane(matrix, layout, plane, &mut bytes).unwrap();
        (plane.level() <= level).then(|| ByteRegion::from_vec(bytes))
    };
    PlaneRegions {
        p2: region(Plane::P2).unwrap(),
        p3: region(Plane::P3),
        p4: region(Plane::P4),
        p34: None,
        p6: region(Plane::P6),
        p8: region(Plane::P8),
    }
}

/// Returns MXFP4 weights in whole blocks, with elements and scales derived from the values.
fn octaves(rows: usize, cols: usize, values: &[f32]) -> NestedMatrix {
    let mut weights = vec![0.0; rows * cols];
    for (weights, values) in weights.as_chunks_mut::<32>().0.iter_mut().zip(values.chunks(32)) {
        let block = std::array::from_fn(|at| (values[at] * 128.0) as i8 as u8);
        decode_mxfp4(&block, 118 + (values[31].abs() * 12.0) as u8, weights);
    }
    let mut options = QuantizeOptions::default();
    options.tables = 2;
    let mut fitter = Mxfp4Fitter::new(&options);
    fitter.add(&weights, rows, cols, None).unwrap();
    let codec = fitter.finish().unwrap();
    let matrix = quantize_mxfp4(&weights, rows, cols, &codec, &options).unwrap();
    let regions = regions(&matrix, Layout::Tile16, Level::L4);
    let matrix =
        NestedMatrix::new(rows, cols, Layout::Tile16, Arc::new(codec), regions, Level::ALL);
    matrix.unwrap().at_most_held()
}

/// Uploads a matrix, with or without a bias.
pub fn linear<B: Backend>(
    backend: &mut B,
    weights: &MatrixWeights,
    mode: ActivationMode,
    bias: Option<u32>,
) -> Linear<B> {
    let matrix = backend.upload_matrix(weights, mode).unwrap();
    let bias = bias.map(|seed| backend.upload_floats(&noise(weights.rows(), seed)).unwrap());
    Linear::new(matrix, bias)
}

/// Error bounds of products: the sum of the magnitudes of all terms, for each row of activations and of the
/// matrix.
pub struct Magnitudes {
    rows: usize,
    sums: Vec<f32>, // [rows of activations, rows]
    /// Maximum effect of values next to a rounding boundary.
    borders: Vec<f32>,
    additions: usize,
}

impl Magnitudes {
    pub fn new(weights: &MatrixWeights, mode: ActivationMode, levels: &[Level], x: &[f32]) -> Self {
        Self::of_inexact(weights, mode, levels, (x, &vec![0.0; x.len()]))
    }

    /// Computes bounds for activations that are known to within `slack`.
    pub fn of_inexact(
        weights: &MatrixWeights,
        mode: ActivationMode,
        levels: &[Level],
        (x, slack): (&[f32], &[f32]),
    ) -> Self {
        let (rows, cols) = (weights.rows(), weights.cols());
        let int8 = mode == ActivationMode::Int8 && matches!(weights, MatrixWeights::Nested(_));
        let additions = if int8 { sub_blocks(weights) * cols.div_ceil(32) } else { cols };
        let mut magnitudes = Self { rows, sums: Vec::new(), borders: Vec::new(), additions };
        let mut row_weights = vec![0.0; cols];
        for ((level, x), slack) in levels.iter().zip(x.chunks(cols)).zip(slack.chunks(cols)) {
            let (inputs, steps) = match int8 {
                true => int8_inputs(x, slack),
                false => (x.to_vec(), slack.to_vec()),
            };
            for row in 0..rows {
                read_row(weights, *level, row, &mut row_weights);
                let sum = |x: &[f32]| x.iter().zip(&row_weights).map(|(x, w)| (x * w).abs()).sum();
                magnitudes.sums.push(sum(&inputs));
                magnitudes.borders.push(sum(&steps));
            }
        }
        magnitudes
    }

    /// Returns the tolerance of one output. Both sides round at most twice per addition and three more times,
    /// then add at most `added`. Both may be on different sides of a rounding boundary.
    pub fn tolerance(&self, row: usize, col: usize, added: f32) -> f32 {
        let at = row * self.rows + col;
        let roundings = (2 * self.additions + 6) as f32;
        2.0 * EPSILON * (roundings * self.sums[at] + added) + self.borders[at]
    }
}

/// Returns the maximum magnitudes of int8 activations, and the maximum error of each. A value may be off by
/// one unit if it is as close to a rounding boundary as a device's division error, 3 units in the last place.
/// The error of the group's largest value, which is its scale, is added.
fn int8_inputs(x: &[f32], slack: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let (mut inputs, mut steps) = (Vec::new(), Vec::new());
    for (group, slack) in x.chunks(32).zip(slack.chunks(32)) {
        let largest = group.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let unit = f64::from(largest) / 127.0;
        let inexact = slack.iter().fold(0.0f32, |most, x| most.max(*x)) / largest;
        for (x, slack) in group.iter().zip(slack) {
            let scaled = f64::from(x.abs()) / unit;
            let to_border = (scaled.fract() - 0.5).abs();
            let rounding = (8.0 * f64::from(EPSILON) + f64::from(inexact)) * scaled;
            let near = to_border <= rounding + f64::from(*slack) / unit;
            inputs.push(x.abs() + largest / 254.0);
            let flip = if near { largest / 127.0 } else { 0.0 };
            steps.push(flip + inexact * (x.abs() + largest / 254.0));
        }
    }
    (inputs, steps)
}

/// Returns the number of sums per group of 32 columns, excluding those of minima.
fn sub_blocks(weights: &MatrixWeights) -> usize {
    match weights {
        MatrixWeights::Nested(matrix) => match matrix.codec().form() {
            PlaneForm::Scaled(form) => form.sub_blocks(),
            PlaneForm::Nested => 1,
        },
        MatrixWeights::Float(_) => 1,
    }
}

fn read_row(weights: &MatrixWeights, level: Level, row: usize, out: &mut [f32]) {
    match weights {
        MatrixWeights::Float(matrix) => matrix.read_row(row, out),
        MatrixWeights::Nested(matrix) => {
            let level = matrix.prefix(level).unwrap();
            matrix.view().dequantize_row(level, row, out).unwrap();
        }
    }
}

//! Measures the cost of nested codes for each kind of matrix, compared with a separate code per level.
//!
//! `nesting_kinds FOLDER [TOKENS] [EXPERTS]` passes calibration tokens through a checkpoint. It quantizes the
//! matrices of all layers, and of some experts, once nested and once for each level separately, as the
//! converter does with rotation. It prints `tr(E H Eᵀ)` of nested codes relative to the separate ones, as
//! geometric means.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use nestling_convert::calibrate::{CalibrationTokens, Calibrator};
use nestling_core::CancelToken;
use nestling_cpu::threads::ThreadPool;
use nestling_formats::nested::{
    CodecFitter, DampedMoments, InputCalibration, InputTransform, NestedError, QuantizeOptions,
    SecondMoments, TableRefit, level_errors, quantize_calibrated,
};
use nestling_formats::{Level, MatrixId, MatrixKind};
use nestling_import::Checkpoint;
use nestling_text::{EncodeOptions, SpecialText, Tokenizer};

/// Damping of the second moments, as in a conversion.
const DAMPING: f32 = 0.05;

struct Matrix {
    weights: Vec<f32>,
    rows: usize,
    cols: usize,
    moments: SecondMoments,
    damped: DampedMoments,
}

/// Sums of logarithms of ratios for each level, and the number of matrices.
type Ratios = BTreeMap<String, ([f64; 5], usize)>;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| {
        arguments.get(at).map_or(Ok(default), |text| text.parse::<usize>())
    };
    let folder = arguments.first().ok_or("give a checkpoint's folder")?;
    let (count, experts) = (number(1, 32_768)?, number(2, 4)?);
    let checkpoint = Checkpoint::open(Path::new(folder))?;
    let tokens = CalibrationTokens::new(text_tokens(&checkpoint, count)?)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut calibrator = Calibrator::new(&checkpoint, &tokens, Arc::new(ThreadPool::new(threads)))?;
    let mut ratios = Ratios::new();
    for layer in 0..checkpoint.config().num_hidden_layers as u32 {
        calibrator.begin_layer(&CancelToken::new(), &mut |_| {})?;
        for (kind, matrices) in matrices(&checkpoint, &calibrator, layer, experts)? {
            add(&mut ratios, kind, &matrices)?;
        }
        calibrator.end_layer();
    }
    println!("| matrices | 2 | 3 | 4 | 6 | 8 |\n|---|---:|---:|---:|---:|---:|");
    for (kind, (sums, count)) in ratios {
        let means = sums.map(|sum| format!("{:.2}", (sum / count as f64).exp()));
        println!("| {kind} | {} |", means.join(" | "));
    }
    Ok(())
}

/// Returns a layer's matrices, grouped by shared codec, with the moments of their inputs.
fn matrices(
    checkpoint: &Checkpoint,
    calibrator: &Calibrator<'_>,
    layer: u32,
    experts: usize,
) -> Result<BTreeMap<String, Vec<Matrix>>, Box<dyn Error>> {
    let mut by_kind: BTreeMap<String, Vec<Matrix>> = BTreeMap::new();
    for shape in &checkpoint.shape().matrices {
        let id: MatrixId = shape.id;
        if id.layer != Some(layer) || id.expert.is_some_and(|expert| expert as usize >= experts) {
            continue;
        }
        let place = checkpoint.matrix(id)?;
        let (rows, cols) = (place.rows(), place.cols());
        let mut weights = checkpoint.read_matrix(id)?;
        let mut moments = calibrator.moments(id)?;
        if id.kind == MatrixKind::Down {
            InputTransform::Hadamard.transform_weights(&mut weights, cols)?;
            moments = InputTransform::Hadamard.transform_moments(&moments)?;
        }
        let damped = DampedMoments::new(&moments, DAMPING)?;
        let matrix = Matrix { weights, rows, cols, moments, damped };
        let owner = if id.expert.is_some() { "expert " } else { "" };
        let kind = format!("{owner}{:?}", id.kind).to_lowercase();
        by_kind.entry(kind).or_default().push(matrix);
    }
    Ok(by_kind)
}

fn add(ratios: &mut Ratios, kind: String, matrices: &[Matrix]) -> Result<(), NestedError> {
    let nested = logs(matrices, &QuantizeOptions::default())?;
    let (sums, count) = ratios.entry(kind).or_default();
    for level in Level::ALL {
        let mut options = QuantizeOptions::default();
        let mut only = [0.0; 5];
        only[level.index()] = 1.0;
        (options.level_weights, options.calibrated.level_weights) = (only, only);
        let alone = logs(matrices, &options)?;
        for (nested, alone) in nested.iter().zip(&alone) {
            sums[level.index()] += nested[level.index()] - alone[level.index()];
        }
    }
    *count += matrices.len();
    Ok(())
}

/// Returns the logarithms of the errors at all levels, for each matrix.
fn logs(matrices: &[Matrix], options: &QuantizeOptions) -> Result<Vec<[f64; 5]>, NestedError> {
    let mut fitter = CodecFitter::new(options);
    for matrix in matrices {
        let importance = matrix.moments.diagonal();
        fitter.add(&matrix.weights, matrix.rows, matrix.cols, Some(&importance))?;
    }
    let mut codec = fitter.finish()?;
    let mut refit = TableRefit::new(&codec);
    for Matrix { weights, rows, cols, moments, damped } in matrices {
        let known = InputCalibration { moments, damped };
        let coded = quantize_calibrated(weights, *rows, *cols, &codec, &known, options)?;
        refit.add(weights, &coded, &known)?;
    }
    refit.finish(&mut codec);
    let mut all = Vec::with_capacity(matrices.len());
    for Matrix { weights, rows, cols, moments, damped } in matrices {
        let known = InputCalibration { moments, damped };
        let coded = quantize_calibrated(weights, *rows, *cols, &codec, &known, options)?;
        let errors = level_errors(weights, *rows, *cols, &coded, &codec, moments)?;
        all.push(errors.map(f64::ln));
    }
    Ok(all)
}

fn text_tokens(checkpoint: &Checkpoint, count: usize) -> Result<Vec<u32>, Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(root.join("apps/cli/data/calibration.txt"))?;
    let file = "tokenizer.json";
    let bytes = checkpoint.asset(file)?.ok_or("the checkpoint has no tokenizer")?;
    let options = EncodeOptions { add_special_tokens: false, special_text: SpecialText::Parse };
    let mut tokens = Tokenizer::from_bytes(file, &bytes)?.encode(&text, options)?;
    tokens.truncate(count);
    Ok(tokens)
}

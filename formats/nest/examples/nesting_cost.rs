//! The cost of serving five levels with one code, and the speed of the code search.
//!
//! `cargo run --release -p nestling-formats --example nesting_cost [ROWS COLS]` uses synthetic weights and
//! inputs. It prints `tr(E H Eᵀ)` of each level of the nested code, relative to the same quantizer run for
//! that level alone (codec, scales and codes). The numbers are geometric means over a few matrices. It also
//! prints microseconds per weight on one thread.
#![expect(clippy::print_stdout, reason = "the result is printed")]

use std::time::Instant;

use nestling_formats::Level;
use nestling_formats::nested::{
    CodecFitter, DampedMoments, InputCalibration, NestedError, QuantizeOptions, SecondMoments,
    TableRefit, level_errors, quantize_calibrated, quantize_matrix,
};

const MATRICES: u64 = 3;

struct Matrix {
    weights: Vec<f32>,
    moments: SecondMoments,
    damped: DampedMoments,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = std::env::args().skip(1).map(|text| text.parse());
    let arguments = arguments.collect::<Result<Vec<usize>, _>>()?;
    let (rows, cols) = match arguments[..] {
        [rows, cols] => (rows, cols),
        _ => (256, 256),
    };
    println!("Nesting of {rows} x {cols} matrices whose inputs go together to some degree\n");
    println!("| correlation | rounding 2 / 3 / 4 / 6 / 8 | nested | moments s | us/weight |");
    println!("|---|---|---|---|---|");
    for correlation in [0.0, 0.5, 0.9] {
        let begun = Instant::now();
        let matrices = (0..MATRICES)
            .map(|seed| matrix(seed, rows, cols, correlation))
            .collect::<Result<Vec<_>, _>>()?;
        let made = begun.elapsed().as_secs_f64() / MATRICES as f64;
        let mut native = [0.0; 5];
        for level in Level::ALL {
            let mut options = QuantizeOptions::default();
            let mut only = [0.0; 5];
            only[level.index()] = 1.0;
            (options.level_weights, options.calibrated.level_weights) = (only, only);
            native[level.index()] = logs(&matrices, rows, cols, &options, true)?[level.index()];
        }
        let plain = logs(&matrices, rows, cols, &QuantizeOptions::default(), false)?;
        let begun = Instant::now();
        let nested = logs(&matrices, rows, cols, &QuantizeOptions::default(), true)?;
        let time = begun.elapsed().as_secs_f64() / (MATRICES as usize * rows * cols) as f64;
        let ratio = |logs: [f64; 5]| -> String {
            let ratios = logs.iter().zip(&native).map(|(log, native)| (log - native).exp());
            ratios.map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" / ")
        };
        let (plain, nested) = (ratio(plain), ratio(nested));
        println!("| {correlation} | {plain} | {nested} | {made:.2} | {:.2} |", time * 1e6);
    }
    Ok(())
}

/// Returns the mean logarithms of the errors of all levels.
fn logs(
    matrices: &[Matrix],
    rows: usize,
    cols: usize,
    options: &QuantizeOptions,
    calibrated: bool,
) -> Result<[f64; 5], NestedError> {
    let mut fitter = CodecFitter::new(options);
    for matrix in matrices {
        fitter.add(&matrix.weights, rows, cols, Some(&matrix.moments.diagonal()))?;
    }
    let mut codec = fitter.finish()?;
    let mut logs = [0.0; 5];
    for last in [false, true] {
        let mut refit = TableRefit::new(&codec);
        for Matrix { weights, moments, damped } in matrices {
            let known = InputCalibration { moments, damped };
            let coded = if calibrated {
                quantize_calibrated(weights, rows, cols, &codec, &known, options)?
            } else {
                let importance = moments.diagonal();
                quantize_matrix(weights, rows, cols, &codec, Some(&importance), options)?
            };
            if last {
                let errors = level_errors(weights, rows, cols, &coded, &codec, moments)?;
                for (log, error) in logs.iter_mut().zip(errors) {
                    *log += error.ln() / matrices.len() as f64;
                }
            } else if calibrated {
                refit.add(weights, &coded, &known)?;
            }
        }
        if calibrated && !last {
            refit.finish(&mut codec);
        }
    }
    Ok(logs)
}

/// Returns Gaussian weights and the moments of autocorrelated inputs.
fn matrix(seed: u64, rows: usize, cols: usize, correlation: f32) -> Result<Matrix, NestedError> {
    let weights = bell(2 * seed, rows * cols);
    let own = (1.0 - correlation * correlation).sqrt();
    let mut values = vec![0.0; cols * cols];
    // Moments of infinitely many inputs of an autoregressive process, with random magnitudes.
    let sizes: Vec<f32> = bell(2 * seed + 1, cols).iter().map(|size| size.exp()).collect();
    for (row, values) in values.chunks_exact_mut(cols).enumerate() {
        for (col, value) in values.iter_mut().enumerate() {
            let distance = i32::try_from(row.abs_diff(col)).unwrap_or(i32::MAX);
            *value = sizes[row] * sizes[col] * correlation.powi(distance);
            *value += if row == col { 1e-3 * own } else { 0.0 };
        }
    }
    let moments = SecondMoments::from_upper(cols, values, 1)?;
    let damped = DampedMoments::new(&moments, 0.01)?;
    Ok(Matrix { weights, moments, damped })
}

/// Returns pseudo-random numbers, each a sum of six uniform ones: close to Gaussian.
fn bell(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let mut uniform = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (0..6).map(|_| uniform()).sum()).collect()
}

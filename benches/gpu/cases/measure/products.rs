//! Measures large products at every level, for one row and for many. The planes of level 4 are merged or
//! separate.

use nestling_benches::RandomMatrix;
use nestling_core::EngineError;
use nestling_core::backend::{Encoder, Linear, Write};
use nestling_core::weights::ActivationMode;
use nestling_formats::Level;
use serde_json::json;

use super::device::{Measurement, TimedBackend, buffer, is_dry, name, tell};

/// Measurement of products in one launch.
pub struct Products;

/// Returns the number of matrices of one launch, and their outputs and inputs. Together they exceed a cache
/// by far.
fn shape() -> (usize, usize, usize) {
    if is_dry() { (2, 64, 128) } else { (16, 14_336, 4096) }
}

/// Numbers of activation rows, each with the number of matrices.
const ROWS: [(usize, usize); 4] = [(1, 16), (4, 16), (64, 4), (512, 4)];

/// Returns the name of the kernel for `rows` rows.
fn kernel(rows: usize) -> &'static str {
    match (name().as_str(), rows) {
        ("vulkan", ..9) => "matmul_nested",
        ("vulkan", _) => "matmul_nested_rows",
        (_, 1) => "matvec_nested",
        (_, ..9) => "matvec_nested_rows",
        _ => "matmul_nested",
    }
}

impl Measurement for Products {
    fn on<B: TimedBackend>(&self, mut device: B) -> Result<(), EngineError> {
        let (count, outputs, inputs) = shape();
        let matrix = RandomMatrix::new(outputs, inputs, Level::L8)?;
        for merged in [true, false] {
            let weights = matrix.weights(merged)?;
            let mut linears: Vec<Linear<B>> = Vec::new();
            for _ in 0..count {
                let matrix = device.upload_matrix(&weights, ActivationMode::Int8)?;
                linears.push(Linear::new(matrix, None));
            }
            for (rows, matrices) in ROWS {
                // The portable backend takes a second for this many rows.
                if rows > 64 && (is_dry() || name() == "vulkan") {
                    continue;
                }
                let linears = &linears[..matrices.min(count)];
                for level in Level::ALL {
                    // The base plane has no merged form.
                    if merged || level != Level::L2 {
                        measure(&mut device, linears, level, merged, rows)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn measure<B: TimedBackend>(
    device: &mut B,
    linears: &[Linear<B>],
    level: Level,
    merged: bool,
    rows: usize,
) -> Result<(), EngineError> {
    let (_, outputs, inputs) = shape();
    let bytes: u64 = linears.iter().map(|one| B::matrix_bytes(&one.matrix, level)).sum();
    let x = buffer(device, (rows, inputs))?;
    let mut out = device.buffer(rows, linears.len() * outputs)?;
    let levels = vec![level; rows];
    let timing =
        device.timed(|encoder| encoder.matmul(linears, &levels, &x, Write::Set, &mut out))?;
    tell(&json!({ "bandwidth": [{
        "kernel": kernel(rows),
        "level": level.bits(),
        "planes": if merged { "merged" } else { "apart" },
        "rows": outputs,
        "columns": inputs,
        "matrices": linears.len(),
        "input_rows": rows,
        "bytes": bytes,
        "microseconds": timing.microseconds,
        "launches": timing.runs,
        "clock": B::CLOCK,
    }] }));
    Ok(())
}

//! Runs the kernels to be profiled, each a few times, since a profiler repeats every launch.

use nestling_benches::RandomMatrix;
use nestling_core::EngineError;
use nestling_core::backend::{Encoder, Linear, Write};
use nestling_core::driver::block_on;
use nestling_core::weights::ActivationMode;
use nestling_formats::Level;
use serde_json::json;

use super::device::{Measurement, TimedBackend, buffer, is_dry, tell};
use super::layer::{Model, Sizes, rows_of_profile};

/// The profiled kernels: `matvec_nested` and `matmul_nested` with large shapes, `matvec_gated_quantize` and
/// `attend_split_f16` in a layer, and `argmax`.
pub struct Kernels;

impl Measurement for Kernels {
    fn on<B: TimedBackend>(&self, mut device: B) -> Result<(), EngineError> {
        let (outputs, inputs, tokens) =
            if is_dry() { (64, 128, 1000) } else { (14_336, 4096, 151_936) };
        let weights = RandomMatrix::new(outputs, inputs, Level::L4)?.weights(true)?;
        let mut linears = Vec::new();
        for _ in 0..if is_dry() { 1 } else { 8 } {
            let matrix = device.upload_matrix(&weights, ActivationMode::Int8)?;
            linears.push(Linear::new(matrix, None));
        }
        for rows in [1, 64] {
            let x = buffer(&mut device, (rows, inputs))?;
            let mut out = device.buffer(rows, linears.len() * outputs)?;
            let mut encoder = device.encoder();
            encoder.matmul(&linears, &vec![Level::L4; rows], &x, Write::Set, &mut out)?;
            encoder.flush()?;
        }
        let logits = buffer(&mut device, (1, tokens))?;
        let mut best = Vec::new();
        let mut encoder = device.encoder();
        block_on(encoder.argmax_into(&logits, tokens, &mut best))?;
        drop(encoder);
        let mut model = Model::new(&mut device, Sizes::requested())?;
        let mut encoder = device.encoder();
        model.record(&mut encoder, &rows_of_profile(), None)?;
        encoder.flush()?;
        drop(encoder);
        tell(&json!({ "profiled": true }));
        Ok(())
    }
}

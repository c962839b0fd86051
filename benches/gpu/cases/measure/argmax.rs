//! Measures the argmax over the logits of a large vocabulary.

use std::time::Instant;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, Encoder, EncoderExt};
use nestling_core::driver::block_on;
use serde_json::json;

use super::device::{Measurement, TimedBackend, buffer, is_dry, median, tell};

/// Measurement of the argmax at the end of a step.
pub struct Argmax;

/// Size of Qwen3's vocabulary.
const TOKENS: usize = 151_936;

impl Measurement for Argmax {
    fn on<B: TimedBackend>(&self, mut device: B) -> Result<(), EngineError> {
        let (tokens, times) = if is_dry() { (1000, 3) } else { (TOKENS, 200) };
        let x = buffer(&mut device, (1, tokens))?;
        let mark = buffer(&mut device, (1, 1))?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..times {
            without.push(microseconds(&mut device, |encoder| {
                block_on(encoder.read(&mark)).map(drop)
            })?);
            with.push(microseconds(&mut device, |encoder| {
                let mut out = Vec::new();
                block_on(encoder.argmax_into(&x, tokens, &mut out))
            })?);
        }
        let (with, without) = (median(with), median(without));
        tell(&json!({
            "argmax_microseconds": with - without,
            "argmax": {
                "tokens": tokens,
                "step_microseconds": with,
                "empty_step_microseconds": without,
                "steps": times,
                "clock": "the host's: a step that finds the largest and brings it to the host, less one that brings one value",
            },
        }));
        Ok(())
    }
}

fn microseconds<B: Backend>(
    device: &mut B,
    step: impl FnOnce(&mut B::Encoder<'_>) -> Result<(), EngineError>,
) -> Result<f64, EngineError> {
    let begun = Instant::now();
    let mut encoder = device.encoder();
    step(&mut encoder)?;
    drop(encoder);
    Ok(begun.elapsed().as_secs_f64() * 1e6)
}

//! Scaling of RoPE frequencies in files that store one divisor per frequency (Llama 3).

use nestling_formats::Invariant;
use serde_json::{Map, Value, json};

use super::GgufHeader;
use crate::ImportError;
use crate::names::FREQUENCY_FACTORS;

/// Rotations within the original training context below which Llama 3 counts a frequency as low.
const LOW: f64 = 1.0;

/// Rotations within the original training context above which Llama 3 counts a frequency as high.
const HIGH: f64 = 4.0;

/// Original context lengths to try, as powers of two, the published one first.
const CONTEXTS: [u32; 18] = [13, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 19, 20, 21];

/// Maximum relative difference of a divisor from the formula. The converter computes in f32, where the sums of
/// the interpolation lose up to 1e-5.
const TOLERANCE: f64 = 1e-4;

/// Returns `rope_scaling` for the divisors of a file, `None` if they change nothing. Divisors that follow
/// Llama 3's formula become its parameters; all others remain a list.
///
/// # Errors
/// Returns an [`ImportError`] if the number of divisors is not `dims / 2`.
pub(super) fn rope_scaling(
    header: &GgufHeader,
    divisors: &[f32],
    config: &Map<String, Value>,
    dims: u64,
) -> Result<Option<Value>, ImportError> {
    if divisors.len() as u64 != dims / 2 {
        let tensor = header.tensors.iter().find(|tensor| tensor.name == FREQUENCY_FACTORS);
        let tensor = tensor.invariant("divisors are read from a tensor")?;
        return Err(ImportError::Tensor {
            file: header.metadata.file().into(),
            tensor: FREQUENCY_FACTORS.into(),
            offset: tensor.offset,
            expected: format!("{} divisors, for {dims} rotated elements of a head", dims / 2),
            found: divisors.len().to_string(),
        });
    }
    if divisors.iter().all(|divisor| *divisor == 1.0) {
        return Ok(None);
    }
    let theta = config.get("rope_theta").and_then(Value::as_f64);
    let length = theta.and_then(|theta| {
        let lengths = CONTEXTS.iter().map(|power| 1u64 << power);
        lengths.into_iter().find(|length| is_llama3(divisors, theta, dims, *length as f64))
    });
    Ok(Some(match length {
        Some(length) => json!({
            "rope_type": "llama3",
            // The lowest frequency is divided by the whole factor.
            "factor": divisors.last(),
            "low_freq_factor": LOW,
            "high_freq_factor": HIGH,
            "original_max_position_embeddings": length,
        }),
        None => json!({
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }),
    }))
}

/// Returns true if Llama 3's formula with an original context of `length` positions gives the divisors.
fn is_llama3(divisors: &[f32], theta: f64, dims: u64, length: f64) -> bool {
    // Default: without divisors, there is nothing to scale.
    let Some(factor) = divisors.last().copied().map(f64::from) else { return false };
    (0u32..).zip(divisors).all(|(pair, divisor)| {
        let wavelength =
            std::f64::consts::TAU * libm::pow(theta, f64::from(2 * pair) / dims as f64);
        let kept = ((length / wavelength - LOW) / (HIGH - LOW)).clamp(0.0, 1.0);
        let expected = 1.0 / ((1.0 - kept) / factor + kept);
        (f64::from(*divisor) / expected - 1.0).abs() <= TOLERANCE
    })
}

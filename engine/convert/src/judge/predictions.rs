//! Predictions of the unquantized model, with what each comparison with them needs.

use nestling_formats::memory::try_with_capacity;

use nestling_core::error::EngineError;

/// Name of the logits in out-of-memory errors.
const LOGITS: &str = "the logits of a text that is judged";

/// Logits of some rows, their probabilities and their logarithmic sums.
pub(crate) struct Predictions {
    vocab_size: usize,
    logits: Vec<f32>,        // [rows, vocab_size]
    probabilities: Vec<f32>, // [rows, vocab_size]
    log_sums: Vec<f64>,      // [rows]
}

impl Predictions {
    /// Creates an empty list with room for `rows`.
    ///
    /// # Errors
    /// Fails with [`EngineError::Memory`].
    pub fn with_capacity(rows: usize, vocab_size: usize) -> Result<Self, EngineError> {
        Ok(Self {
            vocab_size,
            logits: try_with_capacity(LOGITS, rows.saturating_mul(vocab_size))?,
            probabilities: try_with_capacity(LOGITS, rows.saturating_mul(vocab_size))?,
            log_sums: Vec::with_capacity(rows),
        })
    }

    /// Adds a row and returns its logarithmic sum.
    pub fn push(&mut self, logits: &[f32]) -> f64 {
        let log_sum = log_sum_exp(logits);
        let probability = |logit: &f32| (f64::from(*logit) - log_sum).exp() as f32;
        self.probabilities.extend(logits.iter().map(probability));
        self.logits.extend_from_slice(logits);
        self.log_sums.push(log_sum);
        log_sum
    }

    /// Returns the logits of a row, `[vocab_size]`.
    pub fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocab_size..][..self.vocab_size]
    }

    /// Returns the Kullback–Leibler divergence of other logits from those of a row. `log_sum` is their logarithmic sum.
    pub fn divergence(&self, row: usize, other: &[f32], log_sum: f64) -> f64 {
        let probabilities = &self.probabilities[row * self.vocab_size..][..self.vocab_size];
        // Computes sum of p * (log p - log q), with both log-sums factored out.
        let mut divergence = log_sum - self.log_sums[row];
        for ((p, r), q) in probabilities.iter().zip(self.logits(row)).zip(other) {
            divergence += f64::from(*p) * (f64::from(*r) - f64::from(*q));
        }
        divergence
    }
}

/// Computes `log(sum(exp(logits)))`.
pub(crate) fn log_sum_exp(logits: &[f32]) -> f64 {
    let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    best + logits.iter().map(|logit| (f64::from(*logit) - best).exp()).sum::<f64>().ln()
}

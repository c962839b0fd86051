//! Sums over the evaluated positions, and the results computed from them.

use nestling_formats::Level;
use serde::Serialize;

use super::{Expected, argmax, log_sum_exp, run};
use nestling_core::batch::LevelPolicy;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::runner::{ModelRunner, StepStats};

/// A mean with its standard error over sequences, which are independent. Tokens of one sequence are not
/// independent, so that a standard error over tokens would be too small.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Mean {
    /// Mean.
    pub mean: f64,
    /// Standard error; `None` for fewer than two sequences.
    pub standard_error: Option<f64>,
}

impl Mean {
    pub(super) fn of(values: &[f64]) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let standard_error = (values.len() > 1).then(|| (squares / (count - 1.0) / count).sqrt());
        Self { mean, standard_error }
    }
}

/// Results for one point on one path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Findings {
    /// Perplexity.
    pub perplexity: f64,
    /// Logarithm of the ratio of perplexity to that of the unquantized model.
    pub ln_perplexity_ratio: Mean,
    /// Divergence from the unquantized model in nats.
    pub kl: Mean,
    /// Median of the divergence.
    pub kl_median: f64,
    /// 99th percentile of the divergence.
    pub kl_p99: f64,
    /// Share of positions with the same most likely token as the unquantized model.
    pub top1: Mean,
    /// Bytes of experts that a single token reads; `None` without experts in planes.
    pub expert_bytes_per_token: Option<f64>,
    /// Mean level at which experts were computed, in bits, before limits by allocations.
    pub expert_mean_level: Option<f64>,
}

/// Sums over the positions evaluated so far.
#[derive(Clone, Default)]
pub(super) struct Tally {
    divergences: Vec<f64>,
    /// Mean of each sequence.
    kl: Vec<f64>,
    nll: Vec<f64>,
    kept: Vec<f64>,
    uses: Vec<ExpertUses>,
}

/// Levels and bytes of the computed experts.
#[derive(Clone, Copy, Default)]
pub(super) struct ExpertUses {
    by_level: [u64; 5],
    bytes: u64,
}

impl ExpertUses {
    pub fn add(&mut self, step: &StepStats) {
        self.by_level.iter_mut().zip(step.expert_uses).for_each(|(sum, uses)| *sum += uses);
        self.bytes += step.expert_use_bytes;
    }

    pub fn bytes_per_token(all: &[Self], tokens: usize) -> f64 {
        all.iter().map(|uses| uses.bytes).sum::<u64>() as f64 / tokens as f64
    }

    /// Returns the mean level in bits, or `None` if no expert was computed at a level.
    pub fn mean_level(all: &[Self]) -> Option<f64> {
        let of_level = |level: Level| all.iter().map(|uses| uses.by_level[level.index()]).sum();
        let by_level: [u64; 5] = Level::ALL.map(of_level);
        let bits = Level::ALL.into_iter().zip(by_level);
        let bits: u64 = bits.map(|(level, uses)| u64::from(level.bits()) * uses).sum();
        let uses: u64 = by_level.iter().sum();
        (uses > 0).then(|| bits as f64 / uses as f64)
    }
}

impl Tally {
    pub fn judge(
        &mut self,
        model: &mut dyn ModelRunner,
        levels: LevelPolicy,
        text: &[u32],
        expected: &Expected,
        cancel: &CancelToken,
    ) -> Result<(), EngineError> {
        let first = self.divergences.len();
        let (mut nll, mut kept) = (0.0, 0usize);
        let uses = run(model, levels, text, cancel, |position, logits, target| {
            let reference = &expected.predictions;
            let log_sum = log_sum_exp(logits);
            self.divergences.push(reference.divergence(position, logits, log_sum));
            nll += log_sum - f64::from(logits[target]);
            kept += usize::from(argmax(logits) == argmax(reference.logits(position)));
        })?;
        self.uses.push(uses);
        let of_sequence = &self.divergences[first..];
        let count = of_sequence.len() as f64;
        self.kl.push(of_sequence.iter().sum::<f64>() / count);
        self.nll.push(nll / count);
        self.kept.push(kept as f64 / count);
        Ok(())
    }

    /// Returns the results. `reference_nll` is the mean of each sequence.
    pub fn findings(mut self, reference_nll: &[f64]) -> Findings {
        let expert_mean_level = ExpertUses::mean_level(&self.uses);
        let bytes = ExpertUses::bytes_per_token(&self.uses, self.divergences.len());
        self.divergences.sort_by(f64::total_cmp);
        let ratios: Vec<f64> = self.nll.iter().zip(reference_nll).map(|(q, p)| q - p).collect();
        Findings {
            perplexity: Mean::of(&self.nll).mean.exp(),
            ln_perplexity_ratio: Mean::of(&ratios),
            kl: Mean::of(&self.kl),
            kl_median: quantile(&self.divergences, 0.5),
            kl_p99: quantile(&self.divergences, 0.99),
            top1: Mean::of(&self.kept),
            expert_bytes_per_token: expert_mean_level.map(|_| bytes),
            expert_mean_level,
        }
    }
}

/// Returns a quantile with linear interpolation, as in numpy and torch.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    // Default: an empty list has no quantile.
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * place.fract()
}

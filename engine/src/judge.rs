//! How much a model loses at each level: perplexity, and Kullback–Leibler divergence to the
//! unquantized model, on one text.
//!
//! Every level is judged twice against the same reference (a checkpoint's own floats):
//! - *weights only*: float activations, embedding and head in float, f32 keys and values, so that
//!   nothing differs but the weights of attention and feed-forward parts;
//! - *as shipped*: int8 activations, everything from the store, keys and values as they are held
//!   when it runs.
//!
//! The text is cut into sequences that know nothing of each other; every token but a sequence's
//! first is predicted. Log-probabilities are taken in f64 from the f32 logits.

mod open;

use nestling_formats::Level;
use serde::{Serialize, Serializer};

use crate::batch::{Batch, LevelPolicy, Row, SequenceRef};
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::kv_cache::{PageId, pages_for};
use crate::runner::ModelRunner;

pub use open::{JudgeOpenOptions, JudgeSet, bits_per_weight};

/// Bytes of logits that one step may give.
const STEP_LOGITS_BYTES: usize = 64 << 20;

/// The three models that are compared. Each is used alone, so that its pages are the judge's.
pub struct JudgeModels<'a> {
    /// The unquantized model.
    pub reference: &'a mut dyn ModelRunner,
    /// The store's weights with float activations, and the reference's embedding and head.
    pub weights_only: &'a mut dyn ModelRunner,
    /// The store as it is run.
    pub shipped: &'a mut dyn ModelRunner,
}

/// A level to judge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgeLevel {
    /// The level.
    pub level: Level,
    /// Bits per weight over attention and feed-forward matrices: scales, tables and padding
    /// counted.
    pub bits_per_weight: f64,
}

/// What to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeOptions {
    /// Levels, in the order of the rows that come out.
    pub levels: Vec<JudgeLevel>,
    /// Tokens predicted per sequence.
    pub sequence_length: usize,
    /// Most sequences; none for the whole text.
    pub sequences_max: Option<usize>,
}

/// What the judge found about one level.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct JudgeRow {
    /// The level.
    #[serde(serialize_with = "level_bits")]
    pub level: Level,
    /// See [`JudgeLevel::bits_per_weight`].
    pub bits_per_weight: f64,
    /// Weights only.
    pub perplexity: f64,
    /// Mean divergence in nats, weights only.
    pub kl_mean: f64,
    /// Median divergence, weights only.
    pub kl_median: f64,
    /// 99th percentile of the divergence, weights only.
    pub kl_p99: f64,
    /// Share of positions whose most likely token stays, weights only.
    pub top1: f64,
    /// Mean divergence as shipped.
    pub kl_mean_int8: f64,
    /// Share of positions whose most likely token stays, as shipped.
    pub top1_int8: f64,
}

fn level_bits<S: Serializer>(level: &Level, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u8(level.bits())
}

/// What the judge found.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgeReport {
    /// Perplexity of the unquantized model.
    pub reference_perplexity: f64,
    /// Sequences judged.
    pub sequences: usize,
    /// Tokens predicted.
    pub tokens: usize,
    /// One row per level.
    pub rows: Vec<JudgeRow>,
}

/// How far the judge is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgeProgress {
    /// Runs of a model over a sequence that are done.
    pub done: usize,
    /// All of them.
    pub total: usize,
}

/// Judges every level on `tokens`.
///
/// # Errors
/// [`EngineError::Cancelled`]; a text shorter than two tokens; models that do not share a
/// vocabulary; whatever a step fails with.
pub fn judge(
    models: JudgeModels<'_>,
    tokens: &[u32],
    options: &JudgeOptions,
    cancel: &CancelToken,
    progress: &mut dyn FnMut(JudgeProgress),
) -> Result<JudgeReport, EngineError> {
    let JudgeModels { reference, weights_only, shipped } = models;
    let length = sequence_length(&[&*reference, &*weights_only, &*shipped], tokens, options)?;
    let count = ((tokens.len() - 1) / length).min(options.sequences_max.unwrap_or(usize::MAX));
    let total = count * (1 + 2 * options.levels.len());
    let mut done = 0;
    let mut advance = || {
        done += 1;
        progress(JudgeProgress { done, total });
    };

    let mut tallies = vec![(Tally::default(), Tally::default()); options.levels.len()];
    let mut reference_nll = 0.0;
    for sequence in 0..count {
        // One token more: the target of the last position.
        let text = tokens.get(sequence * length..=(sequence + 1) * length).unwrap_or_default();
        let expected = Expected::compute(reference, text, cancel)?;
        reference_nll += expected.nll;
        advance();
        for (level, (float, int8)) in options.levels.iter().zip(&mut tallies) {
            float.judge(weights_only, level.level, text, &expected, cancel)?;
            advance();
            int8.judge(shipped, level.level, text, &expected, cancel)?;
            advance();
        }
    }
    let predicted = count * length;
    let rows = options.levels.iter().zip(tallies);
    Ok(JudgeReport {
        reference_perplexity: (reference_nll / predicted as f64).exp(),
        sequences: count,
        tokens: predicted,
        rows: rows.map(|(level, (float, int8))| row(level, float, int8)).collect(),
    })
}

/// Sequences as long as asked, or as the text and every model's context allow.
fn sequence_length(
    models: &[&dyn ModelRunner],
    tokens: &[u32],
    options: &JudgeOptions,
) -> Result<usize, EngineError> {
    let mut length = options.sequence_length.min(tokens.len().saturating_sub(1));
    let vocab_size = models.first().map_or(0, |model| model.limits().vocab_size);
    for model in models {
        let limits = model.limits();
        if limits.vocab_size != vocab_size {
            let what = "vocabulary of the store and its reference";
            return Err(EngineError::mismatch(what, vocab_size, limits.vocab_size));
        }
        length = length.min(limits.context_max);
        if pages_for(length) > limits.pages {
            return Err(EngineError::OutOfPages { pages: limits.pages });
        }
    }
    match length {
        0 => Err(EngineError::mismatch("text to judge", "two tokens at least", tokens.len())),
        length => Ok(length),
    }
}

/// What the unquantized model says of one sequence.
struct Expected {
    vocab_size: usize,
    logits: Vec<f32>,        // [L, vocab]
    probabilities: Vec<f32>, // [L, vocab]
    log_sums: Vec<f64>,      // [L]
    nll: f64,
}

impl Expected {
    fn compute(
        model: &mut dyn ModelRunner,
        text: &[u32],
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let vocab_size = model.limits().vocab_size;
        let positions = text.len() - 1;
        let mut expected = Self {
            vocab_size,
            logits: Vec::with_capacity(positions * vocab_size),
            probabilities: Vec::with_capacity(positions * vocab_size),
            log_sums: Vec::with_capacity(positions),
            nll: 0.0,
        };
        // The level means nothing to floats.
        run(model, Level::L2, text, cancel, |_, logits, target| {
            let log_sum = log_sum_exp(logits);
            let probability = |logit: &f32| (f64::from(*logit) - log_sum).exp() as f32;
            expected.probabilities.extend(logits.iter().map(probability));
            expected.logits.extend_from_slice(logits);
            expected.log_sums.push(log_sum);
            expected.nll += log_sum - f64::from(logits[target]);
        })?;
        Ok(expected)
    }

    fn row(&self, position: usize) -> (&[f32], &[f32], f64) {
        let range = position * self.vocab_size..(position + 1) * self.vocab_size;
        (&self.logits[range.clone()], &self.probabilities[range], self.log_sums[position])
    }
}

/// Sums over the positions judged so far.
#[derive(Clone, Default)]
struct Tally {
    divergences: Vec<f64>,
    nll: f64,
    kept: usize,
}

impl Tally {
    fn judge(
        &mut self,
        model: &mut dyn ModelRunner,
        level: Level,
        text: &[u32],
        expected: &Expected,
        cancel: &CancelToken,
    ) -> Result<(), EngineError> {
        run(model, level, text, cancel, |position, logits, target| {
            let (reference, probabilities, reference_log_sum) = expected.row(position);
            let log_sum = log_sum_exp(logits);
            // sum of p * (log p - log q), the two log-sums taken out.
            let mut divergence = log_sum - reference_log_sum;
            for ((p, r), q) in probabilities.iter().zip(reference).zip(logits) {
                divergence += f64::from(*p) * (f64::from(*r) - f64::from(*q));
            }
            self.divergences.push(divergence);
            self.nll += log_sum - f64::from(logits[target]);
            self.kept += usize::from(argmax(logits) == argmax(reference));
        })
    }

    fn mean(&self) -> f64 {
        self.divergences.iter().sum::<f64>() / self.divergences.len() as f64
    }

    fn top1(&self) -> f64 {
        self.kept as f64 / self.divergences.len() as f64
    }
}

fn row(level: &JudgeLevel, mut float: Tally, int8: Tally) -> JudgeRow {
    float.divergences.sort_by(f64::total_cmp);
    JudgeRow {
        level: level.level,
        bits_per_weight: level.bits_per_weight,
        perplexity: (float.nll / float.divergences.len() as f64).exp(),
        kl_mean: float.mean(),
        kl_median: quantile(&float.divergences, 0.5),
        kl_p99: quantile(&float.divergences, 0.99),
        top1: float.top1(),
        kl_mean_int8: int8.mean(),
        top1_int8: int8.top1(),
    }
}

/// Runs a model over a sequence and hands out the logits of each position with the token that
/// follows. The sequence takes the first pages; nobody else uses the model.
fn run(
    model: &mut dyn ModelRunner,
    level: Level,
    text: &[u32],
    cancel: &CancelToken,
    mut each: impl FnMut(usize, &[f32], usize),
) -> Result<(), EngineError> {
    let limits = model.limits();
    let (inputs, targets) = (&text[..text.len() - 1], &text[1..]);
    if let Some(token) = targets.iter().copied().find(|t| *t as usize >= limits.vocab_size) {
        return Err(EngineError::TokenOutOfRange { token, vocab_size: limits.vocab_size });
    }
    let rows_max = (STEP_LOGITS_BYTES / (4 * limits.vocab_size)).clamp(1, limits.rows_max);
    let pages = (0u32..).take(pages_for(inputs.len())).map(PageId).collect();
    let sequences = vec![SequenceRef { pages }];
    let levels = LevelPolicy::Fixed(level);
    let mut rows = (0u32..).zip(inputs).map(|(position, token)| Row {
        token: *token,
        position,
        sequence: 0,
        wants_logits: true,
        levels,
    });
    let mut batch = Batch { rows: rows.by_ref().take(rows_max).collect(), sequences };
    let mut position = 0;
    while !batch.rows.is_empty() {
        let output = model.step_blocking(&batch, cancel)?;
        if let Some(failure) = output.failures.into_iter().next() {
            return Err(failure.error);
        }
        for logits in output.logits.chunks_exact(limits.vocab_size) {
            each(position, logits, targets[position] as usize);
            position += 1;
        }
        batch.rows.clear();
        batch.rows.extend(rows.by_ref().take(rows_max));
    }
    Ok(())
}

/// `log(sum(exp(logits)))`.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    best + logits.iter().map(|logit| (f64::from(*logit) - best).exp()).sum::<f64>().ln()
}

/// The first of the highest.
fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    best
}

/// Linear between the neighbours, as numpy and torch do.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = share * last as f64;
    let (low, high) = (place.floor() as usize, place.ceil() as usize);
    sorted[low] + (sorted[high] - sorted[low]) * place.fract()
}

#[cfg(test)]
mod tests;

//! How much a model loses at each level and allocation: perplexity, and Kullback–Leibler divergence
//! to the unquantized model, on one text.
//!
//! Every point is judged up to twice against the same reference (a checkpoint's own floats):
//! - *weights only*: float activations, embedding and head in float, f32 keys and values, so that
//!   nothing differs but the weights of attention and feed-forward parts;
//! - *as shipped*: int8 activations, everything from the store, keys and values as they are held
//!   when it runs.
//!
//! The text is cut into sequences that know nothing of each other; every token but a sequence's
//! first is predicted. Log-probabilities are taken in f64 from the f32 logits. Without a reference,
//! [`PlainSet`] gives the perplexity of the store as it is run.

mod open;
mod plain;
mod tally;

use nestling_formats::Level;
use nestling_formats::memory::try_with_capacity;
use serde::{Serialize, Serializer};

use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{PageId, pages_for};
use nestling_core::runner::{ModelRunner, RunnerLimits};
use nestling_experts::allocation::Allocation;
use nestling_experts::dual::{DualPolicy, LevelMode};

pub use open::{
    JudgeOpenOptions, JudgePaths, JudgeSet, allocated_point, level_point, mean_level_point,
};
pub use plain::{PlainReport, PlainRow, PlainSet};
pub use tally::{Findings, Mean};

use tally::{ExpertUses, Tally};

/// Bytes of logits that one step may give.
const STEP_LOGITS_BYTES: usize = 64 << 20;

/// The models that are compared. Each is used alone, so that its pages are the judge's.
pub struct JudgeModels<'a> {
    /// The unquantized model.
    pub reference: &'a mut dyn ModelRunner,
    /// Those of every point.
    pub points: Vec<(JudgePoint, PointModels<'a>)>,
}

/// What one point of the curve is judged with.
pub struct PointModels<'a> {
    /// The store's weights with float activations, and the reference's embedding and head.
    pub weights_only: &'a mut dyn ModelRunner,
    /// The store as it is run; none to judge weights alone.
    pub shipped: Option<&'a mut dyn ModelRunner>,
    /// Levels of each token's experts; none for all that the point's allocation has.
    pub dual: Option<DualPolicy>,
    /// Whether timing may change what the store as it is run computes.
    pub mode: LevelMode,
}

/// A level or an allocation to judge.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgePoint {
    /// What it is, in a word: `level 4`, `3.5 bits`.
    pub name: String,
    /// The level, if it is one.
    pub level: Option<Level>,
    /// The level of every matrix.
    pub allocation: Allocation,
    /// The mean level of experts to reach by dual routing, and the highest; none without.
    pub dual: Option<(f32, Level)>,
    /// Bytes of attention and feed-forward matrices in a store that holds this and no more:
    /// scales, tables, codecs and padding counted.
    pub bytes: u64,
    /// The same, per weight.
    pub bits_per_weight: f64,
}

/// What to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgeOptions {
    /// Tokens predicted per sequence.
    pub sequence_length: usize,
    /// Most sequences; none for the whole text.
    pub sequences_max: Option<usize>,
}

/// What the judge found about one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeRow {
    /// See [`JudgePoint::name`].
    pub name: String,
    /// The level in bits, if it is one.
    #[serde(serialize_with = "level_bits")]
    pub level: Option<Level>,
    /// The mean level that dual routing was asked for.
    pub mean_level: Option<f32>,
    /// What a plane had to be worth to reach it.
    pub threshold: Option<f32>,
    /// Hash of the allocation.
    pub allocation: String,
    /// See [`JudgePoint::bytes`].
    pub bytes: u64,
    /// See [`JudgePoint::bits_per_weight`].
    pub bits_per_weight: f64,
    /// The weights alone.
    #[serde(flatten)]
    pub weights_only: Findings,
    /// The store as it is run.
    pub shipped: Option<Findings>,
}

fn level_bits<S: Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(Level::bits).serialize(serializer)
}

/// What the judge found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeReport {
    /// Perplexity of the unquantized model.
    pub reference_perplexity: f64,
    /// Sequences judged.
    pub sequences: usize,
    /// Tokens predicted.
    pub tokens: usize,
    /// One row per point.
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

/// Judges every point on `tokens`. The reference's logits are computed once per sequence and kept
/// for all points.
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
    let JudgeModels { reference, mut points } = models;
    let length = sequence_length(&limits(reference, &points), tokens, options)?;
    let count = ((tokens.len() - 1) / length).min(options.sequences_max.unwrap_or(usize::MAX));
    let runs = points.iter().map(|(_, models)| 1 + usize::from(models.shipped.is_some()));
    let total = count * (1 + runs.sum::<usize>());
    let mut done = 0;
    let mut advance = || {
        done += 1;
        progress(JudgeProgress { done, total });
    };

    let mut tallies = vec![(Tally::default(), Tally::default()); points.len()];
    let mut reference_nll = Vec::with_capacity(count);
    for sequence in 0..count {
        // One token more: the target of the last position.
        let text = &tokens[sequence * length..=(sequence + 1) * length];
        let expected = Expected::compute(reference, text, cancel)?;
        reference_nll.push(expected.nll / length as f64);
        advance();
        for ((_, models), (float, int8)) in points.iter_mut().zip(&mut tallies) {
            let levels = models.dual;
            let held = level_policy(models.weights_only, levels);
            float.judge(models.weights_only, held, text, &expected, cancel)?;
            advance();
            if let Some(shipped) = &mut models.shipped {
                let levels = levels.map(|policy| DualPolicy { mode: models.mode, ..policy });
                let held = level_policy(&**shipped, levels);
                int8.judge(&mut **shipped, held, text, &expected, cancel)?;
                advance();
            }
        }
    }
    let rows = points.into_iter().zip(tallies).map(|((point, models), (float, int8))| JudgeRow {
        name: point.name,
        level: point.level,
        mean_level: point.dual.map(|(mean_level, _)| mean_level),
        threshold: models.dual.map(|dual| dual.threshold.value()),
        allocation: point.allocation.hash().to_string(),
        bytes: point.bytes,
        bits_per_weight: point.bits_per_weight,
        weights_only: float.findings(&reference_nll),
        shipped: models.shipped.map(|_| int8.findings(&reference_nll)),
    });
    let mean_nll = reference_nll.iter().sum::<f64>() / count as f64;
    Ok(JudgeReport {
        reference_perplexity: mean_nll.exp(),
        sequences: count,
        tokens: count * length,
        rows: rows.collect(),
    })
}

/// The levels to run a model at: all that is held unless there is dual routing. An allocation
/// bounds every matrix by itself, and floats have no levels.
fn level_policy(model: &dyn ModelRunner, dual: Option<DualPolicy>) -> LevelPolicy {
    let held = LevelPolicy::Fixed(model.limits().level_max.unwrap_or(Level::L2));
    dual.map_or(held, LevelPolicy::Dual)
}

/// What every model that is judged can do.
fn limits(
    reference: &dyn ModelRunner,
    points: &[(JudgePoint, PointModels<'_>)],
) -> Vec<RunnerLimits> {
    let mut limits = vec![reference.limits()];
    for (_, models) in points {
        limits.push(models.weights_only.limits());
        limits.extend(models.shipped.as_ref().map(|shipped| shipped.limits()));
    }
    limits
}

/// Sequences as long as asked, or as the text and every model's context allow.
fn sequence_length(
    models: &[RunnerLimits],
    tokens: &[u32],
    options: &JudgeOptions,
) -> Result<usize, EngineError> {
    let mut length = options.sequence_length.min(tokens.len().saturating_sub(1));
    let vocab_size = models.first().map_or(0, |limits| limits.vocab_size);
    for limits in models {
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

/// What the logits of a sequence are called.
const LOGITS: &str = "the logits of a text that is judged";

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
            logits: try_with_capacity(LOGITS, positions.saturating_mul(vocab_size))?,
            probabilities: try_with_capacity(LOGITS, positions.saturating_mul(vocab_size))?,
            log_sums: Vec::with_capacity(positions),
            nll: 0.0,
        };
        let levels = level_policy(model, None);
        run(model, levels, text, cancel, |_, logits, target| {
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

/// Runs a model over a sequence and hands out the logits of each position with the token that
/// follows; gives what experts were computed at. The sequence takes the first pages; nobody else
/// uses the model.
fn run(
    model: &mut dyn ModelRunner,
    levels: LevelPolicy,
    text: &[u32],
    cancel: &CancelToken,
    mut each: impl FnMut(usize, &[f32], usize),
) -> Result<ExpertUses, EngineError> {
    let limits = model.limits();
    let (inputs, targets) = (&text[..text.len() - 1], &text[1..]);
    if let Some(token) = targets.iter().copied().find(|t| *t as usize >= limits.vocab_size) {
        return Err(EngineError::TokenOutOfRange { token, vocab_size: limits.vocab_size });
    }
    let rows_max = (STEP_LOGITS_BYTES / (4 * limits.vocab_size)).clamp(1, limits.rows_max);
    let pages = (0u32..).take(pages_for(inputs.len())).map(PageId).collect();
    let sequences = vec![SequenceRef::of_pages(pages)];
    let mut rows = (0u32..).zip(inputs).map(|(position, token)| Row {
        token: *token,
        position,
        sequence: 0,
        wants_logits: true,
        levels,
    });
    let mut batch = Batch::new(rows.by_ref().take(rows_max).collect(), sequences);
    let (mut position, mut uses) = (0, ExpertUses::default());
    while !batch.rows.is_empty() {
        batch.own_states();
        let output = model.step_blocking(&batch, cancel)?;
        if let Some(failure) = output.failures.into_iter().next() {
            return Err(failure.error);
        }
        for logits in output.logits.chunks_exact(limits.vocab_size) {
            each(position, logits, targets[position] as usize);
            position += 1;
        }
        uses.add(&output.stats);
        batch.rows.clear();
        batch.rows.extend(rows.by_ref().take(rows_max));
    }
    Ok(uses)
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

#[cfg(test)]
mod tests;

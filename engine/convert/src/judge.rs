//! Evaluation of a model at each level and allocation: perplexity, and Kullback–Leibler divergence from the
//! unquantized model, on one text.
//!
//! Each point is evaluated up to twice against the same reference (the checkpoint's floats):
//! - *weights only*: float activations, embedding and head in float and an f32 KV cache, so that only the
//!   weights of attention and feed-forward parts differ;
//! - *as shipped*: int8 activations, all weights from the store, and the KV cache in its runtime format.
//!
//! The text is split into independent sequences, and each token except a sequence's first is predicted.
//! Log-probabilities are computed in f64 from the f32 logits. Without a reference, [`PlainSet`] measures the
//! perplexity of the store as it is run.

mod open;
mod plain;
mod predictions;
mod tally;

use nestling_formats::Level;
use serde::{Serialize, Serializer};

use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{PageId, pages_for};
use nestling_core::runner::{ModelRunner, RunnerLimits};
use nestling_levels::allocation::Allocation;
use nestling_levels::dual::{DualPolicy, LevelMode};

pub use open::{
    JudgeOpenOptions, JudgePaths, JudgeSet, allocated_point, level_point, mean_level_point,
};
pub use plain::{PlainReport, PlainRow, PlainSet};
pub(crate) use predictions::{Predictions, log_sum_exp};
pub use tally::{Findings, Mean};

use tally::{ExpertUses, Tally};

/// Maximum size in bytes of the logits of one step.
const STEP_LOGITS_BYTES: usize = 64 << 20;

/// Models to compare. None may be in use elsewhere, because the evaluation uses their KV pages.
pub struct JudgeModels<'a> {
    /// The unquantized model.
    pub reference: &'a mut dyn ModelRunner,
    /// Points to evaluate, with their models.
    pub points: Vec<(JudgePoint, PointModels<'a>)>,
}

/// Models and settings of one point.
pub struct PointModels<'a> {
    /// Model with the store's weights, float activations, and the reference's embedding and head.
    pub weights_only: &'a mut dyn ModelRunner,
    /// The store as it is run; `None` to evaluate only the weights.
    pub shipped: Option<&'a mut dyn ModelRunner>,
    /// Policy for the levels of each token's experts; `None` uses all levels of the point's allocation.
    pub dual: Option<DualPolicy>,
    /// Level mode of the store as it is run: in elastic mode, timing may change its results.
    pub mode: LevelMode,
}

/// A level or an allocation to evaluate.
#[derive(Clone, Debug, PartialEq)]
pub struct JudgePoint {
    /// Short name: `level 4`, `3.5 bits`.
    pub name: String,
    /// Level, if the point is one.
    pub level: Option<Level>,
    /// Level of each matrix.
    pub allocation: Allocation,
    /// Target mean level of experts for dual routing, and the maximum level; `None` without dual routing.
    pub dual: Option<(f32, Level)>,
    /// Size in bytes of attention and feed-forward matrices in a store that holds exactly this point,
    /// including scales, tables, codecs and padding.
    pub bytes: u64,
    /// Size per weight in bits.
    pub bits_per_weight: f64,
}

/// Options of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgeOptions {
    /// Number of predicted tokens per sequence.
    pub sequence_length: usize,
    /// Maximum number of sequences; `None` evaluates the whole text.
    pub sequences_max: Option<usize>,
}

/// Results for one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeRow {
    /// See [`JudgePoint::name`].
    pub name: String,
    /// Level in bits, if the point is one.
    #[serde(serialize_with = "level_bits")]
    pub level: Option<Level>,
    /// Target mean level of dual routing.
    pub mean_level: Option<f32>,
    /// Plane score from which on planes are used to reach the mean level.
    pub threshold: Option<f32>,
    /// Hash of the allocation.
    pub allocation: String,
    /// See [`JudgePoint::bytes`].
    pub bytes: u64,
    /// See [`JudgePoint::bits_per_weight`].
    pub bits_per_weight: f64,
    /// Results of the weights alone.
    #[serde(flatten)]
    pub weights_only: Findings,
    /// Results of the store as it is run.
    pub shipped: Option<Findings>,
}

fn level_bits<S: Serializer>(level: &Option<Level>, serializer: S) -> Result<S::Ok, S::Error> {
    level.map(Level::bits).serialize(serializer)
}

/// Results of an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct JudgeReport {
    /// Perplexity of the unquantized model.
    pub reference_perplexity: f64,
    /// Number of evaluated sequences.
    pub sequences: usize,
    /// Number of predicted tokens.
    pub tokens: usize,
    /// One row per point.
    pub rows: Vec<JudgeRow>,
}

/// Progress of an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgeProgress {
    /// Number of completed runs of a model over a sequence.
    pub done: usize,
    /// Total number of runs.
    pub total: usize,
}

/// Evaluates all points on `tokens`. The reference's logits are computed once per sequence and reused for all
/// points.
///
/// # Errors
/// Fails with [`EngineError::Cancelled`]. Fails if the text is shorter than two tokens, if the models have
/// different vocabularies, or if a step fails.
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
        // One extra token: the target of the last position.
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

/// Returns the levels to run a model at: all resident levels, unless dual routing is used. An allocation
/// limits each matrix separately, and floats have no levels.
fn level_policy(model: &dyn ModelRunner, dual: Option<DualPolicy>) -> LevelPolicy {
    let held = LevelPolicy::Fixed(model.limits().level_max.unwrap_or(Level::L2));
    dual.map_or(held, LevelPolicy::Dual)
}

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

/// Returns the requested sequence length, limited by the text and by each model's context.
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

/// Predictions of the reference at each position of a sequence.
struct Expected {
    predictions: Predictions, // [L, vocab]
    nll: f64,
}

impl Expected {
    fn compute(
        model: &mut dyn ModelRunner,
        text: &[u32],
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let mut predictions =
            Predictions::with_capacity(text.len() - 1, model.limits().vocab_size)?;
        let mut nll = 0.0;
        let levels = level_policy(model, None);
        run(model, levels, text, cancel, |_, logits, target| {
            nll += predictions.push(logits) - f64::from(logits[target]);
        })?;
        Ok(Self { predictions, nll })
    }
}

/// Runs a model over a sequence and calls back with the logits of each position and the next token. Returns
/// the levels at which experts were computed. The sequence uses the first KV pages, because nothing else uses
/// the model.
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

/// Returns the index of the highest logit; ties go to the lowest index.
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

//! Perplexity of a store as it is run, without an unquantized model for comparison.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::store::Store;
use serde::Serialize;

use super::open::{JudgeOpenOptions, RunnerParts, SharedSource};
use super::tally::{ExpertUses, Mean};
use super::{
    JudgeOptions, JudgePoint, JudgeProgress, level_bits, level_policy, log_sum_exp, run,
    sequence_length,
};
use nestling_core::backend::Backend;
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::runner::ModelRunner;
use nestling_experts::expert::StoreSource;
use nestling_levels::dual::{DualPolicy, LevelMode};

struct PlainPoint {
    point: JudgePoint,
    model: Box<dyn ModelRunner>,
    dual: Option<DualPolicy>,
}

/// Opened models of all points. They share the store's weights.
pub struct PlainSet {
    points: Vec<PlainPoint>,
    mode: LevelMode,
}

impl PlainSet {
    /// Opens the models, each on a separate `backend`. The options' paths are ignored. `progress` receives
    /// the number of completed parts and their total.
    ///
    /// # Errors
    /// Fails with [`EngineError::Cancelled`], if weights are unavailable or if the device rejects the model.
    pub fn open<B: Backend + 'static>(
        mut backend: impl FnMut() -> Result<B, EngineError>,
        store: &Arc<Store>,
        options: &JudgeOpenOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Self, EngineError> {
        let nested = Arc::new(SharedSource::new(StoreSource::owned(Arc::clone(store), None)?));
        let models = options.points.len();
        let mut points = Vec::with_capacity(models);
        for (loaded, point) in options.points.iter().enumerate() {
            point.allocation.check(store.id())?;
            let mut report = |done, total| progress(loaded * total + done, models * total);
            let ready = RunnerParts::shipped(store, &nested, point, options)?;
            let mut model = ready.load(backend()?, cancel, &mut report)?;
            let dual = point.calibrate(&mut model, &options.sample, cancel)?;
            points.push(PlainPoint { point: point.clone(), model: Box::new(model), dual });
        }
        nested.forget();
        Ok(Self { points, mode: options.mode })
    }

    /// Measures the perplexity of each point on `tokens`.
    ///
    /// # Errors
    /// Fails with [`EngineError::Cancelled`], if the text is shorter than two tokens or if a step fails.
    pub fn perplexity(
        &mut self,
        tokens: &[u32],
        options: &JudgeOptions,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(JudgeProgress),
    ) -> Result<PlainReport, EngineError> {
        let limits: Vec<_> = self.points.iter().map(|point| point.model.limits()).collect();
        let length = sequence_length(&limits, tokens, options)?;
        let count = ((tokens.len() - 1) / length).min(options.sequences_max.unwrap_or(usize::MAX));
        let total = count * self.points.len();
        let mut rows = Vec::with_capacity(self.points.len());
        for (judged, PlainPoint { point, model, dual }) in self.points.iter_mut().enumerate() {
            let levels = dual.map(|policy| DualPolicy { mode: self.mode, ..policy });
            let levels = level_policy(&**model, levels);
            let mut nll = Vec::with_capacity(count);
            let mut uses = Vec::with_capacity(count);
            for sequence in 0..count {
                let text = &tokens[sequence * length..=(sequence + 1) * length];
                let mut sum = 0.0;
                let each = |_, logits: &[f32], target: usize| {
                    sum += log_sum_exp(logits) - f64::from(logits[target]);
                };
                uses.push(run(&mut **model, levels, text, cancel, each)?);
                nll.push(sum / length as f64);
                progress(JudgeProgress { done: judged * count + sequence + 1, total });
            }
            rows.push(PlainRow::new(point, *dual, &nll, &uses, count * length));
        }
        Ok(PlainReport { sequences: count, tokens: count * length, rows })
    }
}

/// Results for one point.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlainRow {
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
    /// Perplexity: the exponential of the mean negative log-probability per token. The standard error is over
    /// sequences, as in [`Mean`].
    pub perplexity: Mean,
    /// Bytes of experts that a single token reads; `None` without experts in planes.
    pub expert_bytes_per_token: Option<f64>,
    /// Mean level at which experts were computed, in bits, before limits by allocations.
    pub expert_mean_level: Option<f64>,
}

impl PlainRow {
    fn new(
        point: &JudgePoint,
        dual: Option<DualPolicy>,
        nll: &[f64],
        uses: &[ExpertUses],
        tokens: usize,
    ) -> Self {
        let nll = Mean::of(nll);
        let perplexity = nll.mean.exp();
        let standard_error = nll.standard_error.map(|error| perplexity * error);
        let expert_mean_level = ExpertUses::mean_level(uses);
        let bytes = ExpertUses::bytes_per_token(uses, tokens);
        Self {
            name: point.name.clone(),
            level: point.level,
            mean_level: point.dual.map(|(mean_level, _)| mean_level),
            threshold: dual.map(|dual| dual.threshold.value()),
            allocation: point.allocation.hash().to_string(),
            bytes: point.bytes,
            bits_per_weight: point.bits_per_weight,
            perplexity: Mean { mean: perplexity, standard_error },
            expert_bytes_per_token: expert_mean_level.map(|_| bytes),
            expert_mean_level,
        }
    }
}

/// Results for all points.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlainReport {
    /// Number of sequences.
    pub sequences: usize,
    /// Number of predicted tokens.
    pub tokens: usize,
    /// One row per point.
    pub rows: Vec<PlainRow>,
}

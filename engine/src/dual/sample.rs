//! From a mean level that is asked for to a threshold: what the router of a model chooses on a short
//! text, at which thresholds that means how many bits.
//!
//! A store knows how often its experts are used and how heavily on average. That is not enough: half of
//! the uses of an expert of the bundled model weigh less than 0.4 of its mean square, one in a hundred
//! more than 6 times it, and a threshold found from means alone misses the level asked for by up to 0.5
//! bit. A run over a hundred tokens meets it within 0.05.

use super::{DualPolicy, ExpertChoice, LevelRouter, Threshold};
use crate::batch::{Batch, LevelPolicy, Row, SequenceRef};
use crate::cancel::CancelToken;
use crate::error::EngineError;
use crate::kv_cache::{PAGE_POSITIONS, PageId, pages_for};
use crate::runner::ModelRunner;
use crate::simulate::RoutingTrace;

/// Tokens that a sample is made of.
pub const SAMPLE_TOKENS: usize = 128;

/// A text of at least that many tokens in any tokenizer, of our own.
pub const SAMPLE_TEXT: &str = include_str!("sample.txt");

/// What the router of a model chose on a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteSample {
    choices: Vec<ExpertChoice>,
}

impl RouteSample {
    /// From choices that were noted elsewhere.
    pub fn new(choices: Vec<ExpertChoice>) -> Self {
        Self { choices }
    }

    /// Runs a model that nobody uses yet over tokens, as one sequence in the first pages; what does
    /// not fit its context is left out. It is a function of the weights and the tokens.
    ///
    /// # Errors
    /// As [`ModelRunner::step`].
    pub fn record(
        runner: &mut dyn ModelRunner,
        tokens: &[u32],
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let limits = runner.limits();
        let (Some(level), Some(recorder)) = (limits.level_max, runner.routing_recorder()) else {
            return Ok(Self::default());
        };
        let length = limits.context_max.min(limits.pages.saturating_mul(PAGE_POSITIONS));
        let tokens = tokens.get(..length.min(tokens.len())).unwrap_or_default();
        let pages: Vec<_> = (0u32..).take(pages_for(tokens.len())).map(PageId).collect();
        let mut rows = (0u32..).zip(tokens).map(|(position, token)| Row {
            token: *token,
            position,
            sequence: 0,
            // So that the last layer computes it too.
            wants_logits: true,
            levels: LevelPolicy::Fixed(level),
        });
        recorder.start(tokens.len());
        let mut result = Ok(());
        loop {
            let rows: Vec<Row> = rows.by_ref().take(limits.rows_max.max(1)).collect();
            if rows.is_empty() || result.is_err() {
                break;
            }
            let sequences = vec![SequenceRef::of_pages(pages.clone())];
            let mut batch = Batch { rows, sequences };
            batch.own_states();
            result = runner.step_blocking(&batch, cancel).map(|output| runner.recycle(output));
        }
        let trace = recorder.stop();
        result.map(|()| Self::of_trace(&trace))
    }

    /// The choices of a trace.
    pub fn of_trace(trace: &RoutingTrace) -> Self {
        let layers = trace.steps.iter().flat_map(|step| (0u32..).zip(&step.layers));
        let choices = layers.flat_map(|(layer, routing)| {
            let chosen = routing.ids.iter().zip(&routing.weights);
            chosen.map(move |(expert, weight)| ExpertChoice {
                layer,
                expert: *expert,
                weight: *weight,
            })
        });
        Self::new(choices.collect())
    }

    /// How many choices there are.
    pub fn len(&self) -> usize {
        self.choices.len()
    }

    /// Whether nothing was chosen: a model without experts, or one of floats.
    pub fn is_empty(&self) -> bool {
        self.choices.is_empty()
    }

    /// Mean level of the sample's choices in bits; none of none.
    pub fn mean_level(&self, policy: DualPolicy, router: &dyn LevelRouter) -> Option<f64> {
        let levels = LevelPolicy::Dual(policy);
        let bits = self.choices.iter().map(|c| u64::from(levels.expert(*c, router).bits()));
        let count = self.choices.len();
        (count > 0).then(|| bits.sum::<u64>() as f64 / count as f64)
    }

    /// The policy with the lowest threshold at which the mean level of the sample is at most
    /// `mean_level`; the router's levels must not rise with the threshold.
    ///
    /// # Errors
    /// A mean level that is no number or lower than the policy's lowest.
    pub fn calibrate(
        &self,
        mean_level: f32,
        policy: DualPolicy,
        router: &dyn LevelRouter,
    ) -> Result<DualPolicy, EngineError> {
        let lowest = policy.lowest.min(policy.highest);
        if mean_level.is_nan() || mean_level < f32::from(lowest.bits()) {
            let expected = format!("{lowest} to {}", policy.highest);
            return Err(EngineError::mismatch("mean level of experts", expected, mean_level));
        }
        let fits = |threshold: Threshold| {
            let mean = self.mean_level(DualPolicy { threshold, ..policy }, router);
            mean.is_none_or(|mean| mean <= f64::from(mean_level))
        };
        if fits(Threshold::ZERO) {
            return Ok(DualPolicy { threshold: Threshold::ZERO, ..policy });
        }
        // Bits of numbers ascend with them.
        let (mut low, mut high) = (0, f32::MAX.to_bits());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match Threshold::from_bits(middle).is_some_and(fits) {
                true => high = middle,
                false => low = middle,
            }
        }
        Ok(DualPolicy { threshold: Threshold::from_bits(high).unwrap_or_default(), ..policy })
    }
}

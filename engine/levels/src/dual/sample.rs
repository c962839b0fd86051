//! Threshold calibration: routing recorded on a short text maps thresholds to mean levels.
//!
//! The store's mean frequencies and weights of experts are not sufficient. In the bundled model, half of an
//! expert's uses weigh less than 0.4 of its mean square, and one in a hundred more than 6 times it. A
//! threshold found from means alone misses the requested level by up to 0.5 bit; a run over a hundred tokens
//! meets it within 0.05.

use nestling_formats::Invariant;
use nestling_formats::Level;

use super::{DualPolicy, LevelRouter, PlaneScores, RoutedToken, Threshold};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{PAGE_POSITIONS, PageId, pages_for};
use nestling_core::routing_recorder::RecordedContent;
use nestling_core::routing_trace::RoutingTrace;
use nestling_core::runner::ModelRunner;

/// Number of tokens in a sample.
pub const SAMPLE_TOKENS: usize = 128;

/// Text of at least [`SAMPLE_TOKENS`] tokens in any tokenizer, written for this project.
pub const SAMPLE_TEXT: &str = include_str!("sample.txt");

/// Plane scores of the experts that a model's router chose on a text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteSample {
    /// Scores of each (token, expert) pair, indexed by the highest level in use.
    scores: [Vec<PlaneScores>; Level::ALL.len()],
}

impl RouteSample {
    /// Creates a sample from tokens whose experts are already chosen.
    pub fn new<'a>(
        tokens: impl Iterator<Item = RoutedToken<'a>>,
        router: &dyn LevelRouter,
    ) -> Self {
        let mut sample = Self::default();
        for token in tokens {
            for (highest, scores) in Level::ALL.into_iter().zip(&mut sample.scores) {
                let start = scores.len();
                scores.resize(start + token.experts.len(), [0.0; 5]);
                router.plane_scores(token, highest, &mut scores[start..]);
            }
        }
        sample
    }

    /// Runs an otherwise unused model over tokens, as one sequence in the first pages. Tokens beyond the
    /// context are ignored. The result depends only on the weights, the router and the tokens.
    ///
    /// # Errors
    /// Same errors as [`ModelRunner::step`].
    pub fn record(
        runner: &mut dyn ModelRunner,
        router: &dyn LevelRouter,
        tokens: &[u32],
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let limits = runner.limits();
        let (Some(level), Some(recorder)) = (limits.level_max, runner.routing_recorder()) else {
            return Ok(Self::default());
        };
        let length = limits.context_max.min(limits.pages.saturating_mul(PAGE_POSITIONS));
        let tokens = &tokens[..length.min(tokens.len())];
        let pages: Vec<_> = (0u32..).take(pages_for(tokens.len())).map(PageId).collect();
        let mut rows = (0u32..).zip(tokens).map(|(position, token)| Row {
            token: *token,
            position,
            sequence: 0,
            // Makes the last layer compute the row too.
            wants_logits: true,
            levels: LevelPolicy::Fixed(level),
        });
        let keep = if router.reads_hidden() {
            RecordedContent::HiddenToo
        } else {
            RecordedContent::Routing
        };
        recorder.start_keeping(tokens.len(), keep);
        let mut result = Ok(());
        loop {
            let rows: Vec<Row> = rows.by_ref().take(limits.rows_max.max(1)).collect();
            if rows.is_empty() || result.is_err() {
                break;
            }
            let sequences = vec![SequenceRef::of_pages(pages.clone())];
            let mut batch = Batch::new(rows, sequences);
            batch.own_states();
            result = runner.step_blocking(&batch, cancel).map(|output| runner.recycle(output));
        }
        let (trace, hidden) = recorder.stop_keeping();
        result.map(|()| Self::of_trace(&trace, &hidden, router))
    }

    /// Builds a sample from a trace. `hidden` has the router inputs of each step and layer, or is empty.
    fn of_trace(trace: &RoutingTrace, hidden: &[Vec<f32>], router: &dyn LevelRouter) -> Self {
        let chosen = trace.shape.experts_per_token.max(1) as usize;
        let layers = trace.steps.iter().flat_map(|step| (0u32..).zip(&step.layers));
        let tokens = layers.enumerate().flat_map(|(at, (layer, routing))| {
            // Default: hidden rows are recorded only for routers that read them.
            let seen = hidden.get(at).map(Vec::as_slice).unwrap_or_default();
            let width = seen.len() / (routing.ids.len() / chosen).max(1);
            let rows = routing.ids.chunks_exact(chosen).zip(routing.weights.chunks_exact(chosen));
            rows.enumerate().map(move |(row, (experts, weights))| {
                let hidden = &seen[row * width..(row + 1) * width];
                RoutedToken { layer, experts, weights, hidden }
            })
        });
        Self::new(tokens, router)
    }

    /// Returns the number of (token, expert) pairs.
    pub fn len(&self) -> usize {
        self.scores[0].len()
    }

    /// Returns whether the sample has no pairs: the model has no experts, or its weights are floats.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the mean level of the sample's pairs in bits, or `None` if the sample is empty.
    pub fn mean_level(&self, policy: DualPolicy) -> Option<f64> {
        let scores = &self.scores[policy.highest.index()];
        let bits = scores.iter().map(|plane| u64::from(policy.level(plane).bits()));
        let count = scores.len();
        (count > 0).then(|| bits.sum::<u64>() as f64 / count as f64)
    }

    /// Returns the policy with the lowest threshold at which the sample's mean level is at most `mean_level`.
    ///
    /// # Errors
    /// Returns an error if `mean_level` is NaN or below the policy's lowest level.
    pub fn calibrate(
        &self,
        mean_level: f32,
        policy: DualPolicy,
    ) -> Result<DualPolicy, EngineError> {
        let lowest = policy.lowest.min(policy.highest);
        if mean_level.is_nan() || mean_level < f32::from(lowest.bits()) {
            let expected = format!("{lowest} to {}", policy.highest);
            return Err(EngineError::mismatch("mean level of experts", expected, mean_level));
        }
        let fits = |threshold: Threshold| {
            let mean = self.mean_level(DualPolicy { threshold, ..policy });
            mean.is_none_or(|mean| mean <= f64::from(mean_level))
        };
        if fits(Threshold::ZERO) {
            return Ok(DualPolicy { threshold: Threshold::ZERO, ..policy });
        }
        // The bits of non-negative floats ascend with their values.
        let (mut low, mut high) = (0, f32::MAX.to_bits());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match Threshold::from_bits(middle).is_some_and(fits) {
                true => high = middle,
                false => low = middle,
            }
        }
        let threshold = Threshold::from_bits(high)
            .invariant("bits up to those of the largest number are one")?;
        Ok(DualPolicy { threshold, ..policy })
    }
}

//! From a mean level that is asked for to a threshold: what the router of a model chooses on a short
//! text, at which thresholds that means how many bits.
//!
//! A store knows how often its experts are used and how heavily on average. That is not enough: half of
//! the uses of an expert of the bundled model weigh less than 0.4 of its mean square, one in a hundred
//! more than 6 times it, and a threshold found from means alone misses the level asked for by up to 0.5
//! bit. A run over a hundred tokens meets it within 0.05.

use nestling_formats::Invariant;
use nestling_formats::Level;

use super::{DualPolicy, LevelRouter, PlaneScores, RoutedToken, Threshold};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::kv_cache::{PAGE_POSITIONS, PageId, pages_for};
use nestling_core::routing_recorder::Keep;
use nestling_core::routing_trace::RoutingTrace;
use nestling_core::runner::ModelRunner;

/// Tokens that a sample is made of.
pub const SAMPLE_TOKENS: usize = 128;

/// A text of at least that many tokens in any tokenizer, of our own.
pub const SAMPLE_TEXT: &str = include_str!("sample.txt");

/// Plane scores of the experts that the router of a model chose on a text, for its tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteSample {
    /// Of every (token, expert), by the highest level that is used.
    scores: [Vec<PlaneScores>; Level::ALL.len()],
}

impl RouteSample {
    /// From tokens whose experts were chosen elsewhere.
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

    /// Runs a model that nobody uses yet over tokens, as one sequence in the first pages; what does
    /// not fit its context is left out. It is a function of the weights, the router and the tokens.
    ///
    /// # Errors
    /// As [`ModelRunner::step`].
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
            // So that the last layer computes it too.
            wants_logits: true,
            levels: LevelPolicy::Fixed(level),
        });
        let keep = if router.reads_hidden() { Keep::HiddenToo } else { Keep::Routing };
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

    /// Of a trace; `hidden` has what the router saw, of every step and layer, or nothing.
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

    /// How many (token, expert) pairs there are.
    pub fn len(&self) -> usize {
        self.scores[0].len()
    }

    /// Whether nothing was chosen: a model without experts, or one of floats.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Mean level of the sample's pairs in bits; none of none.
    pub fn mean_level(&self, policy: DualPolicy) -> Option<f64> {
        let scores = &self.scores[policy.highest.index()];
        let bits = scores.iter().map(|plane| u64::from(policy.level(plane).bits()));
        let count = scores.len();
        (count > 0).then(|| bits.sum::<u64>() as f64 / count as f64)
    }

    /// The policy with the lowest threshold at which the mean level of the sample is at most
    /// `mean_level`.
    ///
    /// # Errors
    /// A mean level that is no number or lower than the policy's lowest.
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
        // Bits of numbers ascend with them.
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

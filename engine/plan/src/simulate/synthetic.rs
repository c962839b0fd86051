//! Synthetic routing traces, generated from a seed with adjustable skew and steadiness.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use nestling_formats::Level;

use nestling_core::routing_trace::{LayerRouting, RoutingTrace, TraceShape, TraceStep};

/// Standard deviation of the token-dependent part of a router's logits.
const TOKEN_SPREAD: f64 = 0.95;

/// A synthetic router. The logit of each expert is a constant, drawn once, plus a token-dependent part.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticRouting {
    /// Shape of the model.
    pub shape: TraceShape,
    /// Standard deviation of the constants: 0 makes all experts equally likely, 1 makes a few very busy.
    pub skew: f64,
    /// Correlation of a token's part of the logits with the previous token's: 0 for independent tokens.
    pub steadiness: f64,
    /// Number of steps of one row each.
    pub steps: usize,
    /// Level of all experts.
    pub level: Level,
    /// Random seed; equal seeds give equal traces.
    pub seed: u64,
}

impl SyntheticRouting {
    /// Generates the trace.
    pub fn trace(&self) -> RoutingTrace {
        let mut random = Normal::new(self.seed);
        let mut of_experts = |experts: &u32, spread: f64| -> Vec<f64> {
            (0..*experts).map(|_| random.next() * spread).collect()
        };
        let layers = self.shape.experts.iter();
        let constants: Vec<_> = layers.clone().map(|n| of_experts(n, self.skew)).collect();
        let mut tokens: Vec<_> = layers.map(|n| of_experts(n, TOKEN_SPREAD)).collect();
        let fresh = TOKEN_SPREAD * (1.0 - self.steadiness * self.steadiness).max(0.0).sqrt();
        let mut steps = Vec::with_capacity(self.steps);
        for _ in 0..self.steps {
            let mut step = TraceStep::default();
            for (constants, token) in constants.iter().zip(&mut tokens) {
                for value in &mut *token {
                    *value = self.steadiness * *value + fresh * random.next();
                }
                step.layers.push(self.choose(constants, token));
            }
            steps.push(step);
        }
        RoutingTrace { shape: self.shape.clone(), steps }
    }

    /// Chooses the experts with the largest logits, weighted by softmax.
    fn choose(&self, constants: &[f64], token: &[f64]) -> LayerRouting {
        let logits = constants.iter().zip(token).map(|(constant, token)| constant + token);
        let mut logits: Vec<(u32, f64)> = (0..).zip(logits).collect();
        logits.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        logits.truncate(self.shape.experts_per_token as usize);
        let top = logits.first().map_or(0.0, |(_, logit)| *logit);
        let parts: Vec<f64> = logits.iter().map(|(_, logit)| libm::exp(logit - top)).collect();
        let sum: f64 = parts.iter().sum();
        LayerRouting {
            ids: logits.iter().map(|(id, _)| *id).collect(),
            weights: parts.iter().map(|part| (part / sum) as f32).collect(),
            levels: vec![self.level.bits(); logits.len()],
        }
    }
}

/// Generator of normally distributed numbers.
pub(super) struct Normal {
    random: Xoshiro256PlusPlus,
    spare: Option<f64>,
}

impl Normal {
    pub fn new(seed: u64) -> Self {
        Self { random: Xoshiro256PlusPlus::seed_from_u64(seed), spare: None }
    }

    /// Returns a uniform number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a standard normal number, by the Box-Muller method.
    pub fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        let radius = (-2.0 * libm::log(1.0 - self.uniform())).sqrt();
        let angle = std::f64::consts::TAU * self.uniform();
        self.spare = Some(radius * libm::sin(angle));
        radius * libm::cos(angle)
    }
}

//! Routing that nobody computed: from a seed, as skewed and as steady as one likes.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use nestling_formats::Level;

use nestling_core::routing_trace::{LayerRouting, RoutingTrace, TraceShape, TraceStep};

/// Spread of what a token adds to the router's logits.
const TOKEN_SPREAD: f64 = 0.95;

/// A made-up router: the logit of each expert is a constant, drawn once, plus what the token adds.
#[derive(Clone, Debug, PartialEq)]
pub struct SyntheticRouting {
    /// The model.
    pub shape: TraceShape,
    /// Spread of the constants: 0 makes all experts alike, 1 makes the hot ones very hot.
    pub skew: f64,
    /// How much of what a token adds is what the last one added: 0 for independent tokens.
    pub steadiness: f64,
    /// Steps of one row each.
    pub steps: usize,
    /// Level of every expert.
    pub level: Level,
    /// The same seed makes the same trace.
    pub seed: u64,
}

impl SyntheticRouting {
    /// Makes the trace.
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

    /// The experts of the greatest logits, weighted by their softmax.
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

/// Normally distributed numbers.
pub(super) struct Normal {
    random: Xoshiro256PlusPlus,
    spare: Option<f64>,
}

impl Normal {
    pub fn new(seed: u64) -> Self {
        Self { random: Xoshiro256PlusPlus::seed_from_u64(seed), spare: None }
    }

    /// Evenly between 0 and 1.
    pub fn uniform(&mut self) -> f64 {
        (self.random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller's method.
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

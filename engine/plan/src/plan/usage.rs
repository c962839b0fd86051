//! Assumed use of experts, if it was not measured.

/// Assumed standard deviation of a router's fixed biases, relative to a token-dependent part of about 1.
pub const DEFAULT_SKEW: f64 = 0.5;

/// Standard deviation of the token-dependent part of a router's logit.
const TOKEN_DEVIATION: f64 = 0.9;

/// Bisection steps that narrow an interval down to one 64-bit float.
const HALVINGS: usize = 80;

/// Returns the probability of each expert of a layer, busiest first; they sum to `chosen`. Logits are assumed
/// to be Gaussian, with a fixed part of standard deviation `skew`.
///
/// ```
/// use nestling_plan::plan::{DEFAULT_SKEW, supposed_rates};
///
/// let rates = supposed_rates(32, 4, DEFAULT_SKEW);
/// assert!(rates[0] >= rates[31]);
/// assert!((rates.iter().sum::<f64>() - 4.0).abs() < 1e-3);
/// ```
pub fn supposed_rates(experts: usize, chosen: usize, skew: f64) -> Vec<f64> {
    let quantile = |rank: usize| normal_quantile(1.0 - (rank as f64 + 0.5) / experts as f64);
    let biases: Vec<f64> = (0..experts).map(|rank| skew * quantile(rank)).collect();
    let rate = |bias: f64, threshold: f64| normal((bias - threshold) / TOKEN_DEVIATION);
    let threshold = root(-20.0, 20.0 + 10.0 * skew, |threshold| {
        biases.iter().map(|bias| rate(*bias, threshold)).sum::<f64>() > chosen as f64
    });
    biases.into_iter().map(|bias| rate(bias, threshold)).collect()
}

/// Bisects for the point where a predicate that is true at `low` becomes false.
fn root(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_below(middle) { low = middle } else { high = middle }
    }
    low
}

/// Returns the probability that a standard normal variable is at most `x`.
fn normal(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

fn normal_quantile(probability: f64) -> f64 {
    root(-10.0, 10.0, |x| normal(x) < probability)
}

//! How often experts are used where nobody has measured it.

/// Standard deviation of a router's fixed part, where what the token adds to it has about 1, that is
/// supposed of a model whose routing was not measured.
pub const DEFAULT_SKEW: f64 = 0.5;

/// Standard deviation of what the token adds to a router's logit.
const TOKEN_DEVIATION: f64 = 0.9;

/// Halvings of an interval that ends in one number of 64 bits.
const HALVINGS: usize = 80;

/// For each of a layer's experts, busiest first, the probability that a token is sent to it:
/// `chosen` in all. The logits are supposed to be Gaussian, with a fixed part of deviation `skew`.
pub fn supposed_rates(experts: usize, chosen: usize, skew: f64) -> Vec<f64> {
    let quantile = |rank: usize| normal_quantile(1.0 - (rank as f64 + 0.5) / experts as f64);
    let biases: Vec<f64> = (0..experts).map(|rank| skew * quantile(rank)).collect();
    let rate = |bias: f64, threshold: f64| normal((bias - threshold) / TOKEN_DEVIATION);
    let threshold = root(-20.0, 20.0 + 10.0 * skew, |threshold| {
        biases.iter().map(|bias| rate(*bias, threshold)).sum::<f64>() > chosen as f64
    });
    biases.into_iter().map(|bias| rate(bias, threshold)).collect()
}

/// Where a statement that is true at the low end becomes false.
fn root(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        if is_below(middle) { low = middle } else { high = middle }
    }
    low
}

/// The probability that a standard normal number is at most `x`.
fn normal(x: f64) -> f64 {
    0.5 * libm::erfc(-x / std::f64::consts::SQRT_2)
}

fn normal_quantile(probability: f64) -> f64 {
    root(-10.0, 10.0, |x| normal(x) < probability)
}

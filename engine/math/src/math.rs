//! Float arithmetic with identical results on all machines.
//!
//! Each sum uses 16 lanes (element i belongs to lane i % 16, ascending) that are added in a fixed tree.
//! Products that are summed are fused, and `exp` is implemented here. The bits depend neither on the
//! instruction set nor on the thread count. The loops are `inline(always)` so that kernels can
//! compile them for each instruction set.

use crate::fused::Fused;
use nestling_formats::nested;
use nestling_import::{
    Activation, ExpertGroups, GateFunction, GroupScore, RopePairs, RouterConfig, RouterScore,
};

/// Number of lanes of a float sum.
pub const LANES: usize = 16;

/// Element type of a float sum.
pub trait Element: Copy + Send + Sync {
    /// Converts the element to f32 exactly.
    fn to_f32(self) -> f32;
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
}

impl Element for half::bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
}

impl Element for half::f16 {
    // Branch-free, so that it vectorizes: a multiplication with 2^112 moves the exponent and also normalizes
    // subnormal numbers. Infinity and NaN get the maximum exponent.
    #[inline(always)]
    fn to_f32(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let scaled = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
        let special = if magnitude >= 0x7c00 << 13 { 0xff << 23 } else { 0 };
        f32::from_bits(scaled.to_bits() | special | (bits & 0x8000) << 16)
    }
}

/// Adds 16 lanes in the fixed tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
#[inline(always)]
pub fn tree_sum(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// Returns the dot product of two slices of equal length.
///
/// ```
/// use nestling_math::math;
///
/// assert_eq!(math::dot(&[0.5f32; 40], &[2.0; 40]), 40.0);
/// ```
#[inline(always)]
pub fn dot<A: Element>(a: &[A], b: &[f32]) -> f32 {
    let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut lanes = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for i in 0..LANES {
            lanes[i] = a[i].to_f32().fused(b[i], lanes[i]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_tail).zip(b_tail) {
        *lane = a.to_f32().fused(*b, *lane);
    }
    tree_sum(lanes)
}

/// Returns the sum of a slice.
#[inline(always)]
pub fn sum(values: &[f32]) -> f32 {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut lanes = [0.0; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] += chunk[i];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *lane += value;
    }
    tree_sum(lanes)
}

/// Returns the largest value of a slice, or negative infinity if it is empty. NaN is ignored.
#[inline(always)]
pub fn max(values: &[f32]) -> f32 {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    for (lane, &value) in lanes.iter_mut().zip(tail) {
        *lane = if value > *lane { value } else { *lane };
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// Lower bound of `exp` arguments; below it, `exp` is zero.
const EXP_MIN: f32 = -104.0;
/// Upper bound of `exp` arguments; above it, `exp` is infinite.
const EXP_MAX: f32 = 89.0;
/// Rounding constant: adding it to a float of magnitude below 2^22 leaves the nearest integer in the low
/// bits.
const ROUND: f32 = 12_582_912.0;
/// Low part of ln 2, beyond its f32 value.
const LN_2_LOW: f32 = -1.904_654_3e-9;
/// Coefficients 1/7!, 1/6!, … 1/2! of the series of exp beyond 1 + r.
const EXP_SERIES: [f32; 6] =
    [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 1.0 / 2.0];

/// Computes e^x to within 2 units in the last place, if the result is a normal number.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (rest, n) = exp_parts(x);
    // 2^n is applied in two factors, so that subnormal results and 2^128 need no special case.
    let half = n >> 1;
    (rest + 1.0) * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// Returns `(r, n)` with e^x = 2^n (1 + r).
///
/// exp(x) = 2^n * exp(r) with n = round(x / ln 2) and |r| <= ln(2) / 2. The series of exp(r) is truncated
/// where its remainder is below 2^-27.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let shifted = x.fused(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.fused(-LN_2_LOW, n.fused(-std::f32::consts::LN_2, x));
    let mut series = EXP_SERIES[0];
    for coefficient in &EXP_SERIES[1..] {
        series = series.fused(r, *coefficient);
    }
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    ((series * r).fused(r, r), n)
}

#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// Bound beyond which `tanh` is 1.
const TANH_MAX: f32 = 10.0;

/// Computes the hyperbolic tangent as e / (e + 2) with e = e^2|x| - 1, which preserves the digits of small x.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let size = x.abs();
    let size = if size > TANH_MAX { TANH_MAX } else { size };
    let (rest, n) = exp_parts(2.0 * size);
    let power = power_of_two(n);
    let e = rest.fused(power, power - 1.0);
    (e / (e + 2.0)).copysign(x)
}

/// Computes GELU by its tanh approximation, x/2 (1 + tanh u) = x / (1 + e^-2u), with u = √(2/π) (x + 0.044715
/// x³).
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    /// -2 √(2/π)
    const FACTOR: f32 = -1.595_769;
    let cubed = (0.044_715 * x * x).fused(x, x);
    x / (1.0 + exp(FACTOR * cubed))
}

/// Computes x / (1 + e^-x).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// Multiplies equal parts of `x` by a function of their gates.
#[inline(always)]
pub fn gate(function: GateFunction, x: &mut [f32], gate: &[f32]) {
    match function {
        // One gate per element vectorizes only as a loop over elements.
        GateFunction::Sigmoid if x.len() == gate.len() => {
            for (x, gate) in x.iter_mut().zip(gate) {
                *x *= sigmoid(*gate);
            }
        }
        GateFunction::Sigmoid => scale_parts(x, gate, sigmoid),
        GateFunction::Softplus => scale_parts(x, gate, softplus),
    }
}

#[inline(always)]
fn scale_parts(x: &mut [f32], gate: &[f32], function: impl Fn(f32) -> f32) {
    // Default: without gates there are no elements.
    let width = x.len().checked_div(gate.len()).map_or(1, |width| width.max(1));
    for (part, gate) in x.chunks_exact_mut(width).zip(gate) {
        scale(part, function(*gate));
    }
}

/// Computes ln(1 + e^x) in double precision.
#[inline(always)]
pub fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1p(f64::from(exp(x))) as f32 }
}

/// Computes 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// Computes [`Activation::ClampedSwiglu`] of one gate and up. NaN is preserved.
#[inline(always)]
pub fn clamped_swiglu(gate: f32, up: f32, alpha: f32, limit: f32) -> f32 {
    let gate = if gate > limit { limit } else { gate };
    let up = if up > limit { limit } else { up };
    let up = if up < -limit { -limit } else { up };
    gate / (1.0 + exp(-alpha * gate)) * (up + 1.0)
}

/// Computes max(x, 0). NaN is preserved.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// Joins gate and up in place of gate: `gate[i] = activation(gate[i], up[i])`. Without a gate, up takes its place.
#[inline(always)]
pub fn gated(activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = silu(*gate) * up;
            }
        }
        Activation::ClampedSwiglu { alpha, limit } => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = clamped_swiglu(*gate, *up, alpha, limit);
            }
        }
        Activation::GeluTanh => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = gelu_tanh(*gate) * up;
            }
        }
        Activation::Relu2 => {
            for (gate, up) in gate.iter_mut().zip(up) {
                *gate = relu(*gate) * up;
            }
        }
    }
}

/// Computes `x[i] *= factor`.
#[inline(always)]
pub fn scale(x: &mut [f32], factor: f32) {
    for x in x {
        *x *= factor;
    }
}

/// Limits values to `cap`: `x[i] = cap * tanh(x[i] / cap)`.
#[inline(always)]
pub fn softcap(x: &mut [f32], cap: f32) {
    for x in x {
        *x = cap * tanh(*x / cap);
    }
}

/// Applies [`nestling_formats::nested::hadamard`] to each group of 32. A remainder is unchanged.
#[inline(always)]
pub fn hadamard(x: &mut [f32]) {
    let (groups, _) = x.as_chunks_mut::<{ nested::GROUP }>();
    // A loop instead of an iterator adapter, which would lose the caller's instruction set if it is not
    // inlined.
    for group in groups {
        nested::hadamard(group);
    }
}

/// Computes `out = (x / sqrt(mean(x²) + epsilon)) * weight`; all slices have the same length.
#[inline(always)]
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = rms_scale(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = (x * scale) * weight;
    }
}

/// Computes `out += (x / sqrt(mean(x²) + epsilon)) * weight`; all slices have the same length.
#[inline(always)]
pub fn rms_norm_add(x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    let scale = rms_scale(x, epsilon);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out += (x * scale) * weight;
    }
}

/// Applies [`rms_norm`] in place.
#[inline(always)]
pub fn rms_norm_in_place(x: &mut [f32], weight: &[f32], epsilon: f32) {
    let scale = rms_scale(x, epsilon);
    for (x, weight) in x.iter_mut().zip(weight) {
        *x = (*x * scale) * weight;
    }
}

#[inline(always)]
fn rms_scale(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt()
}

/// Converts logits to probabilities: `exp(x - max) / sum`.
#[inline(always)]
pub fn softmax(logits: &mut [f32]) {
    let max = max(logits);
    for x in logits.iter_mut() {
        *x = exp(*x - max);
    }
    let sum = sum(logits);
    for x in logits.iter_mut() {
        *x /= sum;
    }
}

/// Rotates pairs of elements by the angles of their position. `cos` and `sin` are `[R / 2]` for R elements.
#[inline(always)]
pub fn rope(pairs: RopePairs, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    match pairs {
        RopePairs::Halves => rope_halves(x, cos, sin),
        RopePairs::Adjacent => rope_adjacent(x, cos, sin),
    }
}

/// Rotates element `2 i` with element `2 i + 1`.
#[inline(always)]
fn rope_adjacent(x: &mut [f32], cos: &[f32], sin: &[f32]) {
    for (([a, b], cos), sin) in x.as_chunks_mut().0.iter_mut().zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Rotates element `i` with element `i + R / 2`.
#[inline(always)]
fn rope_halves(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(head.len() / 2);
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Computes `out[i] = fma(factor, x[i], out[i])`.
#[inline(always)]
pub fn add_scaled(out: &mut [f32], factor: f32, x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out = factor.fused(*x, *out);
    }
}

/// Computes `out[i] += x[i]`.
#[inline(always)]
pub fn add(out: &mut [f32], x: &[f32]) {
    for (out, x) in out.iter_mut().zip(x) {
        *out += x;
    }
}

/// Returns the `ids.len()` largest values, largest first; ties go to the lower index. NaN counts as largest,
/// so that it is not lost. Both outputs have the same length, at most `values.len()`.
pub fn top_k(values: &[f32], ids: &mut [u32], largest: &mut [f32]) {
    let k = ids.len().min(largest.len());
    let mut found = 0;
    for (id, &value) in (0u32..).zip(values) {
        let before = |other: f32| value > other || (value.is_nan() && !other.is_nan());
        let mut at = found;
        while at > 0 && before(largest[at - 1]) {
            at -= 1;
        }
        if at >= k {
            continue;
        }
        found = (found + 1).min(k);
        ids.copy_within(at..found - 1, at + 1);
        largest.copy_within(at..found - 1, at + 1);
        (ids[at], largest[at]) = (id, value);
    }
}

/// Router inputs and working memory for one token.
#[derive(Debug)]
pub struct RouterScores<'a> {
    /// Logits, which are replaced by scores.
    pub logits: &'a mut [f32], // [E]
    /// Scores for the selection, written if they differ from the scores.
    pub choice: &'a mut [f32], // [E]
    /// Bias added to scores for the selection; empty for none.
    pub selection_bias: &'a [f32], // [E]
    /// Factor of each expert's weight; empty for 1.
    pub expert_scale: &'a [f32], // [E]
}

/// Selects one token's experts, best first, and computes their weights: see [`RouterConfig`]. Softmax over
/// the chosen logits equals softmax over all, divided by the sum over the chosen ones.
#[inline(always)]
pub fn route(rule: &RouterConfig, scores: RouterScores, ids: &mut [u32], weights: &mut [f32]) {
    let RouterScores { logits, choice, selection_bias, expert_scale } = scores;
    match rule.score {
        RouterScore::Softmax => softmax(logits),
        RouterScore::Sigmoid => logits.iter_mut().for_each(|logit| *logit = sigmoid(*logit)),
    }
    if selection_bias.is_empty() && rule.groups.is_none() {
        top_k(logits, ids, weights);
    } else {
        choice.copy_from_slice(logits);
        choice.iter_mut().zip(selection_bias).for_each(|(choice, bias)| *choice += bias);
        if let Some(groups) = &rule.groups {
            keep_best_groups(groups, choice);
        }
        top_k(choice, ids, weights);
        for (weight, id) in weights.iter_mut().zip(&*ids) {
            *weight = logits[*id as usize];
        }
    }
    if rule.norm_topk_prob {
        let sum = weights.iter().fold(0.0, |sum, weight| sum + weight);
        for weight in &mut *weights {
            *weight /= sum;
        }
    }
    if rule.scale != 1.0 {
        scale(weights, rule.scale);
    }
    if !expert_scale.is_empty() {
        for (weight, id) in weights.iter_mut().zip(&*ids) {
            *weight *= expert_scale[*id as usize];
        }
    }
}

/// Sets the scores of all but the best groups of experts to negative infinity. Ties go to the lower group.
#[inline(always)]
fn keep_best_groups(groups: &ExpertGroups, choice: &mut [f32]) {
    let size = (choice.len() / groups.n_group.max(1)).max(1);
    let score = |group: &[f32]| {
        let mut best = [f32::NEG_INFINITY; 2];
        for &value in group {
            if value > best[0] {
                best = [value, best[0]];
            } else if value > best[1] {
                best[1] = value;
            }
        }
        match groups.score {
            GroupScore::Best => best[0],
            GroupScore::TwoBest => best[0] + best[1].max(f32::MIN),
        }
    };
    // Decided before any score changes: a group is kept if fewer than `topk_group` groups precede it.
    let mut keep = 0u64;
    for (index, group) in choice.chunks(size).enumerate() {
        let own = score(group);
        let better = |(other, group): (usize, &[f32])| {
            let theirs = score(group);
            theirs > own || (theirs == own && other < index)
        };
        let before = choice.chunks(size).enumerate().filter(|group| better(*group)).count();
        keep |= u64::from(before < groups.topk_group) << index.min(63);
    }
    for (index, group) in choice.chunks_mut(size).enumerate() {
        if keep >> index.min(63) & 1 == 0 {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Side of the square tiles in which outer products are summed.
pub const OUTER_TILE: usize = 32;

/// Number of rows of a tile whose sums stay in registers together.
const OUTER_ROWS: usize = 4;

/// Computes `sums[i][j] = fma(a[t][i], b[t][j], sums[i][j])` for ascending `t`.
#[inline(always)]
pub fn outer_products(
    a: &[[f32; OUTER_TILE]],
    b: &[[f32; OUTER_TILE]],
    sums: &mut [[f32; OUTER_TILE]; OUTER_TILE],
) {
    for (block, sums) in sums.as_chunks_mut::<OUTER_ROWS>().0.iter_mut().enumerate() {
        let mut lanes = *sums;
        for (a, b) in a.iter().zip(b) {
            let a = &a[block * OUTER_ROWS..][..OUTER_ROWS];
            for i in 0..OUTER_ROWS {
                for j in 0..OUTER_TILE {
                    lanes[i][j] = a[i].fused(b[j], lanes[i][j]);
                }
            }
        }
        *sums = lanes;
    }
}

/// Quantizes one group of activations to int8, half to even, and returns its scale. The scale is `amax /
/// 127`, 0 for a group of zeros, and not finite if any `x` is not. `out` may be longer than `x`; the rest is
/// set to 0.
#[inline(always)]
pub fn quantize_group(x: &[f32], out: &mut [i8]) -> f32 {
    // Maximum magnitude by bits. Infinity and NaN exceed all numbers, so that they reach the scale and make
    // all products of the group infinite or NaN.
    let mut amax = 0;
    for x in x {
        let magnitude = x.to_bits() & !(1 << 31);
        amax = if magnitude > amax { magnitude } else { amax };
    }
    let amax = f32::from_bits(amax);
    let factor = if amax > 0.0 { 127.0 / amax } else { 0.0 };
    for (out, x) in out.iter_mut().zip(x) {
        let scaled = x * factor;
        let scaled = if scaled > 127.0 { 127.0 } else { scaled };
        let scaled = if scaled < -127.0 { -127.0 } else { scaled };
        *out = ((scaled + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32) as i8;
    }
    out[x.len()..].fill(0);
    amax / 127.0
}

/// Cosines and sines of each position's angles.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    cos: Vec<f32>, // [positions, head_dim / 2]
    sin: Vec<f32>, // [positions, head_dim / 2]
}

impl RopeTable {
    /// Creates a table for `positions` positions. Frequencies and angles are rounded to f32 as in the
    /// training code (transformers). Their cosines and sines are computed by libm in f64.
    pub fn new(head_dim: usize, theta: f64, positions: usize) -> Self {
        let half = head_dim / 2;
        let mut table = Self {
            half,
            cos: Vec::with_capacity(positions * half),
            sin: Vec::with_capacity(positions * half),
        };
        let frequency = |i: usize| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            1.0 / (libm::pow(theta, f64::from(exponent)) as f32)
        };
        let frequencies: Vec<f32> = (0..half).map(frequency).collect();
        for position in 0..positions {
            for frequency in &frequencies {
                let angle = f64::from(position as f32 * frequency);
                table.cos.push(libm::cos(angle) as f32);
                table.sin.push(libm::sin(angle) as f32);
            }
        }
        table
    }

    /// Returns the number of positions.
    pub fn positions(&self) -> usize {
        // Default: a table of width 0 has no positions.
        self.cos.len().checked_div(self.half).unwrap_or(0)
    }

    /// Returns the cosines and sines of one position, `[head_dim / 2]` each; empty beyond the table.
    pub fn row(&self, position: usize) -> (&[f32], &[f32]) {
        let range = position * self.half..(position + 1) * self.half;
        match (self.cos.get(range.clone()), self.sin.get(range)) {
            (Some(cos), Some(sin)) => (cos, sin),
            _ => (&[], &[]),
        }
    }
}

#[cfg(test)]
mod tests;

// Float functions: the same series as on the CPU, so that devices agree closely.

const EXP_MIN: f32 = -104.0;
const EXP_MAX: f32 = 89.0;
const LOG2_E: f32 = 1.44269502;
const LN_2: f32 = 0.693147182;
const LN_2_LOW: f32 = -1.9046543e-9;

fn power_of_two(n: i32) -> f32 {
    return bitcast<f32>(u32(n + 127) << 23u);
}

fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

// `value`, or `x` where that is no number. The choice is made by bits alone: a compiler that takes every number
// for finite, as Metal's does, may turn a comparison or a choice of floats into one that passes NaN over.
fn unless_nan(x: f32, value: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(value), bitcast<u32>(x), is_nan(x)));
}

struct ExpParts {
    rest: f32,
    n: i32,
}

// e^x = 2^n (1 + rest).
fn exp_parts(value: f32) -> ExpParts {
    let x = clamp(value, EXP_MIN, EXP_MAX);
    let n = round(x * LOG2_E);
    let r = fma(n, -LN_2_LOW, fma(n, -LN_2, x));
    var series = 1.0 / 5040.0;
    series = fma(series, r, 1.0 / 720.0);
    series = fma(series, r, 1.0 / 120.0);
    series = fma(series, r, 1.0 / 24.0);
    series = fma(series, r, 1.0 / 6.0);
    series = fma(series, r, 0.5);
    return ExpParts(fma(series * r, r, r), i32(n));
}

// e^x; NaN stays.
fn exp_of(x: f32) -> f32 {
    let parts = exp_parts(x);
    let half = parts.n >> 1u;
    let value = (parts.rest + 1.0) * power_of_two(half) * power_of_two(parts.n - half);
    return unless_nan(x, value);
}

fn sigmoid(x: f32) -> f32 {
    return unless_nan(x, 1.0 / (1.0 + exp_of(-x)));
}

fn silu(x: f32) -> f32 {
    return x / (1.0 + exp_of(-x));
}

// e / (e + 2) with e = e^2|x| - 1, which keeps the digits of small x.
fn tanh_of(x: f32) -> f32 {
    let parts = exp_parts(2.0 * min(abs(x), 10.0));
    let power = power_of_two(parts.n);
    let e = fma(parts.rest, power, power - 1.0);
    let size = e / (e + 2.0);
    return unless_nan(x, select(size, -size, x < 0.0));
}

// x / (1 + e^-2u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
fn gelu_tanh(x: f32) -> f32 {
    let cubed = fma(0.044715 * x * x, x, x);
    return x / (1.0 + exp_of(-1.595769 * cubed));
}

// Gate and up joined; `kind` is 0 for SiLU, 1 for the clamped kind, 2 for GELU, 3 for ReLU², whose gate is up.
fn activation(kind: u32, gate: f32, up: f32, alpha: f32, limit: f32) -> f32 {
    if kind == 0u {
        return silu(gate) * up;
    }
    if kind == 2u {
        return gelu_tanh(gate) * up;
    }
    if kind == 3u {
        return unless_nan(gate, max(gate, 0.0)) * up;
    }
    let g = unless_nan(gate, select(gate, limit, gate > limit));
    let below = select(up, limit, up > limit);
    let u = unless_nan(up, select(below, -limit, below < -limit));
    return g / (1.0 + exp_of(-alpha * g)) * (u + 1.0);
}

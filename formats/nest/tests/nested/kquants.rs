//! Emulation of llama.cpp block quantizations for comparison: Q2_K, Q3_K, Q4_K, Q6_K, Q8_0.
//!
//! Scale searches follow `ggml-quants.c` (reference quantizers, no importance matrix). Each runs once with
//! llama.cpp's weights of the squared error and once with equal weights.

use half::f16;

/// A block quantization to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KQuant {
    Q2K,
    Q3K,
    Q4K,
    Q6K,
    Q8_0,
}

/// Weighting of errors in the scale search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weighting {
    LlamaCpp,
    Equal,
}

impl KQuant {
    pub const ALL: [Self; 5] = [Self::Q2K, Self::Q3K, Self::Q4K, Self::Q6K, Self::Q8_0];

    pub fn name(self) -> &'static str {
        match self {
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q6K => "Q6_K",
            Self::Q8_0 => "Q8_0",
        }
    }

    /// Returns the bits of a block divided by its weights.
    pub fn bits_per_weight(self) -> f64 {
        match self {
            Self::Q2K => 84.0 * 8.0 / 256.0,
            Self::Q3K => 110.0 * 8.0 / 256.0,
            Self::Q4K => 144.0 * 8.0 / 256.0,
            Self::Q6K => 210.0 * 8.0 / 256.0,
            Self::Q8_0 => 34.0 * 8.0 / 32.0,
        }
    }

    /// Returns squared error over squared weights, the smaller of both weightings; weights must be whole
    /// blocks of 256.
    pub fn relative_error(self, weights: &[f32]) -> f64 {
        let energy: f64 = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
        let error = |weighting| {
            let blocks = weights.chunks_exact(256);
            assert!(blocks.remainder().is_empty());
            blocks.map(|block| self.block_error(block, weighting)).sum::<f64>() / energy
        };
        error(Weighting::LlamaCpp).min(error(Weighting::Equal))
    }

    fn block_error(self, block: &[f32], weighting: Weighting) -> f64 {
        let decoded = match self {
            Self::Q2K => affine(block, &AffineKind::Q2, weighting),
            Self::Q4K => affine(block, &AffineKind::Q4, weighting),
            Self::Q3K => symmetric(block, 4, 32.0, weighting),
            Self::Q6K => symmetric(block, 32, 128.0, weighting),
            Self::Q8_0 => block.chunks_exact(32).flat_map(q8_0).collect(),
        };
        block.iter().zip(decoded).map(|(w, d)| (f64::from(*w) - f64::from(d)).powi(2)).sum()
    }
}

fn q8_0(block: &[f32]) -> Vec<f32> {
    let scale = largest(block).abs() / 127.0;
    let stored = f16::from_f32(scale).to_f32();
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    block.iter().map(|w| (w * inverse).round() * stored).collect()
}

/// Returns the element with the largest magnitude.
fn largest(block: &[f32]) -> f32 {
    block.iter().fold(0.0f32, |largest, w| if w.abs() > largest.abs() { *w } else { largest })
}

fn nearest(value: f32, low: i32, high: i32) -> f32 {
    (value.round_ties_even() as i32).clamp(low, high) as f32
}

/// Parameters of Q2_K and Q4_K: a scale and a minimum per sub-block, themselves quantized.
struct AffineKind {
    sub_block: usize,
    top: i32,
    scale_top: f32,
    first: f32,
    tries: usize,
    absolute: bool,
}

impl AffineKind {
    const Q2: Self =
        Self { sub_block: 16, top: 3, scale_top: 15.0, first: -0.5, tries: 15, absolute: true };
    const Q4: Self =
        Self { sub_block: 32, top: 15, scale_top: 63.0, first: -1.0, tries: 20, absolute: false };

    fn weights(&self, block: &[f32], weighting: Weighting) -> Vec<f32> {
        let mean = (block.iter().map(|w| w * w).sum::<f32>() / block.len() as f32).sqrt();
        let offset = if self.absolute { 0.0 } else { mean };
        match weighting {
            Weighting::LlamaCpp => block.iter().map(|w| offset + w.abs()).collect(),
            Weighting::Equal => vec![1.0; block.len()],
        }
    }
}

fn affine(block: &[f32], kind: &AffineKind, weighting: Weighting) -> Vec<f32> {
    let fits: Vec<(f32, f32)> = block
        .chunks_exact(kind.sub_block)
        .map(|part| {
            let absolute = kind.absolute && weighting == Weighting::LlamaCpp;
            affine_search(part, &kind.weights(part, weighting), kind, absolute)
        })
        .collect();
    let max_scale = fits.iter().fold(0.0f32, |max, fit| max.max(fit.0));
    let max_minimum = fits.iter().fold(0.0f32, |max, fit| max.max(fit.1));
    let quantized = |value: f32, max: f32| {
        let unit = f16::from_f32(max / kind.scale_top).to_f32();
        let index = if max > 0.0 { (kind.scale_top / max * value).round_ties_even() } else { 0.0 };
        unit * index.min(kind.scale_top)
    };
    let mut decoded = Vec::with_capacity(block.len());
    for (part, fit) in block.chunks_exact(kind.sub_block).zip(fits) {
        let (scale, minimum) = (quantized(fit.0, max_scale), quantized(fit.1, max_minimum));
        for w in part {
            let index = if scale > 0.0 { nearest((w + minimum) / scale, 0, kind.top) } else { 0.0 };
            decoded.push(scale * index - minimum);
        }
    }
    decoded
}

/// Emulates `make_qkx2_quants`: scale and (negated) minimum of one sub-block.
fn affine_search(block: &[f32], weights: &[f32], kind: &AffineKind, absolute: bool) -> (f32, f32) {
    let minimum = block.iter().fold(0.0f32, |min, w| min.min(*w));
    let maximum = block.iter().fold(f32::MIN, |max, w| max.max(*w));
    if maximum <= minimum {
        return (0.0, -minimum);
    }
    let range = maximum - minimum;
    let top = kind.top as f32;
    let indices = |inverse: f32| -> Vec<f32> {
        block.iter().map(|w| nearest(inverse * (w - minimum), 0, kind.top)).collect()
    };
    let error = |indices: &[f32], scale: f32, minimum: f32| -> f32 {
        let parts = block.iter().zip(indices).zip(weights);
        parts
            .map(|((w, index), weight)| {
                let difference = scale * index + minimum - w;
                weight * if absolute { difference.abs() } else { difference * difference }
            })
            .sum()
    };
    let sum = |values: &dyn Fn(usize) -> f32| -> f32 { (0..block.len()).map(values).sum() };
    let sum_w: f32 = weights.iter().sum();
    let sum_x = sum(&|i| weights[i] * block[i]);
    let mut best = (range / top, minimum);
    let mut best_error = error(&indices(top / range), best.0, best.1);
    for step in 0..=kind.tries {
        let l = indices((kind.first + 0.1 * step as f32 + top) / range);
        let sum_l = sum(&|i| weights[i] * l[i]);
        let sum_l2 = sum(&|i| weights[i] * l[i] * l[i]);
        let sum_xl = sum(&|i| weights[i] * l[i] * block[i]);
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant <= 0.0 {
            continue;
        }
        let mut fit = (
            (sum_w * sum_xl - sum_x * sum_l) / determinant,
            (sum_l2 * sum_x - sum_l * sum_xl) / determinant,
        );
        if fit.1 > 0.0 {
            fit = (sum_xl / sum_l2, 0.0);
        }
        let fit_error = error(&l, fit.0, fit.1);
        if fit_error < best_error {
            (best, best_error) = (fit, fit_error);
        }
    }
    (best.0, -best.1)
}

/// Emulates Q3_K and Q6_K: signed scales per 16 weights, themselves quantized to `scale_top` levels per side.
fn symmetric(block: &[f32], top: i32, scale_top: f32, weighting: Weighting) -> Vec<f32> {
    let scales: Vec<f32> = block
        .chunks_exact(16)
        .map(|part| {
            let weights: Vec<f32> = match weighting {
                Weighting::LlamaCpp => part.iter().map(|w| w * w).collect(),
                Weighting::Equal => vec![1.0; part.len()],
            };
            let tried = symmetric_search(part, &weights, top);
            if top == 4 { coordinate_search(part, &weights, top, tried) } else { tried }
        })
        .collect();
    let max_scale = largest(&scales);
    if max_scale == 0.0 {
        return vec![0.0; block.len()];
    }
    let inverse = -scale_top / max_scale;
    let unit = f16::from_f32(1.0 / inverse).to_f32();
    let mut decoded = Vec::with_capacity(block.len());
    for (part, scale) in block.chunks_exact(16).zip(scales) {
        let limit = scale_top as i32;
        let scale = unit * nearest(inverse * scale, -limit, limit - 1);
        for w in part {
            let index = if scale == 0.0 { 0.0 } else { nearest(w / scale, -top, top - 1) };
            decoded.push(scale * index);
        }
    }
    decoded
}

/// Emulates `make_qx_quants`: the best of 19 scales, each refined by least squares.
fn symmetric_search(block: &[f32], weights: &[f32], top: i32) -> f32 {
    let max = largest(block);
    if max == 0.0 {
        return 0.0;
    }
    let mut best = (0.0, f32::MIN);
    for step in -9..=9 {
        let inverse = -(top as f32 + 0.1 * step as f32) / max;
        let (mut sum_xl, mut sum_l2) = (0.0, 0.0);
        for (w, weight) in block.iter().zip(weights) {
            let l = nearest(inverse * w, -top, top - 1);
            sum_xl += weight * w * l;
            sum_l2 += weight * l * l;
        }
        if sum_l2 > 0.0 && sum_xl * sum_xl / sum_l2 > best.1 {
            best = (sum_xl / sum_l2, sum_xl * sum_xl / sum_l2);
        }
    }
    best.0
}

/// Emulates `make_q3_quants`: moves one weight at a time to the index that is best for the scale of the
/// others.
fn coordinate_search(block: &[f32], weights: &[f32], top: i32, tried: f32) -> f32 {
    let max = largest(block);
    if max == 0.0 {
        return 0.0;
    }
    // Starts from llama.cpp's initial scale and from the wider search, and keeps the better.
    let starts = [-max / top as f32, tried];
    let mut best = (0.0, f32::MIN);
    for start in starts.into_iter().filter(|start| *start != 0.0) {
        let mut l: Vec<f32> = block.iter().map(|w| nearest(w / start, -top, top - 1)).collect();
        let mut sum_xl: f32 = (0..block.len()).map(|i| weights[i] * block[i] * l[i]).sum();
        let mut sum_l2: f32 = (0..block.len()).map(|i| weights[i] * l[i] * l[i]).sum();
        for _ in 0..5 {
            let mut changed = false;
            for (i, w) in block.iter().enumerate() {
                let other_xl = sum_xl - weights[i] * w * l[i];
                let other_l2 = sum_l2 - weights[i] * l[i] * l[i];
                if other_xl <= 0.0 {
                    continue;
                }
                let new = nearest(w * other_l2 / other_xl, -top, top - 1);
                let new_xl = other_xl + weights[i] * w * new;
                let new_l2 = other_l2 + weights[i] * new * new;
                if new != l[i]
                    && new_l2 > 0.0
                    && new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
                {
                    (l[i], sum_xl, sum_l2, changed) = (new, new_xl, new_l2, true);
                }
            }
            if !changed {
                break;
            }
        }
        if sum_l2 > 0.0 && sum_xl * sum_xl / sum_l2 > best.1 {
            best = (sum_xl / sum_l2, sum_xl * sum_xl / sum_l2);
        }
    }
    best.0
}

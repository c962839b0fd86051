//! D²MoE's matryoshka weight quantization (MWQ, arXiv 2504.15299 §4), for comparison.
//!
//! A 2-bit asymmetric base, `(Q - z) * s` in groups of 128, and per further bit a plane of signs of the
//! residual, with a scale per group and plane. The paper publishes no code. Unspecified details are chosen in
//! its favour: scale and zero by search and least squares, signs with their optimal scales.

use half::f16;

/// Number of weights that share scale and zero.
pub const GROUP: usize = 128;

/// Levels of version 1, in bits.
pub const BITS: [u32; 3] = [2, 3, 4];

/// Returns the bits per weight: fp16 scale and 2-bit zero of the base, fp16 scale of each plane.
pub fn bits_per_weight(bits: u32) -> f64 {
    let planes = f64::from(bits - 2);
    2.0 + (16.0 + 2.0) / GROUP as f64 + planes * (1.0 + 16.0 / GROUP as f64)
}

/// Decodes one group at 2, 3 and 4 bits.
pub fn decode(group: &[f32]) -> [Vec<f32>; 3] {
    let base = base(group);
    let three = add_signs(group, &base);
    let four = add_signs(group, &three);
    [base, three, four]
}

/// Returns squared error over squared weights at 2, 3 and 4 bits; rows must be whole groups.
pub fn relative_errors(weights: &[f32]) -> [f64; 3] {
    let (groups, rest) = weights.as_chunks::<GROUP>();
    assert!(rest.is_empty());
    let energy: f64 = weights.iter().map(|weight| f64::from(*weight).powi(2)).sum();
    let mut errors = [0.0; 3];
    for group in groups {
        for (error, decoded) in errors.iter_mut().zip(decode(group)) {
            *error += squared_error(group, &decoded);
        }
    }
    errors.map(|error| error / energy)
}

fn squared_error(group: &[f32], decoded: &[f32]) -> f64 {
    group.iter().zip(decoded).map(|(w, d)| (f64::from(*w) - f64::from(*d)).powi(2)).sum()
}

/// Finds the best base. All zeros are tried with scales from a third of the range to all of it, each refined
/// twice.
fn base(group: &[f32]) -> Vec<f32> {
    let low = group.iter().copied().fold(0.0f32, f32::min);
    let high = group.iter().copied().fold(0.0f32, f32::max);
    let mut best = (f64::INFINITY, vec![0.0; group.len()]);
    for zero in 0..4u8 {
        for step in 0..48 {
            let shrink = 1.0 - step as f32 / 72.0;
            let mut scale = (high - low) * shrink / 3.0;
            for _ in 0..3 {
                scale = f16::from_f32(scale).to_f32();
                if scale <= 0.0 {
                    break;
                }
                let zero = f32::from(zero);
                let index = |w: &f32| (w / scale + zero).round().clamp(0.0, 3.0) - zero;
                let decoded: Vec<f32> = group.iter().map(|w| index(w) * scale).collect();
                let error = squared_error(group, &decoded);
                let (mut cross, mut square) = (0.0, 0.0);
                for weight in group {
                    cross += weight * index(weight);
                    square += index(weight).powi(2);
                }
                if error < best.0 {
                    best = (error, decoded);
                }
                scale = if square > 0.0 { cross / square } else { 0.0 };
            }
        }
    }
    best.1
}

/// Adds a plane: the sign of the residual times its mean magnitude.
fn add_signs(group: &[f32], decoded: &[f32]) -> Vec<f32> {
    let left = group.iter().zip(decoded).map(|(w, d)| w - d);
    let mean = left.clone().map(f32::abs).sum::<f32>() / group.len() as f32;
    let scale = f16::from_f32(mean).to_f32();
    decoded.iter().zip(left).map(|(d, left)| d + if left < 0.0 { -scale } else { scale }).collect()
}

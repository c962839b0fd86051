use super::*;
use proptest::prelude::*;

/// Distance from the true value in units of the last place of the result.
fn ulps(found: f32, truth: f64) -> f64 {
    let unit = f64::from(f32::from_bits(found.to_bits() + 1)) - f64::from(found);
    (f64::from(found) - truth).abs() / unit
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut worst: f64 = 0.0;
    let mut bits = 0u32;
    while bits < f32::to_bits(88.7) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            if x > -87.3 {
                worst = worst.max(ulps(exp(x), libm::exp(f64::from(x))));
            }
        }
        bits += 997;
    }
    assert!(worst <= 2.0, "worst error {worst} units in the last place");
}

#[test]
fn exp_at_the_ends() {
    assert_eq!(exp(0.0), 1.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert_eq!(exp(f32::INFINITY), f32::INFINITY);
    assert_eq!(exp(100.0), f32::INFINITY);
    assert_eq!(exp(-200.0), 0.0);
    assert!(exp(f32::NAN).is_nan());
    let subnormal = exp(-95.0);
    assert!((f64::from(subnormal) - libm::exp(-95.0)).abs() <= f64::from(f32::from_bits(1)));
}

#[test]
fn tanh_and_gelu_keep_their_digits() {
    let (mut worst_tanh, mut worst_gelu): (f64, f64) = (0.0, 0.0);
    let mut bits = f32::to_bits(1e-30);
    while bits < f32::to_bits(12.0) {
        for x in [f32::from_bits(bits), -f32::from_bits(bits)] {
            let wide = f64::from(x);
            let truth = libm::tanh(wide);
            worst_tanh = worst_tanh.max(((f64::from(tanh(x)) - truth) / truth).abs());
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (wide + 0.044715 * wide.powi(3));
            let truth = 0.5 * wide * (1.0 + libm::tanh(inner));
            worst_gelu = worst_gelu.max((f64::from(gelu_tanh(x)) - truth).abs() / wide.abs());
        }
        bits += 1009;
    }
    assert!(worst_tanh <= 4e-7, "relative error {worst_tanh} of tanh");
    assert!(worst_gelu <= 4e-7, "error {worst_gelu} of GELU, in parts of x");
    assert_eq!((tanh(0.0), tanh(50.0), tanh(f32::NEG_INFINITY)), (0.0, 1.0, -1.0));
    assert!(tanh(f32::NAN).is_nan() && gelu_tanh(f32::NAN).is_nan());
}

#[test]
fn every_f16_and_bf16_converts_exactly() {
    for bits in 0..=u16::MAX {
        let (f16, bf16) = (half::f16::from_bits(bits), half::bf16::from_bits(bits));
        for (found, wanted) in
            [(Element::to_f32(f16), f16.to_f32()), (Element::to_f32(bf16), bf16.to_f32())]
        {
            let same = found.to_bits() == wanted.to_bits();
            assert!(same || (found.is_nan() && wanted.is_nan()), "{bits:#x}");
        }
    }
}

#[test]
fn the_tree_adds_lanes_in_halves() {
    let lanes = std::array::from_fn(|i| if i == 0 { 1e8 } else { i as f32 });
    let mut wanted: Vec<f32> = lanes.to_vec();
    while wanted.len() > 1 {
        let (low, high) = wanted.split_at(wanted.len() / 2);
        wanted = low.iter().zip(high).map(|(a, b)| a + b).collect();
    }
    assert_eq!(tree_sum(lanes), wanted[0]);
}

#[test]
fn top_k_prefers_the_lower_index_and_keeps_nan() {
    let (mut ids, mut values) = ([0; 3], [0.0; 3]);
    top_k(&[1.0, 3.0, 2.0, 3.0, 2.0], &mut ids, &mut values);
    assert_eq!((ids, values), ([1, 3, 2], [3.0, 3.0, 2.0]));
    top_k(&[1.0, f32::INFINITY, f32::NAN, 0.0], &mut ids, &mut values);
    assert_eq!(ids, [2, 1, 0]);
}

#[test]
fn rms_norm_of_a_known_row() {
    let mut out = [0.0; 2];
    rms_norm(&[3.0, 4.0], &[1.0, 2.0], 0.0, &mut out);
    let root = (12.5f32).sqrt();
    let wanted = [3.0 / root, 8.0 / root];
    for (out, wanted) in out.iter().zip(wanted) {
        // Four roundings: square root, reciprocal, two products.
        assert!((out - wanted).abs() <= 4.0 * f32::EPSILON * wanted, "{out} {wanted}");
    }
}

#[test]
fn rope_turns_by_the_angle() {
    let table = RopeTable::new(4, 10_000.0, 3);
    let (cos, sin) = table.row(2);
    let angles = [2.0f64, 0.02];
    for i in 0..2 {
        // The angle and the result were each rounded to f32.
        assert!((f64::from(cos[i]) - angles[i].cos()).abs() < 2.4e-7);
        assert!((f64::from(sin[i]) - angles[i].sin()).abs() < 2.4e-7);
    }
    let mut head = [1.0, 0.0, 0.0, 1.0];
    rope(RopePairs::Halves, &mut head, cos, sin);
    assert_eq!(head, [cos[0], -sin[1], sin[0], cos[1]]);
    let mut head = [1.0, 0.0, 0.0, 1.0];
    rope(RopePairs::Adjacent, &mut head, cos, sin);
    assert_eq!(head, [cos[0], sin[0], -sin[1], cos[1]]);
    assert_eq!(table.positions(), 3);
    assert!(table.row(3).0.is_empty());
}

proptest! {
    #[test]
    fn a_quantized_group_is_within_half_a_step(x in prop::collection::vec(-10.0f32..10.0, 1..=32)) {
        let mut out = [1i8; 32];
        let scale = quantize_group(&x, &mut out);
        for (x, q) in x.iter().zip(&out) {
            let error = f64::from(*x) - f64::from(scale) * f64::from(*q);
            // Half a step, plus the roundings of factor, product and scale.
            let bound = f64::from(scale) * (0.5 + 127.0 * 2.0 * f64::from(f32::EPSILON));
            prop_assert!(error.abs() <= bound, "{x} {q} {scale}");
        }
        prop_assert!(out[x.len()..].iter().all(|q| *q == 0));
    }
}

#[test]
fn quantization_rounds_half_to_even_and_keeps_zero() {
    let mut out = [9i8; 4];
    assert_eq!(quantize_group(&[127.0, 0.5, 1.5, -2.5], &mut out), 1.0);
    assert_eq!(out, [127, 0, 2, -2]);
    assert_eq!(quantize_group(&[0.0; 4], &mut out), 0.0);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(!quantize_group(&[1.0, bad, 2.0], &mut out).is_finite());
    }
    assert_eq!(out, [0; 4]);
}

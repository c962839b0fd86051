//! Hadamard rotation of inputs: compared with its definition, and cancelled by rotated weights.

use nestling_formats::nested::{
    CodecFitter, GROUP, InputTransform, NestedCodec, QuantizeOptions, SecondMoments, hadamard,
};

use super::samples::Distribution;

/// Returns entry (i, j) of the matrix: the sign is the parity of the bits that i and j share.
fn entry(i: usize, j: usize) -> f64 {
    let sign = if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    sign / (GROUP as f64).sqrt()
}

fn numbers(seed: u64, count: usize) -> Vec<f32> {
    Distribution::Gaussian.sample(seed, count)
}

#[test]
fn a_group_is_the_product_with_the_matrix() {
    for seed in 0..4 {
        let x: [f32; GROUP] = numbers(seed, GROUP).try_into().unwrap();
        let mut found = x;
        hadamard(&mut found);
        for (i, found) in found.iter().enumerate() {
            let wanted: f64 = x.iter().enumerate().map(|(j, x)| entry(i, j) * f64::from(*x)).sum();
            // Five additions and a product, of numbers up to 32 * 5.
            assert!((wanted - f64::from(*found)).abs() < 6.0 * 160.0 * f64::from(f32::EPSILON));
        }
        hadamard(&mut found);
        let worst = x.iter().zip(found).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5, "twice is {worst} away from nothing");
    }
}

/// The order of additions is part of the numeric contract.
#[test]
fn its_bits_are_fixed() {
    let mut group: [f32; GROUP] = std::array::from_fn(|i| 0.1 + (i * i) as f32 * 1e-3);
    hadamard(&mut group);
    let digest = group.iter().fold(0u32, |digest, x| digest.rotate_left(5) ^ x.to_bits());
    assert_eq!(digest, DIGEST, "{digest:#x}");
}

const DIGEST: u32 = 0xe75c_b43d;

#[test]
fn rotated_weights_and_inputs_give_the_same_product() {
    let (rows, cols) = (3, 96);
    let (weights, x) = (numbers(7, rows * cols), numbers(8, cols));
    let mut moved = weights.clone();
    InputTransform::Hadamard.transform_weights(&mut moved, cols).unwrap();
    let mut rotated = x.clone();
    rotated.as_chunks_mut::<GROUP>().0.iter_mut().for_each(hadamard);
    let dot = |w: &[f32], x: &[f32]| -> f64 {
        w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum()
    };
    for (a, b) in weights.chunks(cols).zip(moved.chunks(cols)) {
        assert!((dot(a, &x) - dot(b, &rotated)).abs() < 1e-4);
    }
}

#[test]
fn moments_are_those_of_rotated_inputs() {
    let (count, dim) = (5, 64);
    let moments = |inputs: &[f32]| {
        let mut moments = SecondMoments::new(dim).unwrap();
        moments.add_rows(inputs).unwrap();
        moments
    };
    let inputs = numbers(3, count * dim);
    let found = InputTransform::Hadamard.transform_moments(&moments(&inputs)).unwrap();
    let mut rotated = inputs;
    InputTransform::Hadamard.transform_weights(&mut rotated, dim).unwrap();
    let wanted = moments(&rotated);
    assert_eq!(found.count(), wanted.count());
    for (a, b) in found.values().iter().zip(wanted.values()) {
        assert!((a - b).abs() < 1e-4, "{a} and {b}");
    }
}

#[test]
fn shapes_that_do_not_suit_are_errors() {
    let mut weights = vec![1.0; 96];
    for cols in [0, 33, 48, 64] {
        InputTransform::Hadamard.transform_weights(&mut weights, cols).unwrap_err();
        InputTransform::None.transform_weights(&mut weights, cols).unwrap();
    }
    let moments = SecondMoments::new(33).unwrap();
    InputTransform::Hadamard.transform_moments(&moments).unwrap_err();
    assert_eq!(InputTransform::None.transform_moments(&moments).unwrap(), moments);
}

#[test]
fn a_codec_keeps_its_transform() {
    let mut fitter = CodecFitter::new(&QuantizeOptions::default());
    fitter.add(&numbers(1, 16 * 32), 16, 32, None).unwrap();
    let mut codec = fitter.finish().unwrap();
    assert_eq!(codec.inputs, InputTransform::None);
    codec.inputs = InputTransform::Hadamard;
    let mut bytes = codec.to_bytes();
    assert_eq!(NestedCodec::from_bytes(&bytes).unwrap(), codec);
    bytes[6] = 2;
    NestedCodec::from_bytes(&bytes).unwrap_err();
    bytes[6..8].copy_from_slice(&[1, 2]);
    NestedCodec::from_bytes(&bytes).unwrap_err();
}

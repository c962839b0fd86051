use nestling_formats::nested::{CodecFitter, QuantizeOptions, quantize_matrix};

use super::*;

const HIDDEN: usize = 64;
const INTERMEDIATE: usize = 48;
const TOKENS: usize = 12;

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next() + next() + next()).collect()
}

struct QuantizedFixture {
    weights: Vec<f32>,
    coded: QuantizedMatrix,
    codec: NestedCodec,
}

impl QuantizedFixture {
    fn new(rows: usize, cols: usize, seed: u64) -> Self {
        let weights = noise(rows * cols, seed);
        let options = QuantizeOptions::default();
        let mut fitter = CodecFitter::new(&options);
        fitter.add(&weights, rows, cols, None).unwrap();
        let codec = fitter.finish().unwrap();
        let coded = quantize_matrix(&weights, rows, cols, &codec, None, &options).unwrap();
        Self { weights, coded, codec }
    }

    fn view(&self) -> CodedMatrix<'_> {
        CodedMatrix { weights: &self.weights, coded: &self.coded, codec: &self.codec, bias: &[] }
    }
}

fn expert() -> [QuantizedFixture; 3] {
    [
        QuantizedFixture::new(INTERMEDIATE, HIDDEN, 1),
        QuantizedFixture::new(INTERMEDIATE, HIDDEN, 2),
        QuantizedFixture::new(HIDDEN, INTERMEDIATE, 3),
    ]
}

fn sample() -> RoutedSample {
    let weights = noise(TOKENS, 8).iter().map(|weight| weight.abs() + 0.1).collect();
    RoutedSample { inputs: noise(TOKENS * HIDDEN, 9), weights }
}

/// Reference in f64, one token at a time.
fn output(weights: [&[f32]; 3], x: &[f32]) -> Vec<f64> {
    let product = |weights: &[f32], x: &[f64]| -> Vec<f64> {
        let rows = weights.chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
    };
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let (gate, up) = (product(weights[0], &x), product(weights[1], &x));
    let inner = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u);
    product(weights[2], &inner.collect::<Vec<f64>>())
}

#[test]
fn errors_are_those_of_the_definition() {
    let (made, sample) = (expert(), sample());
    let found =
        expert_errors(&[made[0].view(), made[1].view(), made[2].view()], &sample, Activation::Silu)
            .unwrap();
    let exact = [&*made[0].weights, &*made[1].weights, &*made[2].weights];
    let error = |weights: [&[f32]; 3]| {
        let (mut sum, mut squares) = (0.0, 0.0);
        for (x, weight) in sample.inputs.chunks_exact(HIDDEN).zip(&sample.weights) {
            let both = output(exact, x).into_iter().zip(output(weights, x));
            let square = f64::from(*weight).powi(2);
            sum += square * both.map(|(a, b)| (a - b).powi(2)).sum::<f64>();
            squares += square;
        }
        sum / squares
    };
    let zeros = vec![0.0; HIDDEN * INTERMEDIATE];
    // Three levels of sums of at most 64 f32 products: relative error 3 * 64 * 2^-24 of the values, whose
    // differences at level 8 are 2^-8 of them.
    let close = |found: f64, expected: f64| {
        assert!((found - expected).abs() <= 0.01 * expected, "{found}, expected {expected}");
    };
    close(found.together[0], error([&*zeros, &*zeros, &*zeros]));
    for (at, level) in (1..).zip(Level::ALL) {
        let coded = made.each_ref().map(|made| decode(&made.view(), level).unwrap());
        close(found.gate[at], error([&*coded[0], exact[1], exact[2]]));
        close(found.up[at], error([exact[0], &*coded[1], exact[2]]));
        close(found.down[at], error([exact[0], exact[1], &*coded[2]]));
        close(found.together[at], error([&*coded[0], &*coded[1], &*coded[2]]));
    }
    for errors in [found.together, found.gate, found.up, found.down] {
        assert!(errors.windows(2).all(|pair| pair[0] > pair[1]), "{errors:?}");
        let drops = drops(&errors, 0.5);
        let all: f64 = drops.iter().map(|drop| f64::from(*drop)).sum();
        assert!((all - (errors[0] - errors[5]) / 2.0).abs() < 1e-5 * all);
    }
}

#[test]
fn a_plane_that_makes_it_worse_buys_nothing() {
    assert_eq!(drops(&[8.0, 4.0, 5.0, 3.0, 3.0, 1.0], 1.0), [4.0, 0.0, 1.0, 0.0, 2.0]);
    assert_eq!(drops(&[0.0; 6], 1.0), [0.0; 5]);
}

#[test]
fn planes_of_all_matrices_count_with_the_influence_of_what_they_improve() {
    let errors = ExpertErrors {
        together: [8.0, 4.0, 2.0, 1.0, 1.0, 0.0],
        gate: [8.0, 4.0, 4.0, 3.5, 3.5, 3.5],
        up: [8.0, 6.0, 5.0, 4.5, 4.5, 4.5],
        down: [8.0, 6.0, 3.0, 3.0, 3.0, 3.0],
    };
    let kinds = [MatrixKind::Gate, MatrixKind::Up, MatrixKind::Down];
    // Means of the influences with weights 4 : 2 : 2, 0 : 1 : 3 and 1 : 1 : 0, then the plain mean.
    let expected = [4.0 * 2.5, 2.0 * 5.0, 1.5, 0.0, 3.0];
    assert_eq!(errors.together_drops(&kinds, &[1.0, 2.0, 6.0]), expected);
}

//! Sum of the experts' outputs, weighted by the router.

use nestling_core::backend::{Backend, Encoder, EncoderExt, Router};
use nestling_core::driver::block_on;
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_import::RouterConfig;

use crate::values::{EPSILON, buffer, noise, read};
use crate::{OperationsDevice, Test, tests};

const EXPERTS: usize = 9;
const HIDDEN: usize = 48;

fn router<B: Backend>(backend: &mut B, per_token: usize) -> Router<B> {
    let weights = FloatMatrix::from_f32(EXPERTS, HIDDEN, &noise(EXPERTS * HIDDEN, 1)).unwrap();
    let weights = MatrixWeights::Float(weights);
    Router {
        weights: backend.upload_matrix(&weights, ActivationMode::Float).unwrap(),
        num_experts_per_tok: per_token,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    }
}

fn rows_of_experts_are_summed_in_the_order_of_their_ranks<D: OperationsDevice>() {
    let mut device = D::device();
    for (rows, per_token) in [(1, 1), (3, 2), (17, 8)] {
        let router = router(&mut device, per_token);
        let x = buffer(&mut device, HIDDEN, &noise(rows * HIDDEN, 2));
        let (values, before) = (noise(rows * per_token * HIDDEN, 3), noise(rows * HIDDEN, 4));
        let mut expert_rows = buffer(&mut device, HIDDEN, &values);
        let mut out = buffer(&mut device, HIDDEN, &before);
        let mut chosen = device.routing(rows, per_token).unwrap();
        let mut encoder = device.encoder();
        encoder.route(&router, &x, &mut chosen).unwrap();
        let routing = block_on(encoder.read_routing(&chosen)).unwrap();
        encoder.experts_sum(&chosen, &mut expert_rows, &mut out).unwrap();
        encoder.flush().unwrap();
        drop(encoder);
        let found = read(&mut device, &out);
        for (index, (found, before)) in found.iter().zip(&before).enumerate() {
            let (row, col) = (index / HIDDEN, index % HIDDEN);
            let weights = &routing.expert_weights[row * per_token..][..per_token];
            let term = |rank: usize| values[(row * per_token + rank) * HIDDEN + col];
            let terms = weights.iter().enumerate().map(|(rank, weight)| (*weight, term(rank)));
            let sum = terms.clone().fold(0.0f32, |sum, (weight, value)| weight.mul_add(value, sum));
            let size: f32 = terms.map(|(weight, value)| (weight * value).abs()).sum();
            // A rank rounds a product and a sum, unless they are fused, and the final sum rounds.
            let tolerance = EPSILON * (2.0 * per_token as f32 * size + 2.0 * (before.abs() + size));
            let expected = before + sum;
            assert!((found - expected).abs() <= tolerance, "{rows} rows, {index}: {found}");
        }
    }
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![rows_of_experts_are_summed_in_the_order_of_their_ranks::<D>,]
}

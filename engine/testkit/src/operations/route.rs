//! Routing: experts and weights chosen by the router.

use nestling_core::backend::{Backend, Encoder, EncoderExt, Router, Routing};
use nestling_core::driver::block_on;
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_import::{ExpertGroups, GroupScore, RouterConfig, RouterScore};

use crate::values::{buffer, expect_close, noise};
use crate::{OperationsDevice, Test, tests};

pub struct Case {
    experts: usize,
    per_token: usize,
    rule: RouterConfig,
    biased: bool,
}

const HIDDEN: usize = 33;
const ROWS: usize = 70;

impl Case {
    pub fn routing<B: Backend>(&self, backend: &mut B) -> Routing {
        let weights = noise(self.experts * HIDDEN, 1);
        let weights = FloatMatrix::from_f32(self.experts, HIDDEN, &weights).unwrap();
        let weights = MatrixWeights::Float(weights);
        let vector = |backend: &mut B, seed| {
            self.biased.then(|| backend.upload_floats(&noise(self.experts, seed)).unwrap())
        };
        let router = Router {
            weights: backend.upload_matrix(&weights, ActivationMode::Float).unwrap(),
            num_experts_per_tok: self.per_token,
            rule: self.rule,
            logit_bias: vector(backend, 2),
            selection_bias: vector(backend, 3),
            expert_scale: vector(backend, 4),
        };
        let x = buffer(backend, HIDDEN, &noise(ROWS * HIDDEN, 5));
        let mut out = backend.routing(ROWS, self.per_token).unwrap();
        let mut encoder = backend.encoder();
        encoder.route(&router, &x, &mut out).unwrap();
        block_on(encoder.read_routing(&out)).unwrap()
    }
}

pub fn cases() -> Vec<Case> {
    let softmax = RouterConfig::softmax(true);
    let groups = |score| Some(ExpertGroups { n_group: 8, topk_group: 3, score });
    let sigmoid = RouterConfig { score: RouterScore::Sigmoid, scale: 2.5, ..softmax };
    let best = RouterConfig { groups: groups(GroupScore::Best), ..softmax };
    let two_best = RouterConfig { groups: groups(GroupScore::TwoBest), ..sigmoid };
    vec![
        Case { experts: 5, per_token: 2, rule: softmax, biased: false },
        Case { experts: 130, per_token: 8, rule: RouterConfig::softmax(false), biased: false },
        Case { experts: 64, per_token: 64, rule: softmax, biased: true },
        Case { experts: 64, per_token: 6, rule: best, biased: false },
        Case { experts: 96, per_token: 8, rule: two_best, biased: true },
        Case { experts: 1000, per_token: 8, rule: sigmoid, biased: true },
    ]
}

fn experts_and_weights_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for case in cases() {
        let what = format!("{} of {}, {:?}", case.per_token, case.experts, case.rule);
        let (found, expected) = (case.routing(&mut device), case.routing(&mut Cpu::new(1)));
        // Logits are sums of 33 products below 1. With these inputs, the scores next to the selection
        // boundary differ by more than their rounding error.
        assert_eq!(found.expert_ids, expected.expert_ids, "{what}");
        // Logits are at most about 20 and off by 1e-5 each, which changes a weight by the same relative
        // amount.
        let tolerance = |weight: f32| 3e-5 * weight.abs().max(0.1);
        expect_close(&what, &found.expert_weights, &expected.expert_weights, tolerance);
    }
}

fn ties_go_to_the_lower_expert_and_nan_is_not_lost<D: OperationsDevice>() {
    let mut device = D::device();
    // Experts 2, 3 and 4 are equal; the third row is NaN.
    let weights = FloatMatrix::from_f32(5, 1, &[0.0, 1.0, 2.0, 2.0, 2.0]).unwrap();
    let router = Router {
        weights: device
            .upload_matrix(&MatrixWeights::Float(weights), ActivationMode::Float)
            .unwrap(),
        num_experts_per_tok: 2,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    };
    let x = buffer(&mut device, 1, &[1.0, -1.0, f32::NAN]);
    let mut out = device.routing(3, 2).unwrap();
    let mut encoder = device.encoder();
    encoder.route(&router, &x, &mut out).unwrap();
    let routing = block_on(encoder.read_routing(&out)).unwrap();
    assert_eq!(routing.expert_ids[..4], [2, 3, 0, 1]);
    assert_eq!(routing.expert_weights[..2], [0.5, 0.5]);
    assert!(routing.expert_weights[4..].iter().all(|weight| weight.is_nan()));
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        experts_and_weights_are_those_of_the_cpu::<D>,
        ties_go_to_the_lower_expert_and_nan_is_not_lost::<D>,
    ]
}

//! Feed-forward parts and experts, with all activation functions.

use std::sync::Arc;

use nestling_core::backend::{
    Backend, DeviceRouting, Encoder, EncoderExt, ExpertUse, FeedForward, PinnedExpert, Router,
    Routing, Write,
};
use nestling_core::driver::block_on;
use nestling_core::weights::{ActivationMode, FloatMatrix, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_formats::nested::hadamard;
use nestling_formats::{DType, Level};
use nestling_import::gguf::BlockType;
use nestling_import::{Activation, RouterConfig};

use super::matrices::{Magnitudes, MatrixForm, linear, weights};
use super::scaled_matrix::ScaledPlanes;
use crate::values::{EPSILON, buffer, expect_rows_close, noise, read};
use crate::{OperationsDevice, Test, tests};

const INT8: ActivationMode = ActivationMode::Int8;

/// Weights of one feed-forward part.
struct FeedForwardPart {
    activation: Activation,
    /// Gate, up and down.
    matrices: [MatrixWeights; 3],
    /// Seeds of the biases.
    biases: [Option<u32>; 3],
}

impl FeedForwardPart {
    fn new(
        activation: Activation,
        forms: [MatrixForm; 3],
        (hidden, inner): (usize, usize),
        seed: u32,
    ) -> Self {
        let biased = activation != Activation::Silu;
        let biases = [1, 2, 3].map(|number| biased.then_some(seed + number));
        let matrices = [
            weights(forms[0], inner, hidden, seed + 4),
            weights(forms[1], inner, hidden, seed + 5),
            weights(forms[2], hidden, inner, seed + 6),
        ];
        Self { activation, matrices, biases }
    }

    fn upload<B: Backend>(&self, backend: &mut B) -> FeedForward<B> {
        let mut upload =
            |index: usize| linear(backend, &self.matrices[index], INT8, self.biases[index]);
        FeedForward {
            activation: self.activation,
            gate: self.activation.has_gate().then(|| upload(0)),
            up: upload(1),
            down: upload(2),
        }
    }

    fn sizes(&self) -> (usize, usize) {
        (self.matrices[0].cols(), self.matrices[0].rows())
    }

    /// Returns the indices of gate and up. Without a gate, up is joined with itself.
    fn gate_and_up(&self) -> [usize; 2] {
        [usize::from(!self.activation.has_gate()), 1]
    }

    /// Returns the outputs of gate and up on the CPU.
    fn gate_up(&self, levels: &[Level], x: &[f32]) -> [Vec<f32>; 2] {
        let (hidden, inner) = self.sizes();
        self.gate_and_up().map(|index| {
            let mut cpu = Cpu::new(1);
            let x = buffer(&mut cpu, hidden, x);
            let linear = linear(&mut cpu, &self.matrices[index], INT8, self.biases[index]);
            let mut out = cpu.buffer(levels.len(), inner).unwrap();
            cpu.encoder().matmul(&[linear], levels, &x, Write::Set, &mut out).unwrap();
            read(&mut cpu, &out)
        })
    }

    /// Returns the tolerance of the device's outputs, `[rows, hidden]`. The tolerances of gate and up pass
    /// through the activation, and down adds its own.
    fn tolerances(&self, levels: &[Level], x: &[f32], added: f32) -> Vec<f32> {
        let (hidden, inner) = self.sizes();
        let [gate, up] = self.gate_up(levels, x);
        let magnitudes =
            self.gate_and_up().map(|index| Magnitudes::new(&self.matrices[index], INT8, levels, x));
        let (mut values, mut slack) = (Vec::new(), Vec::new());
        for (at, (&gate, &up)) in gate.iter().zip(&up).enumerate() {
            let apart = magnitudes.each_ref().map(|all| all.tolerance(at / inner, at % inner, 1.0));
            let (value, by_gate, by_up) = self.joined(gate, up);
            values.push(value);
            // The activation function rounds about ten times, more for arguments that are not small.
            let own = 20.0 * EPSILON * (value.abs() + by_up * up.abs() + by_gate * gate.abs());
            slack.push(by_gate * apart[0] + by_up * apart[1] + own);
        }
        if self.matrices[2].inputs() == nestling_formats::nested::InputTransform::Hadamard {
            for (group, slack) in
                values.as_chunks_mut::<32>().0.iter_mut().zip(slack.chunks_mut(32))
            {
                let sizes: f32 = group.iter().map(|x| x.abs()).sum();
                let apart: f32 = slack.iter().sum();
                hadamard(group);
                slack.fill((apart + 12.0 * EPSILON * sizes) / 32f32.sqrt());
            }
        }
        let down = Magnitudes::of_inexact(&self.matrices[2], INT8, levels, (&values, &slack));
        let all = 0..levels.len() * hidden;
        all.map(|at| down.tolerance(at / hidden, at % hidden, added)).collect()
    }

    /// Returns the activation's value, and its maximum derivatives with respect to gate and up.
    fn joined(&self, gate: f32, up: f32) -> (f32, f32, f32) {
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        match self.activation {
            Activation::Silu => (gate * sigmoid(gate) * up, 1.1 * up.abs(), gate.abs()),
            Activation::ClampedSwiglu { alpha, limit } => {
                let gate = gate.min(limit);
                let up = up.clamp(-limit, limit) + 1.0;
                let value = gate * sigmoid(alpha * gate) * up;
                (value, 1.1 * up.abs(), gate.abs())
            }
            Activation::GeluTanh => {
                let u = 0.797_884_6 * (gate + 0.044_715 * gate * gate * gate);
                (gate * 0.5 * (1.0 + u.tanh()) * up, 1.2 * up.abs(), gate.abs())
            }
            // The gate is up.
            Activation::Relu2 => (up.max(0.0) * up, up.abs(), up.abs()),
        }
    }
}

const Q8_0: MatrixForm = MatrixForm::Scaled(BlockType::Q8_0, ScaledPlanes::Merged);
const Q6_K: MatrixForm = MatrixForm::Scaled(BlockType::Q6K, ScaledPlanes::Tiled);
const Q4_K: MatrixForm = MatrixForm::Scaled(BlockType::Q4K, ScaledPlanes::Merged);
const Q5_K: MatrixForm = MatrixForm::Scaled(BlockType::Q5K, ScaledPlanes::Tiled);

const CLAMPED: Activation = Activation::ClampedSwiglu { alpha: 1.702, limit: 2.0 };

fn mixed(count: usize) -> Vec<Level> {
    Level::ALL.into_iter().rev().cycle().take(count).collect()
}

fn dense<B: Backend>(
    backend: &mut B,
    part: &FeedForwardPart,
    levels: &[Level],
    x: &[f32],
) -> [Vec<f32>; 2] {
    let (hidden, _) = part.sizes();
    let input = buffer(backend, hidden, x);
    let mut sum = buffer(backend, hidden, &noise(x.len(), 77));
    let mut out = backend.buffer(levels.len(), hidden).unwrap();
    let weights = part.upload(backend);
    let mut encoder = backend.encoder();
    encoder.ffn(&weights, levels, &input, Write::Set, &mut out).unwrap();
    encoder.ffn(&weights, levels, &input, Write::Add, &mut sum).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    [read(backend, &out), read(backend, &sum)]
}

fn feed_forward_parts_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let float = MatrixForm::Float(DType::Bf16);
    let cases = [
        (Activation::Silu, [MatrixForm::Tiled; 3], (72, 40), 3),
        (
            Activation::GeluTanh,
            [MatrixForm::Merged, MatrixForm::Tiled, MatrixForm::Rotated],
            (40, 64),
            7,
        ),
        (CLAMPED, [MatrixForm::Tiled, MatrixForm::Merged, MatrixForm::Merged], (33, 96), 1),
        (Activation::Silu, [Q8_0, Q8_0, Q6_K], (72, 40), 4),
        (CLAMPED, [Q6_K, MatrixForm::Merged, Q8_0], (40, 64), 1),
        (Activation::Silu, [float; 3], (48, 40), 6),
        (CLAMPED, [float, MatrixForm::Tiled, MatrixForm::Tiled], (32, 37), 20),
        (Activation::GeluTanh, [MatrixForm::Tiled, MatrixForm::Tiled, float], (32, 37), 2),
        (
            Activation::Relu2,
            [MatrixForm::Merged, MatrixForm::Merged, MatrixForm::Rotated],
            (40, 64),
            1,
        ),
        (Activation::Relu2, [Q8_0, Q8_0, Q6_K], (72, 40), 5),
        (Activation::Relu2, [float; 3], (48, 40), 2),
    ];
    for (activation, forms, sizes, count) in cases {
        let part = FeedForwardPart::new(activation, forms, sizes, 10);
        let (levels, x) = (mixed(count), noise(count * sizes.0, 8));
        let found = dense(&mut device, &part, &levels, &x);
        let expected = dense(&mut Cpu::new(1), &part, &levels, &x);
        for (index, added) in [1.0, 2.0].into_iter().enumerate() {
            let tolerances = part.tolerances(&levels, &x, added);
            let what = format!("{activation:?} {forms:?} {sizes:?} x {count}, {index}");
            let both = [&found[index][..], &expected[index]];
            expect_rows_close(&what, sizes.0, both, |row, col| tolerances[row * sizes.0 + col]);
        }
    }
}

const EXPERTS: usize = 6;
const PER_TOKEN: usize = 2;
const HIDDEN: usize = 64;

fn router<B: Backend>(backend: &mut B, experts: usize) -> Router<B> {
    let weights = FloatMatrix::from_f32(experts, HIDDEN, &noise(experts * HIDDEN, 5)).unwrap();
    let weights = MatrixWeights::Float(weights);
    Router {
        weights: backend.upload_matrix(&weights, ActivationMode::Float).unwrap(),
        num_experts_per_tok: PER_TOKEN,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    }
}

/// Computes a layer's experts for some rows, in two calls. Returns the routing and all rows.
fn experts<B: Backend>(
    backend: &mut B,
    parts: &[FeedForwardPart],
    routing: Option<&Routing>,
    x: &[f32],
) -> (Routing, Vec<f32>) {
    let rows = x.len() / HIDDEN;
    let input = buffer(backend, HIDDEN, x);
    let router = router(backend, parts.len());
    let all: Vec<_> = parts.iter().map(|part| Arc::new(part.upload(backend))).collect();
    let mut chosen = backend.routing(rows, PER_TOKEN).unwrap();
    let mut out = buffer(backend, HIDDEN, &vec![7.0; rows * PER_TOKEN * HIDDEN]);
    let mut encoder = backend.encoder();
    encoder.route(&router, &input, &mut chosen).unwrap();
    let own = block_on(encoder.read_routing(&chosen)).unwrap();
    let routing = routing.unwrap_or(&own);
    let uses: Vec<Vec<ExpertUse>> =
        (0..parts.len() as u32).map(|expert| uses(routing, expert)).collect();
    let pinned: Vec<_> = (0u32..)
        .zip(all.iter().zip(&uses))
        .map(|(expert, (weights, uses))| PinnedExpert {
            expert,
            weights: Arc::clone(weights),
            uses,
        })
        .collect();
    // Arrival order is not expert order.
    let (first, second) = pinned.split_at(parts.len() / 2);
    encoder.experts(second, &chosen, &input, &mut out).unwrap();
    encoder.experts(first, &chosen, &input, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    (routing.clone(), read(backend, &out))
}

/// Returns the uses of an expert, with a level for each.
fn uses(routing: &Routing, expert: u32) -> Vec<ExpertUse> {
    let places = (0u32..).zip(&routing.expert_ids).filter(|(_, id)| **id == expert);
    places
        .map(|(place, _)| ExpertUse {
            row: place / PER_TOKEN as u32,
            rank: place % PER_TOKEN as u32,
            level: Level::ALL[(place as usize * 7 + expert as usize) % 5],
        })
        .collect()
}

/// Compares the rows of a layer's experts with the CPU's.
fn check_experts(device: &mut impl Backend, activation: Activation, inner: usize, rows: usize) {
    let forms = |index: usize| match index % 3 {
        0 => [MatrixForm::Tiled; 3],
        1 => [MatrixForm::Merged, MatrixForm::Tiled, MatrixForm::Merged],
        _ => [MatrixForm::Merged; 3],
    };
    let part =
        |index| FeedForwardPart::new(activation, forms(index), (HIDDEN, inner), 40 * index as u32);
    let parts: Vec<FeedForwardPart> = (0..EXPERTS).map(part).collect();
    let x = noise(rows * HIDDEN, 12);
    let (routing, expected) = experts(&mut Cpu::new(1), &parts, None, &x);
    let (_, found) = experts(device, &parts, Some(&routing), &x);
    let mut tolerances = vec![0.0; expected.len()];
    for (expert, part) in (0u32..).zip(&parts) {
        let uses = uses(&routing, expert);
        let of_rows = uses.iter().flat_map(|used| &x[used.row as usize * HIDDEN..][..HIDDEN]);
        let (inputs, levels): (Vec<f32>, Vec<Level>) =
            (of_rows.copied().collect(), uses.iter().map(|used| used.level).collect());
        let of_expert = part.tolerances(&levels, &inputs, 1.0);
        for (used, row) in uses.iter().zip(of_expert.chunks(HIDDEN)) {
            let place = (used.row as usize * PER_TOKEN + used.rank as usize) * HIDDEN;
            tolerances[place..place + HIDDEN].copy_from_slice(row);
        }
    }
    let what = format!("{activation:?}, {rows} rows");
    let at = |row: usize, col: usize| tolerances[row * HIDDEN + col];
    expect_rows_close(&what, HIDDEN, [&found, &expected], at);
}

fn experts_of_mixed_levels_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    // One row leaves most experts without a use; 200 rows give each expert many uses at all levels.
    for rows in [1, 3, 200] {
        check_experts(&mut device, Activation::Silu, 40, rows);
        check_experts(&mut device, CLAMPED, 64, rows);
        check_experts(&mut device, Activation::Relu2, 40, rows);
    }
}

/// The device's lookup of experts gives the same bits as the host's.
fn experts_that_the_device_finds_are_those_that_the_host_names<D: OperationsDevice>() {
    let mut device = D::device();
    // Gate and up of several types of scaled integers, as in mixed files.
    for forms in [[MatrixForm::Merged; 3], [Q4_K, Q5_K, Q6_K], [Q8_0, Q8_0, MatrixForm::Tiled]] {
        finds_as_the_host_names(&mut device, Activation::Silu, forms);
    }
    finds_as_the_host_names(&mut device, Activation::Relu2, [MatrixForm::Merged; 3]);
}

fn finds_as_the_host_names(
    device: &mut impl Backend,
    activation: Activation,
    forms: [MatrixForm; 3],
) {
    let part = |index| FeedForwardPart::new(activation, forms, (HIDDEN, 40), 40 * index);
    let parts: Vec<FeedForwardPart> = (0..EXPERTS as u32).map(part).collect();
    let all: Vec<_> = parts.iter().map(|part| Arc::new(part.upload(device))).collect();
    let table = device.expert_table(&all).unwrap().unwrap();
    let router = router(device, EXPERTS);
    for rows in [1, 4, 9] {
        let (x, levels) = (noise(rows * HIDDEN, 12), mixed(rows));
        let input = buffer(device, HIDDEN, &x);
        let mut chosen = device.routing(rows, PER_TOKEN).unwrap();
        let mut outs =
            [1.0, 2.0].map(|value| buffer(device, HIDDEN, &vec![value; rows * PER_TOKEN * HIDDEN]));
        let mut encoder = device.encoder();
        encoder.route(&router, &input, &mut chosen).unwrap();
        table.routed_experts(&mut encoder, &levels, &chosen, &input, &mut outs[0]).unwrap();
        let routing = block_on(encoder.read_routing(&chosen)).unwrap();
        let uses: Vec<Vec<ExpertUse>> = (0..EXPERTS as u32)
            .map(|expert| {
                let uses = uses(&routing, expert).into_iter();
                uses.map(|used| ExpertUse { level: levels[used.row as usize], ..used }).collect()
            })
            .collect();
        let pinned: Vec<_> = (0u32..)
            .zip(all.iter().zip(&uses))
            .map(|(expert, (weights, uses))| PinnedExpert {
                expert,
                weights: Arc::clone(weights),
                uses,
            })
            .collect();
        encoder.experts(&pinned, &chosen, &input, &mut outs[1]).unwrap();
        encoder.flush().unwrap();
        drop(encoder);
        let [found, expected] = outs.each_ref().map(|out| read(device, out));
        assert_eq!(found, expected, "{forms:?}, {rows} rows");
    }
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        feed_forward_parts_are_those_of_the_cpu::<D>,
        experts_of_mixed_levels_are_those_of_the_cpu::<D>,
        experts_that_the_device_finds_are_those_that_the_host_names::<D>,
    ]
}

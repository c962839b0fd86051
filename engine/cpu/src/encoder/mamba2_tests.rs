//! Mamba-2 on all kernel sets and thread counts against the scalar reference, the reference against the
//! definition, and a prompt in chunks against the whole prompt.

use std::sync::Arc;

use nestling_import::Mamba2Config;

use super::delta_tests::{Rows, step_rows};
use super::tests::noise;
use super::*;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::EncoderExt;
use nestling_core::driver::block_on;
use nestling_core::recurrent::{StateId, StateShape};

const PLAIN: Mamba2Config = Mamba2Config {
    num_heads: 6,
    head_dim: 85,
    n_groups: 2,
    state_size: 24,
    conv_kernel: 4,
    conv_bias: true,
    proj_bias: false,
    norm_eps: 1e-5,
};

/// Test shapes: inputs of one head fill four vectors, another one and a part of one; in the second shape, they
/// do not fill a vector, each head has its own B and C, and the convolution sees more rows than a sequence has.
const SHAPES: [Mamba2Config; 2] = [
    PLAIN,
    Mamba2Config {
        num_heads: 3,
        head_dim: 7,
        n_groups: 3,
        state_size: 5,
        conv_kernel: 12,
        conv_bias: false,
        ..PLAIN
    },
];

/// Vectors of a layer, by [`noise`].
struct Weights {
    conv: Vec<f32>,
    bias: Vec<f32>,
    rate: Vec<f32>,
    time_bias: Vec<f32>,
    skip: Vec<f32>,
    norm: Vec<f32>,
}

impl Weights {
    fn new(shape: &Mamba2Config) -> Self {
        Self {
            conv: noise(shape.conv_kernel * shape.channels(), 1),
            bias: noise(shape.channels(), 2),
            rate: noise(shape.num_heads, 3).iter().map(|x| -x.abs()).collect(),
            time_bias: noise(shape.num_heads, 4),
            skip: noise(shape.num_heads, 5),
            norm: noise(shape.inner(), 6),
        }
    }
}

struct Layer<B: Backend> {
    backend: B,
    mamba2: Mamba2<B>,
    states: B::StatePool,
}

impl<B: Backend> Layer<B> {
    fn new(mut backend: B, shape: Mamba2Config) -> Self {
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let weights = Weights::new(&shape);
        let mut floats = |values: &[f32]| backend.upload_floats(values).unwrap();
        let mamba2 = Mamba2 {
            shape,
            conv: floats(&weights.conv),
            bias: shape.conv_bias.then(|| floats(&weights.bias)),
            rate: floats(&weights.rate),
            time_bias: floats(&weights.time_bias),
            skip: floats(&weights.skip),
            norm: floats(&weights.norm),
        };
        Self { backend, mamba2, states }
    }

    /// Returns the output of a step. The input depends on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.mamba2.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let mut projected = self.backend.buffer(rows.len(), cols)?;
        let mut out = self.backend.buffer(rows.len(), self.mamba2.shape.inner())?;
        let mut encoder = self.backend.encoder();
        encoder.write(&x, &mut projected)?;
        encoder.mamba2(&self.mamba2, &rows, &projected, &mut self.states, &mut out)?;
        block_on(encoder.read(&out))
    }

    fn state(&mut self, state: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.backend.read_state(&self.states, StateId(state), &mut bytes).unwrap();
        bytes
    }
}

/// Runs two sequences side by side, one of which saves checkpoints, and continues both. A third sequence
/// resumes from a checkpoint.
fn story<B: Backend>(backend: B, shape: Mamba2Config) -> (Vec<f32>, Vec<Vec<u8>>) {
    let mut layer = Layer::new(backend, shape);
    let first = [Rows::new(0, 9, None, &[(3, 3), (4, 0), (9, 1)]), Rows::in_place(2, 0, 1)];
    let mut out = layer.step(&first, &[5, 6]).unwrap();
    let second = [Rows::in_place(2, 1, 2), Rows::new(9, 1, Some(1), &[(10, 3)])];
    out.extend(layer.step(&second, &[6, 5]).unwrap());
    out.extend(layer.step(&[Rows::new(4, 6, Some(0), &[(10, 4)])], &[5]).unwrap());
    assert_eq!(layer.state(3), layer.state(4), "the same tokens from a checkpoint on");
    (out, (0..5).map(|state| layer.state(state)).collect())
}

#[test]
fn every_set_and_thread_count_has_the_bits_of_the_reference() {
    for shape in SHAPES {
        let (wanted, states) = story(Reference, shape);
        assert!(wanted.iter().all(|x| x.is_finite()) && wanted.iter().any(|x| x.abs() > 1e-3));
        for kernels in Kernels::available() {
            for threads in [1, 3] {
                let cpu = Cpu::with(Arc::new(ThreadPool::new(threads)), kernels);
                let found = story(cpu, shape);
                let name = format!("{}, {threads} threads, {shape:?}", kernels.name());
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found.0), bits(&wanted), "{name}");
                assert!(found.1 == states, "states, {name}");
            }
        }
    }
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Compares the reference with the sum that a state stands for, in f64: each token's output is the sum over all
/// tokens up to it of x times its step, B · C and the decays between them.
#[test]
fn the_reference_is_the_sum_over_all_tokens_before() {
    const ROWS: usize = 20;
    for shape in SHAPES {
        let found = Layer::new(Reference, shape).step(&[Rows::in_place(0, 0, ROWS)], &[1]).unwrap();
        let rows: Vec<Vec<f32>> =
            (0..ROWS as u32).map(|row| noise(shape.inputs(), 1009 + row)).collect();
        let weights = Weights::new(&shape);
        let (inner, channels, states) = (shape.inner(), shape.channels(), shape.state_size);
        let convolved = |row: usize, channel: usize| {
            let taps = (0..shape.conv_kernel)
                .filter_map(|tap| Some((tap, (row + tap + 1).checked_sub(shape.conv_kernel)?)));
            let sum: f64 = taps
                .map(|(tap, at)| {
                    f64::from(weights.conv[tap * channels + channel])
                        * f64::from(rows[at][inner + channel])
                })
                .sum();
            let bias = if shape.conv_bias { f64::from(weights.bias[channel]) } else { 0.0 };
            silu(sum + bias)
        };
        let mixed: Vec<Vec<f64>> =
            (0..ROWS).map(|row| (0..channels).map(|c| convolved(row, c)).collect()).collect();
        let step = |row: usize, head: usize| {
            let time = f64::from(rows[row][inner + channels + head]);
            (time + f64::from(weights.time_bias[head])).exp().ln_1p()
        };
        for row in 0..ROWS {
            let gated: Vec<f64> = (0..inner)
                .map(|at| {
                    let head = at / shape.head_dim;
                    let b = inner + head * shape.n_groups / shape.num_heads * states;
                    let c = b + shape.groups_dim();
                    let rate = f64::from(weights.rate[head]);
                    let seen = (0..=row).map(|from| {
                        let elapsed: f64 = (from + 1..=row).map(|row| step(row, head)).sum();
                        let product: f64 =
                            (0..states).map(|n| mixed[from][b + n] * mixed[row][c + n]).sum();
                        (rate * elapsed).exp() * step(from, head) * product * mixed[from][at]
                    });
                    let y = seen.sum::<f64>() + f64::from(weights.skip[head]) * mixed[row][at];
                    y * silu(f64::from(rows[row][at]))
                })
                .collect();
            for (at, found) in found[row * inner..][..inner].iter().enumerate() {
                let group =
                    &gated[at / shape.norm_group() * shape.norm_group()..][..shape.norm_group()];
                let mean = group.iter().map(|x| x * x).sum::<f64>() / group.len() as f64;
                let exact = gated[at] / (mean + f64::from(shape.norm_eps)).sqrt()
                    * f64::from(weights.norm[at]);
                assert!((f64::from(*found) - exact).abs() < 2e-5, "{shape:?}: {found} {exact}");
            }
        }
    }
}

#[test]
fn a_prompt_in_pieces_is_the_prompt() {
    for shape in SHAPES {
        let mut whole = Layer::new(Cpu::new(2), shape);
        let wanted = whole.step(&[Rows::in_place(0, 0, 40)], &[1]).unwrap();
        for piece in [1, 2, 3, 7, 39] {
            let mut layer = Layer::new(Cpu::new(2), shape);
            let mut found = Vec::new();
            for first in (0..40).step_by(piece) {
                let rows = Rows::in_place(0, first, piece.min(40 - first));
                found.extend(layer.step(&[rows], &[1]).unwrap());
            }
            assert!(found == wanted, "pieces of {piece}, {shape:?}");
            assert!(layer.state(0) == whole.state(0), "state, pieces of {piece}, {shape:?}");
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    fn refuse<B: Backend>(mut layer: Layer<B>) {
        layer.step(&[Rows::in_place(0, 0, 3)], &[1]).unwrap();
        let before = layer.state(0);
        for (name, rows) in [
            ("no state to write", Rows::new(0, 2, None, &[])),
            ("none before", Rows::new(3, 1, None, &[(4, 1)])),
            ("never written", Rows::new(3, 1, Some(4), &[(4, 1)])),
            ("not in the pool", Rows::new(0, 1, None, &[(1, 5)])),
        ] {
            let refused = layer.step(&[rows], &[1]);
            assert!(matches!(refused, Err(EngineError::Mismatch { .. })), "{name}");
        }
        layer.mamba2.shape.state_size += 1;
        let refused = layer.step(&[Rows::in_place(0, 3, 1)], &[1]);
        assert!(matches!(refused, Err(EngineError::Shape { operation: "mamba2", .. })));
        layer.mamba2.shape.state_size -= 1;
        assert_eq!(layer.state(0), before);
    }
    refuse(Layer::new(Cpu::new(1), SHAPES[0]));
    refuse(Layer::new(Reference, SHAPES[0]));
    let mut long = Layer::new(Cpu::new(1), Mamba2Config { conv_kernel: 17, ..PLAIN });
    let refused = long.step(&[Rows::in_place(0, 0, 1)], &[1]);
    assert!(matches!(
        refused,
        Err(EngineError::Limit { what: "mamba_d_conv", limit: 16, found: 17 })
    ));
}

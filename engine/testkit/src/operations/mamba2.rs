//! Mamba-2: rows that pass states, whole and in chunks, from one state to another.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, Encoder, Mamba2};
use nestling_core::recurrent::{StateId, StateShape};
use nestling_cpu::Cpu;
use nestling_import::Mamba2Config;

use super::delta_net::{Rows, step_rows};
use crate::values::{EPSILON, buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

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

/// Heads that fill blocks of columns with a remainder, states with more rows than most workgroups hold, heads with B and C of
/// their own, and a convolution over a single row.
pub const SHAPES: [Mamba2Config; 4] = [
    PLAIN,
    Mamba2Config { num_heads: 3, head_dim: 7, n_groups: 3, state_size: 5, conv_kernel: 3, ..PLAIN },
    Mamba2Config { head_dim: 16, n_groups: 1, conv_kernel: 1, conv_bias: false, ..PLAIN },
    Mamba2Config { num_heads: 1, head_dim: 5, n_groups: 1, state_size: 1024, ..PLAIN },
];

/// Maximum time step of the tests: inputs and biases are below 1.
const STEP_MAX: f32 = 2.2;

/// A layer with the states of its sequences.
struct Layer<'a, B: Backend> {
    backend: &'a mut B,
    mamba2: Mamba2<B>,
    states: B::StatePool,
}

impl<'a, B: Backend> Layer<'a, B> {
    fn new(backend: &'a mut B, shape: Mamba2Config) -> Self {
        let heads = shape.num_heads;
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let mut floats = |values: &[f32]| backend.upload_floats(values).unwrap();
        let mamba2 = Mamba2 {
            shape,
            conv: floats(&noise(shape.conv_kernel * shape.channels(), 1)),
            bias: shape.conv_bias.then(|| floats(&noise(shape.channels(), 2))),
            rate: floats(&noise(heads, 3).iter().map(|x| -x.abs()).collect::<Vec<_>>()),
            time_bias: floats(&noise(heads, 4)),
            skip: floats(&noise(heads, 5)),
            norm: floats(&noise(shape.inner(), 6)),
        };
        Self { backend, mamba2, states }
    }

    /// Returns the outputs of a step. Inputs depend on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.mamba2.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let projected = buffer(self.backend, cols, &x);
        let mut out = self.backend.buffer(rows.len(), self.mamba2.shape.inner())?;
        let mut encoder = self.backend.encoder();
        encoder.mamba2(&self.mamba2, &rows, &projected, &mut self.states, &mut out)?;
        encoder.flush()?;
        drop(encoder);
        Ok(read(self.backend, &out))
    }

    fn state(&mut self, state: u32) -> Vec<f32> {
        let mut bytes = Vec::new();
        self.backend.read_state(&self.states, StateId(state), &mut bytes).unwrap();
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }
}

/// Runs two sequences together, one of which leaves two checkpoints, then both a little further. A third
/// continues from a checkpoint. Returns the outputs and the states.
pub fn story<B: Backend>(backend: &mut B, shape: Mamba2Config) -> [Vec<f32>; 2] {
    let mut layer = Layer::new(backend, shape);
    let first = [Rows::new(0, 9, None, &[(2, 3), (4, 0), (9, 1)]), Rows::in_place(2, 0, 2)];
    let mut out = layer.step(&first, &[5, 6]).unwrap();
    let second = [Rows::in_place(2, 2, 1), Rows::new(9, 1, Some(1), &[(10, 3)])];
    out.extend(layer.step(&second, &[6, 5]).unwrap());
    out.extend(layer.step(&[Rows::new(4, 6, Some(0), &[(10, 4)])], &[5]).unwrap());
    assert!(layer.state(3) == layer.state(4), "{shape:?}: the same tokens from a checkpoint on");
    [out, (0..5).flat_map(|state| layer.state(state)).collect()]
}

fn shapes<D: OperationsDevice>() -> impl Iterator<Item = Mamba2Config> {
    SHAPES.into_iter().filter(|shape| shape.state_size <= D::KEY_DIM_MAX)
}

fn mamba2_is_that_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for shape in shapes::<D>() {
        let found = story(&mut device, shape);
        let expected = story(&mut Cpu::new(1), shape);
        // Ten tokens, each with the roundings of two convolved channels and about forty of SiLU, step and decay, in
        // two orders.
        let taps = shape.conv_kernel as f32;
        let relative = 2.0 * 10.0 * (2.0 * taps + 40.0) * EPSILON;
        // Channels are below the number of taps and 1. Updates add up while the decay is 1.
        let channel = taps + 1.0;
        let state = 10.0 * STEP_MAX * channel * channel;
        expect_close(&format!("states, {shape:?}"), &found[1], &expected[1], |_| state * relative);
        // An output is a sum whose terms cancel, on average to the root of their number; the norm amplifies the rest.
        let states = shape.state_size as f32;
        let cancelled = 4.0 * states.sqrt();
        let relative = relative + 2.0 * states * EPSILON;
        expect_close(&format!("{shape:?}"), &found[0], &expected[0], |_| cancelled * relative);
    }
}

fn a_prompt_in_pieces_is_the_prompt<D: OperationsDevice>() {
    let mut device = D::device();
    let mut whole = Layer::new(&mut device, SHAPES[0]);
    let wanted = whole.step(&[Rows::in_place(0, 0, 70)], &[1]).unwrap();
    let state = whole.state(0);
    drop(whole);
    for piece in [1, 2, 7, 69] {
        let mut layer = Layer::new(&mut device, SHAPES[0]);
        let mut found = Vec::new();
        for first in (0..70).step_by(piece) {
            let rows = Rows::in_place(0, first, piece.min(70 - first));
            found.extend(layer.step(&[rows], &[1]).unwrap());
        }
        assert!(found == wanted, "pieces of {piece}");
        assert!(layer.state(0) == state, "state, pieces of {piece}");
    }
}

fn slow_devices_pass_fewer_rows_at_once_and_compute_the_same_bits<D: OperationsDevice>() {
    let mut device = D::device();
    // A row passes at most 8,192 columns of 24 elements, with two multiplications each.
    let row = 2 * 8192 * 24;
    for rate in [1, 4 * 2 * row] {
        let mut slow = D::with_work_rate(&device, rate);
        for shape in shapes::<D>() {
            assert!(story(&mut slow, shape) == story(&mut device, shape), "{shape:?} at {rate}");
        }
    }
    let at = |rate| {
        let mut device = D::with_work_rate(&device, rate);
        let mut layer = Layer::new(&mut device, SHAPES[0]);
        layer.step(&[Rows::in_place(0, 0, 9)], &[1]).unwrap();
        drop(layer);
        device.take_counters().dispatches
    };
    // Two launches for each chunk, and one for all.
    assert_eq!(at(1 << 45), 3);
    assert_eq!(at(4 * 2 * row), 11);
    assert_eq!(at(1), 19);
}

fn states_that_do_not_fit_are_errors<D: OperationsDevice>() {
    let mut device = D::device();
    let mut layer = Layer::new(&mut device, SHAPES[1]);
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
    assert!(layer.state(0) == before);
    let mut long = Layer::new(&mut device, Mamba2Config { conv_kernel: 17, ..PLAIN });
    let refused = long.step(&[Rows::in_place(0, 0, 1)], &[1]);
    assert!(matches!(refused, Err(EngineError::Limit { limit: 16, found: 17, .. })));
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        mamba2_is_that_of_the_cpu::<D>,
        a_prompt_in_pieces_is_the_prompt::<D>,
        slow_devices_pass_fewer_rows_at_once_and_compute_the_same_bits::<D>,
        states_that_do_not_fit_are_errors::<D>,
    ]
}

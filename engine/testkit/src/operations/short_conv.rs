//! Gated short convolution: rows that pass states, whole and in chunks, from one state to another.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, Encoder, ShortConv};
use nestling_core::recurrent::{StateId, StateShape};
use nestling_cpu::Cpu;
use nestling_import::ShortConvConfig;

use super::delta_net::{Rows, step_rows};
use crate::values::{EPSILON, buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

/// Channels that fill workgroups with a remainder, with and without biases, and windows longer than a run.
pub const SHAPES: [ShortConvConfig; 3] = [
    ShortConvConfig { channels: 170, taps: 3, bias: false },
    ShortConvConfig { channels: 64, taps: 2, bias: true },
    ShortConvConfig { channels: 7, taps: 16, bias: true },
];

/// A layer with the states of its sequences.
struct Layer<'a, B: Backend> {
    backend: &'a mut B,
    conv: ShortConv<B>,
    states: B::StatePool,
}

impl<'a, B: Backend> Layer<'a, B> {
    fn new(backend: &'a mut B, shape: ShortConvConfig) -> Self {
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let taps = backend.upload_floats(&noise(shape.taps * shape.channels, 1)).unwrap();
        let bias = shape.bias.then(|| backend.upload_floats(&noise(shape.channels, 2)).unwrap());
        Self { backend, conv: ShortConv { shape, taps, bias }, states }
    }

    /// Returns the outputs of a step. Inputs depend on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.conv.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let projected = buffer(self.backend, cols, &x);
        let mut out = self.backend.buffer(rows.len(), self.conv.shape.channels)?;
        let mut encoder = self.backend.encoder();
        encoder.short_conv(&self.conv, &rows, &projected, &mut self.states, &mut out)?;
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
pub fn story<B: Backend>(backend: &mut B, shape: ShortConvConfig) -> [Vec<f32>; 2] {
    let mut layer = Layer::new(backend, shape);
    let first = [Rows::new(0, 9, None, &[(2, 3), (4, 0), (9, 1)]), Rows::in_place(2, 0, 2)];
    let mut out = layer.step(&first, &[5, 6]).unwrap();
    let second = [Rows::in_place(2, 2, 1), Rows::new(9, 1, Some(1), &[(10, 3)])];
    out.extend(layer.step(&second, &[6, 5]).unwrap());
    out.extend(layer.step(&[Rows::new(4, 6, Some(0), &[(10, 4)])], &[5]).unwrap());
    assert!(layer.state(3) == layer.state(4), "{shape:?}: the same tokens from a checkpoint on");
    [out, (0..5).flat_map(|state| layer.state(state)).collect()]
}

fn short_convs_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for shape in SHAPES {
        let found = story(&mut device, shape);
        let expected = story(&mut Cpu::new(1), shape);
        // States are single products.
        expect_close(&format!("states, {shape:?}"), &found[1], &expected[1], |_| EPSILON);
        // Values of noise are below 1, so that a sum is at most the number of its terms. Each product and each
        // sum may be rounded once more than on the CPU.
        let terms = (shape.taps + 1) as f32;
        let most = 2.0 * terms * terms * EPSILON;
        expect_close(&format!("{shape:?}"), &found[0], &expected[0], |_| most);
    }
}

fn a_prompt_in_pieces_is_the_prompt<D: OperationsDevice>() {
    let mut device = D::device();
    for shape in SHAPES {
        let mut whole = Layer::new(&mut device, shape);
        let wanted = whole.step(&[Rows::in_place(0, 0, 70)], &[1]).unwrap();
        let state = whole.state(0);
        drop(whole);
        for piece in [1, 7, 69] {
            let mut layer = Layer::new(&mut device, shape);
            let mut found = Vec::new();
            for first in (0..70).step_by(piece) {
                let rows = Rows::in_place(0, first, piece.min(70 - first));
                found.extend(layer.step(&[rows], &[1]).unwrap());
            }
            assert!(found == wanted, "{shape:?}, pieces of {piece}");
            assert!(layer.state(0) == state, "{shape:?}, state, pieces of {piece}");
        }
    }
}

fn slow_devices_pass_fewer_rows_at_once_and_compute_the_same_bits<D: OperationsDevice>() {
    let mut device = D::device();
    for shape in SHAPES {
        // A row passes at most 8,192 channels, with two products besides the taps.
        let row = (shape.taps as u64 + 2) * 8192;
        for rate in [1, 4 * 2 * row] {
            let mut slow = D::with_work_rate(&device, rate);
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
    assert_eq!(at(1 << 45), 1);
    assert_eq!(at(1), 9);
}

fn states_that_do_not_fit_are_errors<D: OperationsDevice>() {
    let mut device = D::device();
    let mut layer = Layer::new(&mut device, SHAPES[0]);
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
    let mut long = Layer::new(&mut device, ShortConvConfig { taps: 17, ..SHAPES[0] });
    let refused = long.step(&[Rows::in_place(0, 0, 1)], &[1]);
    assert!(matches!(refused, Err(EngineError::Limit { limit: 16, found: 17, .. })));
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        short_convs_are_those_of_the_cpu::<D>,
        a_prompt_in_pieces_is_the_prompt::<D>,
        slow_devices_pass_fewer_rows_at_once_and_compute_the_same_bits::<D>,
        states_that_do_not_fit_are_errors::<D>,
    ]
}

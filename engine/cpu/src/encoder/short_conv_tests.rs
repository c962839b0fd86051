//! Gated short convolutions on all kernel sets and thread counts against the scalar reference, and a prompt
//! in chunks against the whole prompt.

use std::sync::Arc;

use nestling_import::ShortConvConfig;

use super::delta_tests::{Rows, step_rows};
use super::tests::noise;
use super::*;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::EncoderExt;
use nestling_core::driver::block_on;
use nestling_core::recurrent::{StateId, StateShape};

/// Test shapes: channels that fill vectors with a remainder, with and without biases; two, three and more
/// taps than a sequence has rows.
const SHAPES: [ShortConvConfig; 3] = [
    ShortConvConfig { channels: 85, taps: 3, bias: false },
    ShortConvConfig { channels: 16, taps: 2, bias: true },
    ShortConvConfig { channels: 7, taps: 12, bias: true },
];

struct Layer<B: Backend> {
    backend: B,
    conv: ShortConv<B>,
    states: B::StatePool,
}

impl<B: Backend> Layer<B> {
    fn new(mut backend: B, shape: ShortConvConfig) -> Self {
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let taps = backend.upload_floats(&noise(shape.taps * shape.channels, 1)).unwrap();
        let bias = shape.bias.then(|| backend.upload_floats(&noise(shape.channels, 2)).unwrap());
        Self { backend, conv: ShortConv { shape, taps, bias }, states }
    }

    /// Returns the output of a step. The input depends on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.conv.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let mut projected = self.backend.buffer(rows.len(), cols)?;
        let mut out = self.backend.buffer(rows.len(), self.conv.shape.channels)?;
        let mut encoder = self.backend.encoder();
        encoder.write(&x, &mut projected)?;
        encoder.short_conv(&self.conv, &rows, &projected, &mut self.states, &mut out)?;
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
fn story<B: Backend>(backend: B, shape: ShortConvConfig) -> (Vec<f32>, Vec<Vec<u8>>) {
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

/// Compares the reference with the definition, computed in f64 over the whole sequence.
#[test]
fn the_reference_is_the_convolution_of_the_gated_inputs() {
    for shape in SHAPES {
        let ShortConvConfig { channels, taps, bias } = shape;
        let found = Layer::new(Reference, shape).step(&[Rows::in_place(0, 0, 20)], &[1]).unwrap();
        let rows: Vec<Vec<f32>> = (0..20).map(|row| noise(3 * channels, 1009 + row)).collect();
        let [weights, biases] = [noise(taps * channels, 1), noise(channels, 2)];
        for (index, found) in found.iter().enumerate() {
            let (row, channel) = (index / channels, index % channels);
            let gated =
                |row: &Vec<f32>| f64::from(row[channel]) * f64::from(row[2 * channels + channel]);
            let seen = (0..taps).filter_map(|tap| Some((tap, (row + tap + 1).checked_sub(taps)?)));
            let sum: f64 = seen
                .map(|(tap, row)| f64::from(weights[tap * channels + channel]) * gated(&rows[row]))
                .sum();
            let sum = if bias { sum + f64::from(biases[channel]) } else { sum };
            let exact = f64::from(rows[row][channels + channel]) * sum;
            assert!((f64::from(*found) - exact).abs() < 1e-5, "{shape:?}: {found} {exact}");
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
        layer.conv.shape.taps += 1;
        let refused = layer.step(&[Rows::in_place(0, 3, 1)], &[1]);
        assert!(matches!(refused, Err(EngineError::Shape { operation: "short_conv", .. })));
        layer.conv.shape.taps -= 1;
        assert_eq!(layer.state(0), before);
    }
    refuse(Layer::new(Cpu::new(1), SHAPES[0]));
    refuse(Layer::new(Reference, SHAPES[0]));
    let mut long = Layer::new(Cpu::new(1), ShortConvConfig { taps: 17, ..SHAPES[0] });
    let refused = long.step(&[Rows::in_place(0, 0, 1)], &[1]);
    assert!(matches!(
        refused,
        Err(EngineError::Limit { what: "conv_L_cache", limit: 16, found: 17 })
    ));
}

//! Gated DeltaNet on all kernel sets and thread counts against the scalar reference, and a prompt in chunks
//! against the whole prompt.

use std::sync::Arc;

use nestling_formats::Level;
use nestling_import::{DeltaNetConfig, GateFunction};

use super::tests::noise;
use super::*;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::{DeltaNet, EncoderExt};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::driver::block_on;
use nestling_core::recurrent::{StateId, StateShape, StateTrack, StateWrite};

/// Test shapes: values of one head fill four vectors, another one and a part of one; in the other shape, they
/// do not fill a vector.
const SHAPES: [DeltaNetConfig; 2] = [
    DeltaNetConfig {
        num_key_heads: 2,
        num_value_heads: 6,
        key_head_dim: 24,
        value_head_dim: 85,
        conv_kernel_dim: 4,
    },
    DeltaNetConfig {
        num_key_heads: 3,
        num_value_heads: 3,
        key_head_dim: 5,
        value_head_dim: 7,
        conv_kernel_dim: 3,
    },
];

/// Rows of one sequence: first position, count and states.
pub(super) struct Rows {
    pub first: usize,
    pub count: usize,
    states: StateTrack,
}

impl Rows {
    pub fn new(first: usize, count: usize, from: Option<u32>, to: &[(usize, u32)]) -> Self {
        let to = to.iter().map(|&(length, state)| StateWrite { length, state: StateId(state) });
        Self { first, count, states: StateTrack { from: from.map(StateId), to: to.collect() } }
    }

    pub fn in_place(state: u32, first: usize, count: usize) -> Self {
        Self { first, count, states: StateTrack::in_place(StateId(state), first, first + count) }
    }
}

pub(super) fn step_rows(sequences: &[Rows]) -> StepRows {
    let mut batch = Batch::default();
    for (sequence, rows) in (0u32..).zip(sequences) {
        batch.sequences.push(SequenceRef { states: rows.states.clone(), ..SequenceRef::default() });
        batch.rows.extend((rows.first..rows.first + rows.count).map(|position| Row {
            token: 0,
            position: position as u32,
            sequence,
            wants_logits: true,
            levels: LevelPolicy::Fixed(Level::L8),
        }));
    }
    StepRows::of_batch(&batch)
}

struct Layer<B: Backend> {
    backend: B,
    net: DeltaNet<B>,
    states: B::StatePool,
}

impl<B: Backend> Layer<B> {
    fn new(mut backend: B, shape: DeltaNetConfig) -> Self {
        let heads = shape.num_value_heads;
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let mut floats = |values: &[f32]| backend.upload_floats(values).unwrap();
        let unit = 1.0 / shape.key_head_dim as f32;
        let net = DeltaNet {
            shape,
            conv: floats(&noise(shape.conv_kernel_dim * shape.channels(), 1)),
            query_norm: floats(&vec![unit; shape.key_head_dim]),
            key_norm: floats(&vec![unit.sqrt(); shape.key_head_dim]),
            unit_eps: 1e-6 * unit,
            rate: floats(&noise(heads, 2).iter().map(|x| -x.abs()).collect::<Vec<_>>()),
            time_bias: floats(&noise(heads, 3)),
            norm: floats(&noise(shape.value_head_dim, 4)),
            eps: 1e-6,
        };
        Self { backend, net, states }
    }

    /// Returns the output of a step. The input depends on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.net.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let mut projected = self.backend.buffer(rows.len(), cols)?;
        let mut out = self.backend.buffer(rows.len(), self.net.shape.value_dim())?;
        let mut encoder = self.backend.encoder();
        encoder.write(&x, &mut projected)?;
        encoder.delta_net(&self.net, &rows, &projected, &mut self.states, &mut out)?;
        block_on(encoder.read(&out))
    }

    fn state(&mut self, state: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.backend.read_state(&self.states, StateId(state), &mut bytes).unwrap();
        bytes
    }
}

/// Runs two sequences side by side, one of which saves a checkpoint, and continues both. A third sequence
/// resumes from the checkpoint.
fn story<B: Backend>(backend: B, shape: DeltaNetConfig) -> (Vec<f32>, Vec<Vec<u8>>) {
    let mut layer = Layer::new(backend, shape);
    let first = [Rows::new(0, 9, None, &[(4, 0), (9, 1)]), Rows::in_place(2, 0, 2)];
    let mut out = layer.step(&first, &[5, 6]).unwrap();
    let second = [Rows::in_place(2, 2, 1), Rows::new(9, 1, Some(1), &[(10, 3)])];
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
                let name = format!("{}, {threads} threads", kernels.name());
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&found.0), bits(&wanted), "{name}");
                assert!(found.1 == states, "states, {name}");
            }
        }
    }
}

#[test]
fn a_prompt_in_pieces_is_the_prompt() {
    let shape = SHAPES[0];
    let mut whole = Layer::new(Cpu::new(2), shape);
    let wanted = whole.step(&[Rows::in_place(0, 0, 40)], &[1]).unwrap();
    for piece in [1, 2, 3, 7, 39] {
        let mut layer = Layer::new(Cpu::new(2), shape);
        let mut found = Vec::new();
        for first in (0..40).step_by(piece) {
            let rows = Rows::in_place(0, first, piece.min(40 - first));
            found.extend(layer.step(&[rows], &[1]).unwrap());
        }
        assert!(found == wanted, "pieces of {piece}");
        assert!(layer.state(0) == whole.state(0), "state, pieces of {piece}");
    }
}

#[test]
fn states_that_do_not_fit_the_rows_are_refused() {
    fn refuse<B: Backend>(mut layer: Layer<B>) {
        layer.step(&[Rows::in_place(0, 0, 3)], &[1]).unwrap();
        let before = layer.state(0);
        let mut split = step_rows(&[Rows::in_place(1, 0, 1), Rows::in_place(2, 0, 1)]);
        split.sequences = vec![0, 1, 0];
        split.positions = vec![0, 0, 1];
        let cases: [(&str, Vec<Rows>); 9] = [
            ("no state to write", vec![Rows::new(0, 2, None, &[])]),
            ("too short", vec![Rows::new(0, 2, None, &[(1, 1)])]),
            ("too long", vec![Rows::new(0, 2, None, &[(3, 1)])]),
            ("descending", vec![Rows::new(0, 2, None, &[(2, 1), (1, 2)])]),
            ("none before", vec![Rows::new(3, 1, None, &[(4, 1)])]),
            ("one before the start", vec![Rows::new(0, 1, Some(0), &[(1, 1)])]),
            ("never written", vec![Rows::new(3, 1, Some(4), &[(4, 1)])]),
            ("not in the pool", vec![Rows::new(0, 1, None, &[(1, 5)])]),
            (
                "read by one, written by the other",
                vec![Rows::new(3, 1, Some(0), &[(4, 1)]), Rows::in_place(0, 3, 1)],
            ),
        ];
        for (name, sequences) in cases {
            let refused = layer.step(&sequences, &[1, 1]);
            assert!(matches!(refused, Err(EngineError::Mismatch { .. })), "{name}");
        }
        let mut out = Vec::new();
        assert!(nestling_core::batch::runs(&split, &mut out).is_err(), "rows apart");
        assert_eq!(layer.state(0), before);
    }
    refuse(Layer::new(Cpu::new(1), SHAPES[1]));
    refuse(Layer::new(Reference, SHAPES[1]));
}

/// Each gate multiplies `width` elements.
fn gated<B: Backend>(mut backend: B, function: GateFunction, width: usize) -> Vec<f32> {
    let mut gate = backend.buffer(3, 37).unwrap();
    let mut x = backend.buffer(3, 37 * width).unwrap();
    let mut encoder = backend.encoder();
    encoder.write(&noise(3 * 37, 1), &mut gate).unwrap();
    encoder.write(&noise(3 * 37 * width, 2), &mut x).unwrap();
    encoder.gate(function, &gate, &mut x).unwrap();
    block_on(encoder.read(&x)).unwrap()
}

#[test]
fn gates_multiply_by_their_function() {
    for (function, width) in [
        (GateFunction::Sigmoid, 1),
        (GateFunction::Sigmoid, 4),
        (GateFunction::Softplus, 1),
        (GateFunction::Softplus, 6),
    ] {
        let wanted = gated(Reference, function, width);
        let gates = noise(3 * 37, 1);
        for (index, (found, x)) in wanted.iter().zip(noise(3 * 37 * width, 2)).enumerate() {
            let gate = f64::from(gates[index / width]);
            let factor = match function {
                GateFunction::Sigmoid => 1.0 / (1.0 + (-gate).exp()),
                GateFunction::Softplus => gate.exp().ln_1p(),
            };
            let exact = f64::from(x) * factor;
            assert!((f64::from(*found) - exact).abs() < 1e-6, "{function:?}: {found} {exact}");
        }
        for kernels in Kernels::available() {
            let cpu = Cpu::with(Arc::new(ThreadPool::new(2)), kernels);
            assert_eq!(gated(cpu, function, width), wanted, "{function:?} {width}");
        }
    }
}

//! Gated DeltaNet: rows that pass states, whole and in chunks, from one state to another.

use nestling_core::EngineError;
use nestling_core::backend::{Backend, DeltaNet, Encoder};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::recurrent::{StateId, StateShape, StateTrack, StateWrite};
use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_import::DeltaNetConfig;

use crate::values::{EPSILON, buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

const fn shape(
    [num_key_heads, num_value_heads]: [usize; 2],
    [key_head_dim, value_head_dim]: [usize; 2],
    conv_kernel_dim: usize,
) -> DeltaNetConfig {
    DeltaNetConfig { num_key_heads, num_value_heads, key_head_dim, value_head_dim, conv_kernel_dim }
}

/// Values that fill blocks of columns with a remainder, states with more rows than most workgroups hold, and
/// a convolution over a single row.
pub const SHAPES: [DeltaNetConfig; 5] = [
    shape([2, 6], [24, 85], 4),
    shape([3, 3], [5, 7], 3),
    shape([1, 2], [1, 16], 1),
    shape([1, 3], [200, 33], 2),
    shape([1, 1], [1024, 5], 4),
];

/// Rows of one sequence: first position, count, and states.
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

/// A layer with the states of its sequences.
struct Layer<'a, B: Backend> {
    backend: &'a mut B,
    net: DeltaNet<B>,
    states: B::StatePool,
}

impl<'a, B: Backend> Layer<'a, B> {
    fn new(backend: &'a mut B, shape: DeltaNetConfig) -> Self {
        let heads = shape.num_value_heads;
        let states = StateShape { floats: shape.state_floats(), states: 5 };
        let states = backend.state_pool(&states).unwrap();
        let mut floats = |values: &[f32]| backend.upload_floats(values).unwrap();
        let unit = 1.0 / shape.key_head_dim as f32;
        let rates: Vec<f32> = noise(heads, 2).iter().map(|x| -x.abs()).collect();
        // Includes values beyond 20 on both sides of zero.
        let biases: Vec<f32> = noise(heads, 3).iter().map(|x| 30.0 * x).collect();
        let net = DeltaNet {
            shape,
            conv: floats(&noise(shape.conv_kernel_dim * shape.channels(), 1)),
            query_norm: floats(&vec![unit; shape.key_head_dim]),
            key_norm: floats(&vec![unit.sqrt(); shape.key_head_dim]),
            unit_eps: 1e-6 * unit,
            rate: floats(&rates),
            time_bias: floats(&biases),
            norm: floats(&noise(shape.value_head_dim, 4)),
            eps: 1e-6,
        };
        Self { backend, net, states }
    }

    /// Returns the outputs of a step. Inputs depend on a row's position and on `seeds`.
    fn step(&mut self, sequences: &[Rows], seeds: &[u32]) -> Result<Vec<f32>, EngineError> {
        let (rows, cols) = (step_rows(sequences), self.net.shape.inputs());
        let mut x = Vec::new();
        for (sequence, seed) in sequences.iter().zip(seeds) {
            for position in sequence.first..sequence.first + sequence.count {
                x.extend(noise(cols, seed * 1000 + position as u32 + 9));
            }
        }
        let projected = buffer(self.backend, cols, &x);
        let mut out = self.backend.buffer(rows.len(), self.net.shape.value_dim())?;
        let mut encoder = self.backend.encoder();
        encoder.delta_net(&self.net, &rows, &projected, &mut self.states, &mut out)?;
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
pub fn story<B: Backend>(backend: &mut B, shape: DeltaNetConfig) -> [Vec<f32>; 2] {
    let mut layer = Layer::new(backend, shape);
    let first = [Rows::new(0, 9, None, &[(2, 3), (4, 0), (9, 1)]), Rows::in_place(2, 0, 2)];
    let mut out = layer.step(&first, &[5, 6]).unwrap();
    let second = [Rows::in_place(2, 2, 1), Rows::new(9, 1, Some(1), &[(10, 3)])];
    out.extend(layer.step(&second, &[6, 5]).unwrap());
    out.extend(layer.step(&[Rows::new(4, 6, Some(0), &[(10, 4)])], &[5]).unwrap());
    assert!(layer.state(3) == layer.state(4), "{shape:?}: the same tokens from a checkpoint on");
    [out, (0..5).flat_map(|state| layer.state(state)).collect()]
}

fn delta_nets_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for shape in SHAPES.into_iter().filter(|shape| shape.key_head_dim <= D::KEY_DIM_MAX) {
        let found = story(&mut device, shape);
        let expected = story(&mut Cpu::new(1), shape);
        // Ten tokens, each with two sums of key_head_dim products and about thirty roundings of the
        // convolution, the factors and the norms, in two orders.
        let keys = shape.key_head_dim as f32;
        let relative = 2.0 * 10.0 * (2.0 * keys + 30.0) * EPSILON;
        // Keys have length 1. An update of a state is at most the values, below 4, plus the retrieved part,
        // and updates add up while the decay is 1.
        expect_close(&format!("states, {shape:?}"), &found[1], &expected[1], |_| 8.0 * relative);
        // A query's output is a sum whose terms cancel, on average to the root of their number; the norm
        // amplifies the rest.
        let cancelled = 4.0 * keys.sqrt();
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
    // A row passes at most 8,192 columns of 24 elements, with three multiplications each.
    let row = 3 * 8192 * 24;
    for rate in [1, 4 * 2 * row] {
        let mut slow = D::with_work_rate(&device, rate);
        for shape in SHAPES.into_iter().filter(|shape| shape.key_head_dim <= D::KEY_DIM_MAX) {
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
    assert_eq!(at(4 * 9 * row), 3);
    assert_eq!(at(4 * 9 * row - 1), 5);
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
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        delta_nets_are_those_of_the_cpu::<D>,
        a_prompt_in_pieces_is_the_prompt::<D>,
        slow_devices_pass_fewer_rows_at_once_and_compute_the_same_bits::<D>,
        states_that_do_not_fit_are_errors::<D>,
    ]
}

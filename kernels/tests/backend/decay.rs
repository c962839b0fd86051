//! The decay of recurrent states is bit-identical to the CPU's, because both use the same double-precision
//! `log1p`.

use nestling_core::backend::{Backend, DeltaNet, Encoder};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::recurrent::{StateId, StateShape, StateTrack};
use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_import::DeltaNetConfig;

use nestling_testkit::values::buffer;
use nestling_testkit::{Device, Test, tests};

use super::harness::Cuda;

/// Heads of one element each, which start at 1 and decay once.
const SHAPE: DeltaNetConfig = DeltaNetConfig {
    num_key_heads: 1,
    num_value_heads: 1024,
    key_head_dim: 1,
    value_head_dim: 1,
    conv_kernel_dim: 1,
};

fn second_row() -> StepRows {
    let row = Row {
        token: 0,
        position: 1,
        sequence: 0,
        wants_logits: false,
        levels: LevelPolicy::Fixed(Level::L8),
    };
    let states = StateTrack::in_place(StateId(0), 1, 2);
    StepRows::of_batch(&Batch::new(
        vec![row],
        vec![SequenceRef { states, ..SequenceRef::default() }],
    ))
}

/// Returns the remaining states, `e^(rate ln(1 + e^x))` for every x.
fn decays(backend: &mut impl Backend, rate: f32, x: &[f32]) -> Vec<u32> {
    let heads = SHAPE.num_value_heads;
    let shape = StateShape { floats: SHAPE.state_floats(), states: 1 };
    let mut states = backend.state_pool(&shape).unwrap();
    let ones: Vec<u8> = vec![1.0f32; shape.floats].iter().flat_map(|x| x.to_le_bytes()).collect();
    backend.write_state(&mut states, StateId(0), &ones).unwrap();
    let mut floats = |values: &[f32]| backend.upload_floats(values).unwrap();
    let net = DeltaNet {
        shape: SHAPE,
        // Keys of 0 add nothing.
        conv: floats(&vec![0.0; SHAPE.channels()]),
        query_norm: floats(&[1.0]),
        key_norm: floats(&[1.0]),
        unit_eps: 1e-6,
        rate: floats(&vec![rate; heads]),
        time_bias: floats(&vec![0.0; heads]),
        norm: floats(&[1.0]),
        eps: 1e-6,
    };
    let mut row = vec![0.0; SHAPE.inputs()];
    let first = row.len() - heads;
    row[first..].copy_from_slice(x);
    let projected = buffer(backend, row.len(), &row);
    let mut out = backend.buffer(1, SHAPE.value_dim()).unwrap();
    let mut encoder = backend.encoder();
    encoder.delta_net(&net, &second_row(), &projected, &mut states, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    let mut bytes = Vec::new();
    backend.read_state(&states, StateId(0), &mut bytes).unwrap();
    let bits = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
    bits.skip(SHAPE.window() * SHAPE.channels()).collect()
}

fn decays_have_the_bits_of_the_cpu() {
    let mut device = Cuda::device();
    let heads = SHAPE.num_value_heads;
    // Covers both branches of the logarithm, their boundary, and inputs whose result is 0 or x.
    for (first, step) in [(-40.0, 0.06), (-2.0, 0.003), (-0.89, 1e-5), (15.0, 0.01), (-110.0, 0.1)]
    {
        let x: Vec<f32> = (0..heads).map(|i| first + step * i as f32).collect();
        for rate in [-4.0, -1.0, 0.5] {
            let found = decays(&mut device, rate, &x);
            let expected = decays(&mut Cpu::new(1), rate, &x);
            assert!(expected.iter().any(|bits| *bits != expected[0]), "from {first} on");
            let other = (0..heads).find(|i| found[*i] != expected[*i]);
            assert_eq!(other.map(|i| (x[i], found[i], expected[i])), None, "rate {rate}");
        }
    }
}

pub fn suite() -> Vec<Test> {
    tests![decays_have_the_bits_of_the_cpu,]
}

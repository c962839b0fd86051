//! Feed-forward parts without a gate on all kernel sets: the bits of their operations one by one.

use std::slice;
use std::sync::Arc;

use nestling_formats::nested::Layout;
use nestling_formats::{DType, Level};
use nestling_import::Activation;

use super::tests::{float, nested, noise};
use super::*;
use crate::kernels::Kernels;
use crate::threads::ThreadPool;
use nestling_core::backend::EncoderExt;
use nestling_core::driver::block_on;

/// Widths of the residual stream and of the inner activations. The last group is not whole.
const HIDDEN: usize = 64;
const INNER: usize = 40;

/// Returns `down(max(up(x), 0)²)` as one operation, and as a product, squares and a product.
fn both_ways(mut cpu: Cpu, levels: &[Level], weights: &[MatrixWeights; 2]) -> [Vec<f32>; 2] {
    let [up, down] = [0, 1].map(|at| {
        let matrix = cpu.upload_matrix(&weights[at], ActivationMode::Int8).unwrap();
        Linear::new(matrix, Some(noise(weights[at].rows(), 90 + at as u32)))
    });
    let part = FeedForward { activation: Activation::Relu2, gate: None, up, down };
    let [mut x, mut inner, mut whole, mut parts] =
        [HIDDEN, INNER, HIDDEN, HIDDEN].map(|cols| cpu.buffer(levels.len(), cols).unwrap());
    let mut enc = cpu.encoder();
    enc.write(&noise(levels.len() * HIDDEN, 91), &mut x).unwrap();
    enc.ffn(&part, levels, &x, Write::Set, &mut whole).unwrap();
    enc.matmul(slice::from_ref(&part.up), levels, &x, Write::Set, &mut inner).unwrap();
    let ups = block_on(enc.read(&inner)).unwrap();
    let squares: Vec<f32> = ups.iter().map(|up| up.max(0.0) * up).collect();
    assert!(squares.contains(&0.0) && squares.iter().any(|square| *square > 0.0));
    enc.write(&squares, &mut inner).unwrap();
    enc.matmul(slice::from_ref(&part.down), levels, &inner, Write::Set, &mut parts).unwrap();
    [&whole, &parts].map(|out| block_on(enc.read(out)).unwrap())
}

#[test]
fn parts_without_a_gate_are_squares_of_their_ups() {
    let codes = [(INNER, HIDDEN, 92), (HIDDEN, INNER, 93)]
        .map(|(rows, cols, seed)| nested(rows, cols, Layout::Tile16, seed));
    let floats = [(INNER, HIDDEN, 94), (HIDDEN, INNER, 95)]
        .map(|(rows, cols, seed)| float(rows, cols, DType::Bf16, seed));
    for weights in [codes, floats] {
        for levels in [vec![Level::L4], vec![Level::L2, Level::L8, Level::L4], vec![Level::L6; 37]]
        {
            let mut first: Option<Vec<u32>> = None;
            for kernels in Kernels::available() {
                let cpu = Cpu::with(Arc::new(ThreadPool::new(2)), kernels);
                let found = both_ways(cpu, &levels, &weights);
                let [whole, parts] = found.map(|out| out.into_iter().map(f32::to_bits).collect());
                assert_eq!(whole, parts, "{} {levels:?}", kernels.name());
                assert_eq!(*first.get_or_insert(parts), whole, "{} {levels:?}", kernels.name());
            }
        }
    }
}

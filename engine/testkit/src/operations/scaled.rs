//! Scaled integers in all forms of GGUF files: identical bits to the scalar reference, at all levels.

use nestling_core::backend::{Backend, Encoder, Linear, Write};
use nestling_core::batch::StepRows;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::reference::Reference;
use nestling_formats::Level;
use nestling_import::gguf::BlockType;

use super::matrices::linear;
use super::scaled_matrix::{ScaleBits, ScaledPlanes, exact_activations, scaled};
use crate::values::{buffer, noise, read};
use crate::{OperationsDevice, Test, tests};

/// Block types that cover all kernel paths: bit widths, sub-blocks of 16 and 32, scales of all types, tables
/// and integers, minima of spans and of sub-blocks.
const KINDS: [BlockType; 14] = [
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Q5_1,
    BlockType::Q8_0,
    BlockType::Q2K,
    BlockType::Q3K,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
    BlockType::Iq4Nl,
    BlockType::Iq4Xs,
    BlockType::Mxfp4,
    BlockType::Nvfp4,
];

/// Returns products of two matrices side by side, the first with a bias, and the same added to existing
/// values.
fn products<B: Backend>(
    backend: &mut B,
    matrices: &[MatrixWeights; 2],
    levels: &[Level],
    x: &[f32],
) -> [Vec<u32>; 2] {
    let int8 = ActivationMode::Int8;
    let input = buffer(backend, matrices[0].cols(), x);
    let all: [Linear<B>; 2] =
        [linear(backend, &matrices[0], int8, Some(4)), linear(backend, &matrices[1], int8, None)];
    let width = matrices[0].rows() + matrices[1].rows();
    let mut out = backend.buffer(levels.len(), width).unwrap();
    let mut sum = buffer(backend, width, &noise(levels.len() * width, 6));
    let mut encoder = backend.encoder();
    encoder.matmul(&all, levels, &input, Write::Set, &mut out).unwrap();
    encoder.matmul(&all, levels, &input, Write::Add, &mut sum).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    [out, sum].map(|out| bits(read(backend, &out)))
}

/// Describes the first value that differs.
fn difference(found: &[Vec<u32>; 2], expected: &[Vec<u32>; 2]) -> String {
    let all = found.iter().flatten().zip(expected.iter().flatten());
    let other = all.enumerate().find(|(_, (found, expected))| found != expected);
    let floats = other.map(|(at, (a, b))| (at, f32::from_bits(*a), f32::from_bits(*b)));
    format!("{floats:?}")
}

fn bits(values: Vec<f32>) -> Vec<u32> {
    values.into_iter().map(f32::to_bits).collect()
}

const SHAPES: [(usize, usize); 4] = [(16, 32), (17, 40), (3, 300), (37, 1060)];

const LIES: [ScaledPlanes; 3] = [ScaledPlanes::Tiled, ScaledPlanes::Merged, ScaledPlanes::RowMajor];

/// Activations and scales are chosen so that everything but the additions is exact. Devices without fused
/// multiply-add, or with less precise division, then have the same bits.
fn products_of_few_rows_have_the_bits_of_the_reference<D: OperationsDevice>() {
    products_have_the_bits_of_the_reference::<D>(&[1, 2, 5]);
}

fn products_of_many_rows_have_the_bits_of_the_reference<D: OperationsDevice>() {
    products_have_the_bits_of_the_reference::<D>(&[33]);
}

fn products_have_the_bits_of_the_reference<D: OperationsDevice>(counts: &[usize]) {
    let (mut device, mut plain) = (D::device(), D::plain_device());
    for (index, kind) in KINDS.into_iter().enumerate() {
        for (number, &count) in counts.iter().enumerate() {
            for (rows, cols) in [SHAPES[(index + number) % 4], SHAPES[(index + number + 1) % 4]] {
                let lies = [LIES[(index + number) % 3], LIES[(index + number + 1) % 3]];
                let other = KINDS[(index + 5) % KINDS.len()];
                let matrices = [
                    scaled((kind, lies[0]), (rows, cols), 3, ScaleBits::Few),
                    scaled((other, lies[1]), (rows + 5, cols), 13, ScaleBits::Few),
                ];
                let matrices = matrices.map(MatrixWeights::Nested);
                // One level, or rows of all levels.
                let levels: Vec<Level> =
                    (0..count).map(|row| Level::ALL[(row + number + index) % 5]).collect();
                let x = exact_activations(count, cols, 9);
                let expected = products(&mut Reference, &matrices, &levels, &x);
                let what = format!("{kind:?}, {other:?} {lies:?} [{rows}, {cols}] {levels:?}");
                let found = products(&mut device, &matrices, &levels, &x);
                assert!(found == expected, "{what}: {}", difference(&found, &expected));
                let found = products(&mut plain, &matrices, &levels, &x);
                assert!(found == expected, "{what}, plain: {}", difference(&found, &expected));
            }
        }
    }
}

const TOKENS: usize = 50;

fn embedded<B: Backend>(backend: &mut B, table: &MatrixWeights) -> Vec<u32> {
    let rows = StepRows {
        tokens: (0..23).map(|row| row * 7 % TOKENS as u32).collect(),
        dense_levels: (0..23).map(|row| Level::ALL[row % 5]).collect(),
        ..StepRows::default()
    };
    let matrix = backend.upload_matrix(table, ActivationMode::Int8).unwrap();
    let matrix = Linear::new(matrix, None);
    let mut out = backend.buffer(rows.len(), table.cols()).unwrap();
    let mut encoder = backend.encoder();
    encoder.embed(&matrix, &rows, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    bits(read(backend, &out))
}

fn rows_of_tables_have_the_bits_of_the_reference<D: OperationsDevice>() {
    let mut device = D::device();
    for (index, kind) in KINDS.into_iter().enumerate() {
        for (lie, cols) in
            [(LIES[index % 3], 75), (ScaledPlanes::RowMajor, 288), (LIES[index % 2], 288)]
        {
            let table =
                MatrixWeights::Nested(scaled((kind, lie), (TOKENS, cols), 2, ScaleBits::All));
            let expected = embedded(&mut Reference, &table);
            assert!(embedded(&mut device, &table) == expected, "{kind:?} {lie:?} {cols}");
        }
    }
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        products_of_few_rows_have_the_bits_of_the_reference::<D>,
        products_of_many_rows_have_the_bits_of_the_reference::<D>,
        rows_of_tables_have_the_bits_of_the_reference::<D>,
    ]
}

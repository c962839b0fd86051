//! Rows of tables, and products of heads.

use nestling_core::backend::{Backend, Encoder, HeadMatrices, Linear};
use nestling_core::batch::StepRows;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_cpu::Cpu;
use nestling_formats::{DType, Level};
use nestling_import::gguf::BlockType;

use super::matrices::{Magnitudes, MatrixForm, weights};
use super::scaled_matrix::ScaledPlanes;
use crate::values::{buffer, expect_rows_close, noise, read};
use crate::{OperationsDevice, Test, tests};

const TOKENS: usize = 50;

fn rows(count: usize) -> StepRows {
    StepRows {
        tokens: (0..count).map(|row| (row * 7 % TOKENS) as u32).collect(),
        dense_levels: (0..count).map(|row| Level::ALL[row % 5]).collect(),
        ..StepRows::default()
    }
}

fn embed<B: Backend>(backend: &mut B, table: &MatrixWeights, rows: &StepRows) -> Vec<f32> {
    let matrix = backend.upload_matrix(table, ActivationMode::Int8).unwrap();
    let matrix = Linear::new(matrix, None);
    let mut out = backend.buffer(rows.len(), table.cols()).unwrap();
    let mut encoder = backend.encoder();
    encoder.embed(&matrix, rows, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    read(backend, &out)
}

/// A single product of a value and a scale, both exact, so the bits equal the CPU's.
fn rows_of_tables_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let floats = [DType::F32, DType::F16, DType::Bf16].map(MatrixForm::Float);
    let forms =
        [MatrixForm::RowMajor, MatrixForm::Tiled, MatrixForm::Merged].into_iter().chain(floats);
    for (form, cols) in forms.flat_map(|form| [(form, 32), (form, 75)]) {
        let (table, rows) = (weights(form, TOKENS, cols, 2), rows(23));
        let found = embed(&mut device, &table, &rows);
        assert_eq!(found, embed(&mut Cpu::new(1), &table, &rows), "{form:?}, {cols} columns");
    }
    let table = weights(MatrixForm::RowMajor, TOKENS, 32, 2);
    let matrix = device.upload_matrix(&table, ActivationMode::Int8).unwrap();
    let matrix = Linear::new(matrix, None);
    let mut out = device.buffer(1, 32).unwrap();
    let unknown = StepRows { tokens: vec![TOKENS as u32], ..rows(1) };
    assert!(device.encoder().embed(&matrix, &unknown, &mut out).is_err());
}

fn heads<B: Backend>(
    backend: &mut B,
    (matrix, count): (&MatrixWeights, usize),
    levels: &[Level],
    (x, width): (&[f32], usize),
) -> Vec<f32> {
    let input = buffer(backend, count * width, x);
    let rest = width - matrix.cols();
    let matrices = HeadMatrices {
        matrix: backend.upload_matrix(matrix, ActivationMode::Int8).unwrap(),
        heads: count,
    };
    let mut out = backend.buffer(levels.len(), matrix.rows() + count * rest).unwrap();
    let mut encoder = backend.encoder();
    encoder.matmul_heads(&matrices, levels, &input, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    read(backend, &out)
}

fn products_of_heads_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    // Tiles that span two heads, with and without elements after the inputs.
    let cases = [(3, 20, 40, 8, 2), (2, 16, 32, 0, 1), (5, 7, 33, 3, 9)];
    let scaled = MatrixForm::Scaled(BlockType::Q5_0, ScaledPlanes::Tiled);
    for form in [MatrixForm::Tiled, MatrixForm::Float(DType::F32), scaled] {
        for (count, outputs, inputs, rest, rows) in cases {
            let matrix = weights(form, count * outputs, inputs, 3);
            let width = inputs + rest;
            let x = noise(rows * count * width, 5);
            let levels: Vec<Level> = Level::ALL.into_iter().cycle().take(rows).collect();
            let of = (&matrix, count);
            let found = heads(&mut device, of, &levels, (&x, width));
            let expected = heads(&mut Cpu::new(1), of, &levels, (&x, width));
            let inputs_of = |head: usize| -> Vec<f32> {
                let parts = x.chunks(count * width).map(|row| &row[head * width..][..inputs]);
                parts.flatten().copied().collect()
            };
            let magnitudes: Vec<Magnitudes> = (0..count)
                .map(|head| {
                    Magnitudes::new(&matrix, ActivationMode::Int8, &levels, &inputs_of(head))
                })
                .collect();
            let cols = count * (outputs + rest);
            expect_rows_close(
                &format!("{form:?}, {count} heads"),
                cols,
                [&found, &expected],
                |row, col| {
                    let (head, element) = (col / (outputs + rest), col % (outputs + rest));
                    if element >= outputs {
                        return 0.0;
                    }
                    magnitudes[head].tolerance(row, head * outputs + element, 0.0)
                },
            );
        }
    }
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![rows_of_tables_are_those_of_the_cpu::<D>, products_of_heads_are_those_of_the_cpu::<D>,]
}

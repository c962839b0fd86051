//! Norms of rows.

use nestling_core::backend::{Backend, Encoder, Write};
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;
use nestling_formats::Level;

use super::matrices::{MatrixForm, linear, weights};
use crate::values::{EPSILON, buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

/// Returns a norm, and the norm added to existing values.
pub fn norms<B: Backend>(backend: &mut B, rows: usize, cols: usize) -> [Vec<f32>; 2] {
    let x = buffer(backend, cols, &noise(rows * cols, 1));
    let mut sum = buffer(backend, cols, &noise(rows * cols, 2));
    let weight = backend.upload_floats(&noise(cols, 3)).unwrap();
    let mut out = backend.buffer(rows, cols).unwrap();
    let mut encoder = backend.encoder();
    encoder.rms_norm(&x, &weight, 1e-6, Write::Set, &mut out).unwrap();
    encoder.rms_norm(&x, &weight, 1e-6, Write::Add, &mut sum).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    [read(backend, &out), read(backend, &sum)]
}

fn rms_norms_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for (rows, cols) in [(1, 1), (2, 7), (3, 64), (5, 65), (1, 200), (2, 2049), (D::ROWS_MANY, 2)] {
        let found = norms(&mut device, rows, cols);
        let expected = norms(&mut Cpu::new(1), rows, cols);
        // Two sums of squares, each of terms of one sign, in trees at most cols / 16 + 6 deep. The root
        // halves their error, and four roundings follow.
        let relative = EPSILON * ((cols / 16 + 6) as f32 + 8.0);
        for (found, expected) in found.iter().zip(&expected) {
            // The existing values are below 1, and the addition rounds once more; a normed value may be
            // large.
            let largest = expected.iter().fold(1.0, |most: f32, value| most.max(value.abs()));
            expect_close(&format!("[{rows}, {cols}]"), found, expected, |_| relative * largest);
        }
    }
}

/// After a product has read the rows of a buffer in int8, a norm may produce int8 rows directly, with the
/// same bits.
fn rows_in_int8_are_the_same_made_by_the_norm_and_afterwards<D: OperationsDevice>() {
    let mut device = D::device();
    let (rows, cols, outputs) = (3, 200, 40);
    let x = buffer(&mut device, cols, &noise(rows * cols, 1));
    let weight = device.upload_floats(&noise(cols, 3)).unwrap();
    let matrix = weights(MatrixForm::Tiled, outputs, cols, 5);
    let matrix = [linear(&mut device, &matrix, ActivationMode::Int8, None)];
    let mut normed = device.buffer(rows, cols).unwrap();
    let mut out = device.buffer(rows, outputs).unwrap();
    let [afterwards, along] = [(); 2].map(|()| {
        let mut encoder = device.encoder();
        encoder.rms_norm(&x, &weight, 1e-6, Write::Set, &mut normed).unwrap();
        encoder.matmul(&matrix, &[Level::L4; 3], &normed, Write::Set, &mut out).unwrap();
        encoder.flush().unwrap();
        drop(encoder);
        read(&mut device, &out)
    });
    assert!(afterwards == along && along.iter().any(|value| *value != 0.0));
}

fn sizes_that_differ_are_errors<D: OperationsDevice>() {
    let mut device = D::device();
    let x = buffer(&mut device, 8, &noise(16, 1));
    let weight = device.upload_floats(&[1.0; 7]).unwrap();
    let mut out = device.buffer(2, 8).unwrap();
    let mut encoder = device.encoder();
    assert!(encoder.rms_norm(&x, &weight, 1e-6, Write::Set, &mut out).is_err());
    assert!(encoder.write(&[0.0; 9], &mut out).is_err());
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        rms_norms_are_those_of_the_cpu::<D>,
        rows_in_int8_are_the_same_made_by_the_norm_and_afterwards::<D>,
        sizes_that_differ_are_errors::<D>,
    ]
}

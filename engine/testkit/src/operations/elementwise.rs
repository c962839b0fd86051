//! Elementwise operations, and operations on whole rows.

use nestling_core::backend::{Backend, Encoder};
use nestling_core::driver::block_on;
use nestling_cpu::Cpu;
use nestling_import::GateFunction;

use crate::values::{EPSILON, buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

/// Runs each operation once, on buffers of this size.
pub fn operations<B: Backend>(
    backend: &mut B,
    rows: usize,
    cols: usize,
) -> Vec<(String, Vec<f32>)> {
    let wide: Vec<f32> = noise(rows * cols, 1).iter().map(|x| 40.0 * x).collect();
    let mut results = Vec::new();
    let mut scaled = buffer(backend, cols, &wide);
    let mut capped = buffer(backend, cols, &wide);
    let gates = buffer(backend, cols, &wide);
    let row_gates = buffer(backend, 1, &wide[..rows]);
    let x = buffer(backend, cols, &noise(rows * cols, 2));
    let mut gated = buffer(backend, cols, &noise(rows * cols, 3));
    let [mut opened, mut opened_rows] =
        [6, 7].map(|seed| buffer(backend, cols, &noise(rows * cols, seed)));
    let mut sum = buffer(backend, cols, &noise(rows * cols, 4));
    let mut gathered = backend.buffer(rows + 2, cols).unwrap();
    let mut written = buffer(backend, cols, &noise(rows * cols, 5));
    let written_rows: Vec<u32> = (0..rows as u32).filter(|row| row % 3 != 1).collect();
    let indices: Vec<u32> = (0..rows as u32 + 2).map(|i| i * 7 % rows as u32).collect();
    let mut encoder = backend.encoder();
    encoder.scale(0.3, &mut scaled).unwrap();
    encoder.softcap(30.0, &mut capped).unwrap();
    encoder.gate(GateFunction::Sigmoid, &gates, &mut gated).unwrap();
    encoder.gate(GateFunction::Softplus, &gates, &mut opened).unwrap();
    encoder.gate(GateFunction::Softplus, &row_gates, &mut opened_rows).unwrap();
    encoder.add_gated(&row_gates, &x, &mut sum).unwrap();
    encoder.gather_rows(&x, &indices, &mut gathered).unwrap();
    encoder.write_rows(&wide[..written_rows.len() * cols], &written_rows, &mut written).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    let named = [
        ("scale", &scaled),
        ("softcap", &capped),
        ("gate", &gated),
        ("gate by softplus", &opened),
        ("gate of rows", &opened_rows),
        ("add_gated", &sum),
        ("gather_rows", &gathered),
        ("write_rows", &written),
    ];
    for (name, buffer) in named {
        results.push((format!("{name} [{rows}, {cols}]"), read(backend, buffer)));
    }
    results
}

fn elements_are_those_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for (rows, cols) in [(1, 1), (3, 7), (2, 64), (5, 130), (1, 1000)] {
        let found = operations(&mut device, rows, cols);
        let expected = operations(&mut Cpu::new(1), rows, cols);
        for ((what, found), (_, expected)) in found.iter().zip(&expected) {
            // The series of exp is the same and within 2 units. A division (2.5 units in WGSL) and three more
            // roundings follow. Sums are of values below 2.
            let tolerance = |x: f32| 2.0 * EPSILON * 16.0 * x.abs().max(2.0);
            expect_close(what, found, expected, tolerance);
        }
    }
}

fn what_is_no_number_stays_so<D: OperationsDevice>() {
    let mut device = D::device();
    let nan = buffer(&mut device, 3, &[1.0, f32::NAN, -2.0]);
    let mut capped = buffer(&mut device, 3, &[1.0, f32::NAN, -2.0]);
    let [mut gated, mut opened] = [(); 2].map(|()| buffer(&mut device, 3, &[1.0; 3]));
    let mut encoder = device.encoder();
    encoder.softcap(30.0, &mut capped).unwrap();
    encoder.gate(GateFunction::Sigmoid, &nan, &mut gated).unwrap();
    encoder.gate(GateFunction::Softplus, &nan, &mut opened).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    for found in [&capped, &gated, &opened].map(|buffer| read(&mut device, buffer)) {
        assert!(found[0].is_finite() && found[1].is_nan() && found[2].is_finite(), "{found:?}");
    }
}

fn cleared_rows_are_zeros<D: OperationsDevice>() {
    let mut device = D::device();
    let mut x = device.buffer(9, 5).unwrap();
    for rows in [3, 9, 1] {
        let mut encoder = device.encoder();
        encoder.clear(rows, &mut x).unwrap();
        encoder.flush().unwrap();
        drop(encoder);
        assert_eq!(read(&mut device, &x), vec![0.0; rows * 5]);
    }
}

fn rows_outside_are_errors<D: OperationsDevice>() {
    let mut device = D::device();
    let x = buffer(&mut device, 4, &noise(8, 1));
    let mut out = device.buffer(2, 4).unwrap();
    assert!(device.encoder().gather_rows(&x, &[2], &mut out).is_err());
    let mut x = x;
    assert!(device.encoder().write_rows(&[0.0; 4], &[2], &mut x).is_err());
    assert!(device.encoder().write_rows(&[0.0; 3], &[1], &mut x).is_err());
}

/// Returns the column of the largest value of each row, among the first `among`.
fn best_columns<B: Backend>(
    backend: &mut B,
    (cols, among): (usize, usize),
    values: &[f32],
) -> Vec<Option<u32>> {
    let x = buffer(backend, cols, values);
    let (mut encoder, mut found) = (backend.encoder(), Vec::new());
    block_on(encoder.argmax_into(&x, among, &mut found)).unwrap();
    found
}

/// Sizes around those of parts that are scanned in parallel, up to vocabularies of models. Includes ties
/// within a part and across parts, and non-finite values in any of them, also in excluded columns.
fn the_largest_of_long_rows_is_that_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let sizes = [63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097, 9000, 151_936, 152_064];
    for (cols, rows) in sizes.into_iter().zip([1, 2, 3].into_iter().cycle()) {
        let mut values = noise(rows * cols, 5);
        let mut same = |among, values: &[f32]| {
            let found = best_columns(&mut device, (cols, among), values);
            let expected = best_columns(&mut Cpu::new(1), (cols, among), values);
            assert_eq!(found, expected, "[{rows}, {cols}], {among} of them");
            found
        };
        same(cols, &values);
        let last = (rows - 1) * cols;
        let places = [(0, cols - 1), (62, 63), (1023, 1024), (4095, 4096), (3071, 8192)];
        for (a, b) in places.into_iter().filter(|(_, b)| *b < cols) {
            (values[last + a], values[last + b]) = (2.0, 2.0);
            assert_eq!(same(cols, &values)[rows - 1], Some(a as u32));
            // The value at `b` is excluded, but must be finite.
            assert_eq!(same(b, &values)[rows - 1], Some(a as u32));
            for damage in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                values[last + b] = damage;
                assert_eq!(same(b, &values)[rows - 1], None);
            }
            (values[last + a], values[last + b]) = (0.5, 0.5);
        }
    }
}

/// Ties, the largest value in each place, the smallest numbers, excluded columns, and non-finite values.
fn the_first_largest_value_is_that_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    let mut same = |cols, values: &[f32]| {
        let found = best_columns(&mut device, cols, values);
        assert_eq!(found, best_columns(&mut Cpu::new(1), cols, values), "{cols:?}");
        found
    };
    for (rows, cols) in [(1, 1), (3, 7), (2, 64), (5, 130), (4, 4099)] {
        let mut values: Vec<f32> =
            noise(rows * cols, 5).iter().map(|x| (8.0 * x).trunc()).collect();
        values[..cols].fill(f32::MIN);
        values[cols - 1] = -1e30;
        assert_eq!(same((cols, cols), &values)[0], Some(cols as u32 - 1));
        // Positive and negative zero are equal, and below the smallest positive number.
        values[..cols].fill(-0.0);
        values[cols / 2] = 0.0;
        assert_eq!(same((cols, cols), &values)[0], Some(0));
        values[cols - 1] = f32::from_bits(1);
        assert_eq!(same((cols, cols), &values)[0], Some(cols as u32 - 1));
        let last = (rows - 1) * cols;
        for place in [0, cols / 2, cols - 1] {
            values[last + place] = 100.0 + place as f32;
            assert_eq!(same((cols, cols), &values)[rows - 1], Some(place as u32));
            let before = same((cols, place.max(1)), &values)[rows - 1].unwrap();
            assert!((before as usize) < place.max(1));
            for damage in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut damaged = values.clone();
                damaged[last + place] = damage;
                let found = same((cols, place.max(1)), &damaged);
                assert!(found[rows - 1].is_none() && (rows == 1 || found[0].is_some()));
            }
        }
    }
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        elements_are_those_of_the_cpu::<D>,
        what_is_no_number_stays_so::<D>,
        cleared_rows_are_zeros::<D>,
        rows_outside_are_errors::<D>,
        the_largest_of_long_rows_is_that_of_the_cpu::<D>,
        the_first_largest_value_is_that_of_the_cpu::<D>,
    ]
}

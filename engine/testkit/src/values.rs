//! Test inputs and tolerances.

use nestling_core::backend::{Backend, Encoder, EncoderExt};
use nestling_core::driver::block_on;

/// Half the distance from 1 to the next f32.
pub const EPSILON: f32 = f32::EPSILON / 2.0;

/// Returns deterministic values in [-1, 1).
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub fn buffer<B: Backend>(backend: &mut B, cols: usize, values: &[f32]) -> B::Buffer {
    let mut buffer = backend.buffer(values.len() / cols, cols).unwrap();
    let mut encoder = backend.encoder();
    encoder.write(values, &mut buffer).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    buffer
}

/// Reads the values of a buffer.
pub fn read<B: Backend>(backend: &mut B, buffer: &B::Buffer) -> Vec<f32> {
    block_on(backend.encoder().read(buffer)).unwrap()
}

/// Checks that each value is within its tolerance, `tolerance(expected)`.
pub fn expect_close(what: &str, found: &[f32], expected: &[f32], tolerance: impl Fn(f32) -> f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= tolerance(*expected);
        assert!(same, "{what}, value {index}: {found} is not {expected}");
    }
}

/// Works like [`expect_close`], with a tolerance for each row and column.
pub fn expect_rows_close(
    what: &str,
    cols: usize,
    [found, expected]: [&[f32]; 2],
    tolerance: impl Fn(usize, usize) -> f32,
) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let (row, col) = (index / cols, index % cols);
        let (apart, most) = ((found - expected).abs(), tolerance(row, col));
        assert!(
            apart <= most,
            "{what}, row {row}, column {col}: {found} is not {expected} +- {most}"
        );
    }
}

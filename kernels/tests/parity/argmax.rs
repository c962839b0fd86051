//! The largest of rows.

use nestling_cuda::params::ArgmaxParams;

use crate::harness::{address, noise, outcome};

/// Ties, nothing but the least number, columns that do not count, and values that are not finite, there and
/// elsewhere.
#[test]
fn the_first_of_the_largest_is_found() {
    let (rows, cols, among) = (7, 1000, 900);
    let mut x = noise(rows * cols, 7);
    x[cols + 700] = 2.0;
    x[cols + 300] = 2.0;
    x[2 * cols + 999] = f32::NAN;
    x[3 * cols..4 * cols].fill(f32::MIN);
    x[4 * cols + 950] = 3.0;
    x[4 * cols + 899] = 2.0;
    x[5 * cols + 3] = f32::NEG_INFINITY;
    x[6 * cols..].fill(-0.0);
    x[6 * cols + 555] = f32::from_bits(1);
    let found = outcome(&[0u32; 7], |out| {
        let (rows, cols) = (rows as u32, cols as u32);
        let params = ArgmaxParams { x: address(&x), out, rows, cols, among, padding: 0 };
        (params.launch(), params)
    });
    let first = x[..among as usize].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    assert_eq!(found, [first.0 as u32, 300, u32::MAX, 0, 899, u32::MAX, 555]);
}

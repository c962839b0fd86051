//! The largest of rows.

use nestling_cuda::params::ArgmaxParams;

use crate::harness::{address, noise, outcome};

#[test]
fn the_first_of_the_largest_is_found() {
    let (rows, cols) = (4, 1000);
    let mut x = noise(rows * cols, 7);
    x[cols + 700] = 2.0;
    x[cols + 300] = 2.0;
    x[2 * cols + 999] = f32::NAN;
    x[3 * cols..].fill(f32::NEG_INFINITY);
    let found = outcome(&[0u32; 4], |out| {
        let params = ArgmaxParams { x: address(&x), out, rows: rows as u32, cols: cols as u32 };
        (params.launch(), params)
    });
    let first = x[..cols].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    assert_eq!(found, [first.0 as u32, 300, 999, 0]);
}

//! Argmax of rows: over parts, then over the results of parts.

use nestling_cuda::params::{ARGMAX_PART_COLS, ArgmaxMergeParams, ArgmaxParams};

use crate::harness::{address, noise, outcome, outcomes};

/// Runs both kernels, with parts of `part_cols` columns.
fn found(x: &[f32], cols: usize, among: u32, part_cols: u32) -> Vec<u32> {
    let rows = x.len() / cols;
    let parts = cols.div_ceil(part_cols as usize);
    let none = vec![7u32; rows * parts];
    let (rows, parts) = (rows as u32, parts as u32);
    let (orders, columns) = outcomes((&none, &none), |orders, columns| {
        let (cols, padding) = (cols as u32, 0);
        let x = address(x);
        let params =
            ArgmaxParams { x, orders, columns, rows, cols, among, parts, part_cols, padding };
        (params.launch(), params)
    });
    let merged = outcome(&vec![7u32; rows as usize], |out| {
        let (orders, columns) = (address(&orders), address(&columns));
        let params = ArgmaxMergeParams { orders, columns, out, rows, parts };
        (params.launch(), params)
    });
    assert!(parts > 1 || merged == columns, "what is found of a single part is found");
    merged
}

/// Covers ties, rows of only the minimum, excluded columns, and non-finite values in included and excluded
/// columns.
#[test]
pub fn the_first_of_the_largest_is_found() {
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
    let first = x[..among as usize].iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
    let expected = [first.0 as u32, 300, u32::MAX, 0, 899, u32::MAX, 555];
    for part_cols in [1, 3, 64, 255, 256, 500, 999, 1000, ARGMAX_PART_COLS] {
        assert_eq!(found(&x, cols, among, part_cols), expected, "parts of {part_cols}");
    }
}

/// Uses the vocabulary sizes of models.
#[test]
fn values_are_found_in_parts() {
    let part = ARGMAX_PART_COLS as usize;
    for cols in [part - 1, part, part + 1, 3 * part + 17, 151_936, 152_064] {
        let all = cols as u32;
        let mut x = vec![-1.0f32; cols];
        // The first and last columns of about eight parts.
        let apart = part * (1 + cols / (8 * part));
        let borders = (0..cols).step_by(apart).flat_map(|first| [first, first + part - 1]);
        for place in borders.filter(|place| *place < cols) {
            // Of two equal values, in one part or in two, the first is found.
            let other = (place + part / 2) % cols;
            (x[place], x[other]) = (2.0, 2.0);
            assert_eq!(found(&x, cols, all, ARGMAX_PART_COLS), [place.min(other) as u32]);
            x[place] = f32::NAN;
            assert_eq!(found(&x, cols, 1, ARGMAX_PART_COLS), [u32::MAX]);
            (x[place], x[other]) = (-1.0, -1.0);
        }
        assert_eq!(found(&x, cols, all, ARGMAX_PART_COLS), [0]);
    }
}

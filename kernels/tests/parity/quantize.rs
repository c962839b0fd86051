//! Quantization of activations to int8.

use nestling_cpu::math;
use nestling_cuda::params::QuantizeParams;

use crate::harness::{address, noise, outcomes};

/// Returns values and scales as computed by the CPU.
pub fn quantized(x: &[f32], cols: usize, is_rotated: bool) -> (Vec<i8>, Vec<f32>) {
    let (mut values, mut scales) = (Vec::new(), Vec::new());
    for row in x.chunks(cols) {
        let mut row = row.to_vec();
        if is_rotated {
            math::hadamard(&mut row);
        }
        for group in row.chunks(32) {
            let mut out = [0; 32];
            scales.push(math::quantize_group(group, &mut out));
            values.extend(out);
        }
    }
    (values, scales)
}

/// Covers groups of tiny numbers and zeros, where 127 divided by the maximum is infinite.
#[test]
fn tiny_groups_are_those_of_the_cpu() {
    for amax in [1e-45, 1e-40, 3e-37, 4e-37, 1e-36] {
        let x: Vec<f32> = noise(96, 5).iter().map(|x| (3.0 * x).trunc() * amax / 2.0).collect();
        let (values, scales) = outcomes((&[0i8; 96], &[0f32; 3]), |values, scales| {
            let params = QuantizeParams {
                x: address(&x),
                values,
                scales,
                rows: 1,
                cols: 96,
                parts: 1,
                part_stride: 96,
                stride: 96,
                is_rotated: 0,
            };
            (params.launch(), params)
        });
        assert_eq!((values, scales), quantized(&x, 96, false), "{amax}");
    }
}

fn check(rows: usize, cols: usize, parts: usize, is_rotated: bool) {
    let (gap, rest) = (3, 2);
    let stride = parts * (cols + gap) + rest;
    let mut x = noise(rows * stride, 5);
    if let Some(x) = x.get_mut(cols..cols + gap) {
        x.fill(f32::NAN);
    }
    x[0] = 3.0;
    let groups = cols.div_ceil(32);
    let count = rows * parts * groups;
    let (values, scales) =
        outcomes((&vec![0i8; count * 32], &vec![0f32; count]), |values, scales| {
            let params = QuantizeParams {
                x: address(&x),
                values,
                scales,
                rows: rows as u32,
                cols: cols as u32,
                parts: parts as u32,
                part_stride: (cols + gap) as u32,
                stride: stride as u32,
                is_rotated: is_rotated.into(),
            };
            (params.launch(), params)
        });
    let parts = x.chunks(stride).flat_map(|row| row[..stride - rest].chunks(cols + gap));
    let inputs: Vec<f32> = parts.flat_map(|part| part[..cols].to_vec()).collect();
    assert_eq!((values, scales), quantized(&inputs, cols, is_rotated), "{rows} {cols}");
}

#[test]
fn groups_are_those_of_the_cpu() {
    for (rows, cols, parts) in [(1, 1, 1), (3, 40, 1), (2, 32, 3), (5, 200, 2)] {
        check(rows, cols, parts, false);
    }
    check(4, 96, 1, true);
    check(3, 64, 2, true);
}

/// Infinity propagates to the scale, and the scale of zeros is 0.
#[test]
fn scales_tell_of_infinity_and_zeros() {
    for (value, scale) in [(f32::INFINITY, f32::INFINITY), (0.0, 0.0)] {
        let x = [value; 32];
        let (_, scales) = outcomes((&[0i8; 32], &[7f32]), |values, scales| {
            let x = address(&x);
            let params = QuantizeParams {
                x,
                values,
                scales,
                rows: 1,
                cols: 32,
                parts: 1,
                part_stride: 32,
                stride: 32,
                is_rotated: 0,
            };
            (params.launch(), params)
        });
        assert_eq!(scales, [scale]);
    }
}

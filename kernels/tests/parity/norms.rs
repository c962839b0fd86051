//! RMSNorm kernels.

use nestling_cpu::math;
use nestling_cuda::kernel::Kernel;
use nestling_cuda::params::RmsNormParams;

use crate::harness::{EPSILON, address, expect_close, expect_equal, noise, outcome, outcomes};
use crate::quantize::quantized;

const EPS: f32 = 1e-6;

fn rms_norm(rows: usize, cols: usize, adds: bool) {
    let (x, weight) = (noise(rows * cols, 1), noise(cols, 2));
    let before = noise(rows * cols, 3);
    let found = outcome(&before, |out| {
        let params = RmsNormParams {
            x: address(&x),
            weight: address(&weight),
            out,
            rows: rows as u32,
            cols: cols as u32,
            eps: EPS,
            adds: adds.into(),
            ..RmsNormParams::default()
        };
        (params.launch(), params)
    });
    let mut expected = before;
    for (x, out) in x.chunks(cols).zip(expected.chunks_mut(cols)) {
        match adds {
            true => math::rms_norm_add(x, &weight, EPS, out),
            false => math::rms_norm(x, &weight, EPS, out),
        }
    }
    // Sums of positive terms are reordered: the square root halves their relative error. Four more roundings
    // follow, and one of the addition to the previous value, which is at most 1.
    let roundings = cols as f32 / 2.0 + 6.0;
    let tolerance = |value: f32| EPSILON * (roundings * 2.0 * (value.abs() + 1.0) + 2.0);
    expect_close(&format!("[{rows}, {cols}]"), &found, &expected, tolerance);
}

#[test]
pub fn rows_are_normed_as_on_the_cpu() {
    for (rows, cols) in [(1, 1), (3, 31), (2, 257), (5, 1000), (1, 2048)] {
        rms_norm(rows, cols, false);
        rms_norm(rows, cols, true);
    }
}

/// Fused norm and quantization equal separate ones bit for bit.
#[test]
pub fn normed_rows_in_int8_are_those_quantized_afterwards() {
    for (rows, cols) in [(1, 1), (3, 40), (2, 257), (1, 2048)] {
        let (x, weight) = (noise(rows * cols, 1), noise(cols, 2));
        let groups = rows * cols.div_ceil(32);
        let count = rows * cols;
        let params = |out, [values, scales]: [u64; 2]| {
            let params = RmsNormParams {
                x: address(&x),
                weight: address(&weight),
                out,
                values,
                scales,
                rows: rows as u32,
                cols: cols as u32,
                eps: EPS,
                adds: 0,
            };
            (params.launch(), params)
        };
        let expected = outcome(&vec![0f32; count], |out| params(out, [0, 0]));
        let out = vec![0f32; count + groups];
        let (floats, values) = outcomes((&out, &vec![0i8; groups * 32]), |out, values| {
            let (launch, params) = params(out, [values, out + 4 * count as u64]);
            assert_eq!(launch.kernel, Kernel::RmsNormQuantize);
            (launch, params)
        });
        expect_equal("normed", &floats[..count], &expected);
        assert_eq!((values, floats[count..].to_vec()), quantized(&expected, cols, false));
    }
}

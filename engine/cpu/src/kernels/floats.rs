//! Dot products of rows of float weights with rows of activations.

use half::{bf16, f16};

use crate::math::{self, Element};

/// Rows of float weights with a stride.
#[derive(Clone, Copy, Debug)]
pub enum FloatWeights<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// bfloat16, the upper half of single precision.
    Bf16(&'a [bf16]),
}

impl FloatWeights<'_> {
    /// Returns the weights after `elements` elements.
    pub fn skip(self, elements: usize) -> Self {
        match self {
            Self::F32(weights) => Self::F32(&weights[elements..]),
            Self::F16(weights) => Self::F16(&weights[elements..]),
            Self::Bf16(weights) => Self::Bf16(&weights[elements..]),
        }
    }
}

/// Selected rows of activations.
#[derive(Clone, Copy, Debug)]
pub struct FloatInputs<'a> {
    /// Values, `[all rows, cols]`.
    pub values: &'a [f32],
    /// Number of columns.
    pub cols: usize,
    /// Indices of the selected rows.
    pub rows: &'a [u32],
}

impl<'a> FloatInputs<'a> {
    #[inline(always)]
    fn row(&self, at: usize) -> &'a [f32] {
        &self.values[self.rows[at] as usize * self.cols..][..self.cols]
    }
}

/// Number of rows of float weights that are multiplied together.
pub const FLOAT_ROWS: usize = 4;

/// Sums of one row of activations with all rows of weights.
type FloatSums = [[f32; math::LANES]; FLOAT_ROWS];

/// Multiplies [`FLOAT_ROWS`] rows of weights with rows of activations, four at a time if `INPUTS` is 4. If
/// there are fewer rows of weights, the last row is repeated.
///
/// This file uses index loops instead of zips and maps. In code for a list of features, the latter become
/// calls, which take longer than the products for short rows.
#[inline(always)]
fn dots<E: Element, const INPUTS: usize>(
    weights: &[E],
    stride: usize,
    x: FloatInputs,
    out: &mut [[f32; FLOAT_ROWS]],
) {
    let cols = x.cols;
    // Default: rows without elements all start at the first.
    let last = weights.len().saturating_sub(cols).checked_div(stride).unwrap_or(0);
    let mut rows = [weights; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        rows[row] = &weights[row.min(last) * stride..][..cols];
    }
    let mut done = 0;
    while INPUTS == 4 && done + 4 <= x.rows.len() {
        let block =
            four_dots(&rows, [x.row(done), x.row(done + 1), x.row(done + 2), x.row(done + 3)]);
        out[done..done + 4].copy_from_slice(&block);
        done += 4;
    }
    while done < x.rows.len() {
        out[done] = one_dot(&rows, x.row(done));
        done += 1;
    }
}

/// Computes the dot products of four rows of activations, with sixteen vectors of sums.
///
/// Each row has a separate variable: with one array for all, the compiler keeps the sums in memory.
#[inline(always)]
fn four_dots<E: Element>(weights: &[&[E]; FLOAT_ROWS], x: [&[f32]; 4]) -> [[f32; FLOAT_ROWS]; 4] {
    let mut s0: FloatSums = [[0.0; math::LANES]; FLOAT_ROWS];
    let (mut s1, mut s2, mut s3) = (s0, s0, s0);
    for chunk in 0..weights[0].len() / math::LANES {
        let wide = widen(weights, chunk);
        accumulate(&mut s0, &wide, x[0], chunk);
        accumulate(&mut s1, &wide, x[1], chunk);
        accumulate(&mut s2, &wide, x[2], chunk);
        accumulate(&mut s3, &wide, x[3], chunk);
    }
    [
        finish(s0, weights, x[0]),
        finish(s1, weights, x[1]),
        finish(s2, weights, x[2]),
        finish(s3, weights, x[3]),
    ]
}

#[inline(always)]
fn one_dot<E: Element>(weights: &[&[E]; FLOAT_ROWS], x: &[f32]) -> [f32; FLOAT_ROWS] {
    let mut sums = [[0.0; math::LANES]; FLOAT_ROWS];
    for chunk in 0..weights[0].len() / math::LANES {
        accumulate(&mut sums, &widen(weights, chunk), x, chunk);
    }
    finish(sums, weights, x)
}

#[inline(always)]
fn widen<E: Element>(weights: &[&[E]; FLOAT_ROWS], chunk: usize) -> FloatSums {
    let mut wide = [[0.0; math::LANES]; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        let weights = &weights[row].as_chunks::<{ math::LANES }>().0[chunk];
        for lane in 0..math::LANES {
            wide[row][lane] = weights[lane].to_f32();
        }
    }
    wide
}

#[inline(always)]
fn accumulate(sums: &mut FloatSums, weights: &FloatSums, x: &[f32], chunk: usize) {
    let x = &x.as_chunks::<{ math::LANES }>().0[chunk];
    for row in 0..FLOAT_ROWS {
        for lane in 0..math::LANES {
            sums[row][lane] = weights[row][lane].mul_add(x[lane], sums[row][lane]);
        }
    }
}

/// Adds the remainder of the rows, then the lanes.
#[inline(always)]
fn finish<E: Element>(
    mut sums: FloatSums,
    weights: &[&[E]; FLOAT_ROWS],
    x: &[f32],
) -> [f32; FLOAT_ROWS] {
    let tail = x.len() % math::LANES;
    let at = x.len() - tail;
    let mut out = [0.0; FLOAT_ROWS];
    for row in 0..FLOAT_ROWS {
        for lane in 0..tail {
            let weight = weights[row][at + lane].to_f32();
            sums[row][lane] = weight.mul_add(x[at + lane], sums[row][lane]);
        }
        out[row] = math::tree_sum(sums[row]);
    }
    out
}

/// Implements [`super::Kernels::float_rows`].
#[inline(always)]
pub(super) fn float_rows<const INPUTS: usize>(
    weights: FloatWeights,
    stride: usize,
    x: FloatInputs,
    out: &mut [[f32; FLOAT_ROWS]],
) {
    match weights {
        FloatWeights::F32(weights) => dots::<_, INPUTS>(weights, stride, x, out),
        FloatWeights::F16(weights) => dots::<_, INPUTS>(weights, stride, x, out),
        FloatWeights::Bf16(weights) => dots::<_, INPUTS>(weights, stride, x, out),
    }
}

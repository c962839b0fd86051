//! Dot products of rows of float weights with rows of activations.
//!
//! Each output has one vector of sums, so that its bits do not depend on how rows are blocked. A block of
//! some rows of weights by some rows of activations keeps its sums in registers. With arrays in place of
//! vectors, the compiler kept them in memory and multiplied one float at a time (docs/perf/035).
#![expect(unsafe_code, reason = "vector loads from rows whose lengths were checked")]

use half::{bf16, f16};
use nestling_formats::nested::TILE_ROWS;

use crate::math::LANES;
use crate::vector::{Right, Vector};

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

/// A tile of weights: up to [`TILE_ROWS`] rows.
struct Tile<'a, E> {
    weights: &'a [E],
    stride: usize,
    /// Number of rows.
    rows: usize,
}

impl<'a, E> Tile<'a, E> {
    /// Returns rows from `first` on. Beyond the tile, the last row is repeated.
    #[inline(always)]
    fn rows<const WEIGHTS: usize>(&self, first: usize, cols: usize) -> [&'a [E]; WEIGHTS] {
        let mut rows = [self.weights; WEIGHTS];
        for (row, weights) in (first..).zip(&mut rows) {
            *weights = &self.weights[row.min(self.rows - 1) * self.stride..][..cols];
        }
        rows
    }
}

/// Computes the dot products of a tile of weights with the selected rows of activations: `out[i][w]` belongs to row `w`
/// of the tile and to the selected row `i`. Works in blocks of `WEIGHTS` rows of weights by `INPUTS` rows of
/// activations. The last rows of activations are multiplied in smaller blocks.
#[inline(always)]
pub fn float_tile<V: Vector, const WEIGHTS: usize, const INPUTS: usize>(
    weights: FloatWeights,
    stride: usize,
    x: FloatInputs,
    out: &mut [[f32; TILE_ROWS]],
) {
    match weights {
        FloatWeights::F32(weights) => tile::<V, _, WEIGHTS, INPUTS>(weights, stride, x, out),
        FloatWeights::F16(weights) => tile::<V, _, WEIGHTS, INPUTS>(weights, stride, x, out),
        FloatWeights::Bf16(weights) => tile::<V, _, WEIGHTS, INPUTS>(weights, stride, x, out),
    }
}

#[inline(always)]
fn tile<V: Vector, E: Right + Default, const WEIGHTS: usize, const INPUTS: usize>(
    weights: &[E],
    stride: usize,
    x: FloatInputs,
    out: &mut [[f32; TILE_ROWS]],
) {
    // Default: rows without elements all start at the first.
    let last = weights.len().saturating_sub(x.cols).checked_div(stride).unwrap_or(0);
    let tile = Tile { weights, stride, rows: TILE_ROWS.min(last + 1) };
    let out = &mut out[..x.rows.len()];
    let mut done = 0;
    while INPUTS > 2 && done + INPUTS <= out.len() {
        band::<V, E, WEIGHTS, INPUTS>(&tile, x, done, out);
        done += INPUTS;
    }
    while INPUTS > 4 && done + 4 <= out.len() {
        band::<V, E, WEIGHTS, 4>(&tile, x, done, out);
        done += 4;
    }
    while INPUTS > 1 && done + 2 <= out.len() {
        band::<V, E, WEIGHTS, 2>(&tile, x, done, out);
        done += 2;
    }
    while done < out.len() {
        band::<V, E, 4, 1>(&tile, x, done, out);
        done += 1;
    }
}

/// Multiplies all rows of a tile with `INPUTS` rows of activations from `first` on, which stay in the
/// first-level cache meanwhile.
#[inline(always)]
fn band<V: Vector, E: Right + Default, const WEIGHTS: usize, const INPUTS: usize>(
    tile: &Tile<E>,
    x: FloatInputs,
    first: usize,
    out: &mut [[f32; TILE_ROWS]],
) {
    let mut rows = [x.values; INPUTS];
    for (row, values) in (first..).zip(&mut rows) {
        *values = x.row(row);
    }
    let mut at = 0;
    while at < tile.rows {
        let weights = tile.rows::<WEIGHTS>(at, x.cols);
        // SAFETY: the code is compiled for an instruction set that the machine has.
        let values = unsafe { block::<V, E, WEIGHTS, INPUTS>(weights, rows) };
        for row in 0..INPUTS {
            out[first + row][at..at + WEIGHTS].copy_from_slice(&values[row]);
        }
        at += WEIGHTS;
    }
}

/// Computes the dot products of rows of weights with rows of activations, all of the same length.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn block<V: Vector, E: Right + Default, const WEIGHTS: usize, const INPUTS: usize>(
    weights: [&[E]; WEIGHTS],
    x: [&[f32]; INPUTS],
) -> [[f32; WEIGHTS]; INPUTS] {
    let cols = x[0].len();
    assert!(weights.iter().all(|row| row.len() == cols), "rows of {cols} columns");
    assert!(x.iter().all(|row| row.len() == cols), "rows of {cols} columns");
    // SAFETY: each row has `cols / LANES` whole vectors, and the arrays are one each.
    unsafe {
        let mut sums = [[V::splat(0.0); WEIGHTS]; INPUTS];
        for vector in 0..cols / LANES {
            let weights = addresses(weights, vector);
            add_products(&mut sums, weights, addresses(x, vector));
        }
        let tail = cols % LANES;
        if tail > 0 {
            // Adds 0 * -0 = -0 to the other lanes, which changes no sum, not even -0.
            let weights = weights.map(|row| padded(&row[cols - tail..], E::default()));
            let x = x.map(|row| padded(&row[cols - tail..], -0.0));
            let x = x.each_ref().map(|row| row.as_ptr());
            add_products(&mut sums, weights.each_ref().map(|row| row.as_ptr()), x);
        }
        add_lanes(sums)
    }
}

/// Returns the addresses of one vector of each row. In development builds, an addition that may wrap is not
/// checked.
#[inline(always)]
fn addresses<T, const ROWS: usize>(rows: [&[T]; ROWS], vector: usize) -> [*const T; ROWS] {
    let mut out = [std::ptr::null(); ROWS];
    for row in 0..ROWS {
        out[row] = rows[row].as_ptr().cast::<[T; LANES]>().wrapping_add(vector).cast();
    }
    out
}

#[inline(always)]
fn padded<T: Copy>(values: &[T], padding: T) -> [T; LANES] {
    let mut out = [padding; LANES];
    out[..values.len()].copy_from_slice(values);
    out
}

/// Adds the products of one vector of each row of weights with one vector of each row of activations.
///
/// # Safety
/// All vectors must be readable, and the machine must have the instruction set.
#[inline(always)]
unsafe fn add_products<V: Vector, E: Right, const WEIGHTS: usize, const INPUTS: usize>(
    sums: &mut [[V; WEIGHTS]; INPUTS],
    weights: [*const E; WEIGHTS],
    x: [*const f32; INPUTS],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut wide = [V::splat(0.0); WEIGHTS];
        for row in 0..WEIGHTS {
            wide[row] = E::load(weights[row]);
        }
        for input in 0..INPUTS {
            let values = V::load(x[input]);
            for row in 0..WEIGHTS {
                sums[input][row] = wide[row].fma(values, sums[input][row]);
            }
        }
    }
}

/// Adds the lanes of each vector, four vectors at a time.
///
/// # Safety
/// The machine must have the instruction set.
#[inline(always)]
unsafe fn add_lanes<V: Vector, const WEIGHTS: usize, const INPUTS: usize>(
    sums: [[V; WEIGHTS]; INPUTS],
) -> [[f32; WEIGHTS]; INPUTS] {
    let mut out = [[0.0; WEIGHTS]; INPUTS];
    let count = WEIGHTS * INPUTS;
    for first in (0..count).step_by(4) {
        let mut four = [sums[0][0]; 4];
        for (index, sum) in (first..count).zip(&mut four) {
            *sum = sums[index / WEIGHTS][index % WEIGHTS];
        }
        // SAFETY: guaranteed by the caller.
        let values = unsafe { V::tree_sums(four) };
        for (index, value) in (first..count).zip(values) {
            out[index / WEIGHTS][index % WEIGHTS] = value;
        }
    }
    out
}

//! Heads with a state of fixed size: gated DeltaNet
//! ([Yang, Kautz, Hatamizadeh 2024](https://arxiv.org/abs/2412.06464)) and Mamba-2
//! ([Dao, Gu 2024](https://arxiv.org/abs/2405.21060)).
//!
//! For one token of a value head with the matrix S, `[key_head_dim, value_head_dim]`, DeltaNet computes:
//!
//! ```text
//! seen[c]  = Σ_i fma(key[i], S[i][c], ·)                          i ascending
//! delta[c] = fma(-decay, seen[c], value[c]) * beta
//! S[i][c]  = fma(key[i], delta[c], decay * S[i][c])
//! out[c]   = Σ_i fma(query[i], S[i][c], ·)                        i ascending
//! ```
//!
//! Mamba-2 has no `seen`: `delta[c] = step * value[c]`. Its key is B, its query C, its value x, and its step takes
//! the place of beta.
//!
//! Tokens are processed sequentially, whatever the prompt's length. A column of S has one chain of sums, so
//! that the bits do not depend on how a prompt is split into steps or how columns are blocked.
#![expect(unsafe_code, reason = "vector loads and stores at offsets that `pass_rows` has checked")]

use nestling_core::batch::Run;

use super::math::{self, LANES};
use super::states::CpuStates;
use super::vector::Vector;
use crate::fused::Fused;

/// Maximum number of positions that a convolution sees.
pub(super) const CONV_TAPS_MAX: usize = 16;

/// Number of vectors of state columns that are held in registers together. S stays in the first-level cache
/// while all tokens are processed.
const VECTORS: usize = 4;

/// Rule by which the value of a token enters a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRule {
    /// Gated DeltaNet: the value less what the key finds in the decayed state, times beta.
    Delta,
    /// Mamba-2: the value times the time step.
    Scaled,
}

/// Inputs of one head for the rows of one run.
#[derive(Clone, Copy, Debug)]
pub struct StateHead<'a> {
    /// Rule by which values enter the state.
    pub rule: StateRule,
    /// Queries, keys and values after the convolution, side by side.
    pub rows: &'a [f32], // [T, stride]
    /// Number of columns of `rows`.
    pub stride: usize,
    /// First column of the query, the key and the value.
    pub columns: [usize; 3],
    /// Number of elements of a query and of a key.
    pub key_head_dim: usize,
    /// Number of elements of a value.
    pub value_head_dim: usize,
    /// Decay, and beta or time step, of each row and head.
    pub factors: &'a [[f32; 2]], // [T, heads]
    /// Number of value heads, and the index of this one.
    pub heads: (usize, usize),
}

impl<'a> StateHead<'a> {
    fn part(&self, row: usize, part: usize) -> &'a [f32] {
        let width = if part == 2 { self.value_head_dim } else { self.key_head_dim };
        &self.rows[row * self.stride + self.columns[part]..][..width]
    }

    fn factors(&self, row: usize) -> [f32; 2] {
        self.factors[row * self.heads.0 + self.heads.1]
    }
}

/// Applies rows to a state, in order. The first row starts from `from` if given, or else from the contents of
/// `state`.
///
/// # Panics
/// Panics if a slice is too short.
#[inline(always)]
pub(super) fn pass_rows<V: Vector>(
    head: StateHead,
    from: Option<&[f32]>,
    state: &mut [f32], // [key_head_dim, value_head_dim]
    out: &mut [f32],   // [T, value_head_dim]
) {
    let (keys, cols) = (head.key_head_dim, head.value_head_dim);
    assert!(state.len() >= keys * cols, "state");
    assert!(from.is_none_or(|from| from.len() >= keys * cols), "state before");
    // Default: a buffer without columns has no rows.
    let rows = out.len().checked_div(cols).unwrap_or(0);
    let mut col = 0;
    while col < cols {
        let width = match cols - col {
            rest if rest >= VECTORS * LANES => VECTORS * LANES,
            rest if rest >= LANES => LANES,
            rest => rest,
        };
        for row in 0..rows {
            let from = from.filter(|_| row == 0);
            let (query, key) = (head.part(row, 0), head.part(row, 1));
            let value = &head.part(row, 2)[col..][..width];
            let out = &mut out[row * cols + col..][..width];
            let token = Token { rule: head.rule, query, key, value, factors: head.factors(row) };
            let columns = Columns { first: col, stride: cols };
            // SAFETY: rows of the states have `cols` columns, of which `width` follow `col`, and
            // value and output have `width`.
            unsafe {
                match width {
                    w if w == VECTORS * LANES => {
                        block::<V, VECTORS>(token, columns, from, state, out)
                    }
                    LANES => block::<V, 1>(token, columns, from, state, out),
                    _ => scalar(token, columns, from, state, out),
                }
            }
        }
        col += width;
    }
}

/// Inputs of one row for some columns.
#[derive(Clone, Copy)]
struct Token<'a> {
    rule: StateRule,
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    factors: [f32; 2],
}

/// Location of columns in a state.
#[derive(Clone, Copy)]
struct Columns {
    first: usize,
    stride: usize,
}

/// Processes `COUNT` vectors of columns.
///
/// # Safety
/// States, value and output must have as many columns, and states as many rows as the key.
#[inline(always)]
unsafe fn block<V: Vector, const COUNT: usize>(
    token: Token,
    columns: Columns,
    from: Option<&[f32]>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let [decay, beta] = token.factors;
    let to = state.as_mut_ptr();
    let from = from.map_or(to.cast_const(), <[f32]>::as_ptr);
    let place = |row: usize, vector: usize| row * columns.stride + columns.first + vector * LANES;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let zero = V::splat(0.0);
        let mut deltas = [zero; COUNT];
        if token.rule == StateRule::Delta {
            for (row, key) in token.key.iter().enumerate() {
                let key = V::splat(*key);
                for (vector, seen) in deltas.iter_mut().enumerate() {
                    *seen = key.fma(V::load(from.add(place(row, vector))), *seen);
                }
            }
        }
        for (vector, delta) in deltas.iter_mut().enumerate() {
            let mut value = V::load(token.value.as_ptr().add(vector * LANES));
            if token.rule == StateRule::Delta {
                value = V::splat(-decay).fma(*delta, value);
            }
            *delta = value.mul(V::splat(beta));
        }
        let mut sums = [zero; COUNT];
        let decay = V::splat(decay);
        for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
            let (key, query) = (V::splat(*key), V::splat(*query));
            for (vector, (sum, delta)) in sums.iter_mut().zip(deltas).enumerate() {
                let old = V::load(from.add(place(row, vector)));
                let new = key.fma(delta, decay.mul(old));
                new.store(to.add(place(row, vector)));
                *sum = query.fma(new, *sum);
            }
        }
        for (vector, sum) in sums.into_iter().enumerate() {
            sum.store(out.as_mut_ptr().add(vector * LANES));
        }
    }
}

/// Processes columns that do not fill a vector.
fn scalar(
    token: Token,
    columns: Columns,
    from: Option<&[f32]>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let [decay, beta] = token.factors;
    for (at, (out, value)) in out.iter_mut().zip(token.value).enumerate() {
        let place = |row: usize| row * columns.stride + columns.first + at;
        let old = |state: &[f32], row: usize| from.unwrap_or(state)[place(row)];
        let delta = beta
            * match token.rule {
                StateRule::Delta => {
                    let keys = token.key.iter().enumerate();
                    let seen = keys.fold(0.0, |sum, (row, key)| key.fused(old(state, row), sum));
                    (-decay).fused(seen, *value)
                }
                StateRule::Scaled => *value,
            };
        *out = 0.0;
        for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
            let new = key.fused(delta, decay * old(state, row));
            state[place(row)] = new;
            *out = query.fused(new, *out);
        }
    }
}

/// Type of [`convolve`] as compiled for an instruction set.
pub(super) type Convolve = unsafe fn(&[&[f32]], &[f32], Option<&[f32]>, &mut [f32]);

/// Adds a causal convolution over the rows to each column of `out`, then multiplies it by its gate or, without
/// gates, applies SiLU: with `v = out[c] + Σ fma(weight[tap][c], taps[tap][c], ·)` for ascending taps, oldest
/// row first, `out[c]` becomes `gate[c] * v` or `silu(v)`.
#[inline(always)]
pub fn convolve(taps: &[&[f32]], weights: &[f32], gate: Option<&[f32]>, out: &mut [f32]) {
    for (tap, weights) in taps.iter().zip(weights.chunks_exact(out.len().max(1))) {
        for ((out, x), weight) in out.iter_mut().zip(*tap).zip(weights) {
            *out = weight.fused(*x, *out);
        }
    }
    match gate {
        Some(gate) => out.iter_mut().zip(gate).for_each(|(out, gate)| *out *= gate),
        None => out.iter_mut().for_each(|out| *out = math::silu(*out)),
    }
}

/// Returns decay and beta of one row and head: the factor of the state, and the fraction of a value that is
/// written. `rate` is `-exp(A_log)`.
pub(super) fn factors(rate: f32, time_bias: f32, alpha: f32, beta: f32) -> [f32; 2] {
    [math::exp(rate * softplus(alpha + time_bias)), 1.0 / (1.0 + math::exp(-beta))]
}

/// Returns decay and time step of one row and head of Mamba-2.
pub(super) fn step_factors(rate: f32, time_bias: f32, time: f32) -> [f32; 2] {
    let step = softplus(time + time_bias);
    [math::exp(rate * step), step]
}

/// Computes ln(1 + e^x).
fn softplus(x: f32) -> f32 {
    if x > 20.0 { x } else { libm::log1p(f64::from(math::exp(x))) as f32 }
}

/// Inputs of a causal convolution over the rows of sequences.
#[derive(Clone, Copy)]
pub(super) struct ConvRows<'a> {
    pub channels: usize,
    /// Number of rows before a row that its convolution reads.
    pub window: usize,
    /// Inputs of the step's rows.
    pub rows: &'a [f32], // [T, stride]
    pub stride: usize,
    pub zeros: &'a [f32], // [channels]
}

impl<'a> ConvRows<'a> {
    /// Returns the window at the start of the state before a run, if there is one.
    pub fn before<'s>(self, run: &Run, states: &'s CpuStates) -> Option<&'s [f32]> {
        states.get(run.from?).ok()?.get(..self.window * self.channels)
    }

    /// Returns row `at` of the sequence whose first row in this step is `first`, or zeros before the
    /// sequence's start. `before` holds the rows before the first, oldest row first.
    fn row(self, before: Option<&'a [f32]>, first: usize, at: isize) -> &'a [f32] {
        let offset = at - first as isize;
        let row = match offset {
            0.. => self.rows.get(at as usize * self.stride..),
            _ => before.and_then(|before| {
                before.get((self.window as isize + offset) as usize * self.channels..)
            }),
        };
        // Default: convolutions see zeros before the first token.
        row.and_then(|row| row.get(..self.channels)).unwrap_or(self.zeros)
    }

    /// Returns the rows that the convolution of a row reads, oldest first; `taps` has `window + 1` places.
    pub fn taps(self, run: &Run, states: &'a CpuStates, row: usize, taps: &mut [&'a [f32]]) {
        let before = self.before(run, states);
        let oldest = row as isize - self.window as isize;
        for (at, tap) in (oldest..).zip(taps) {
            *tap = self.row(before, run.first, at);
        }
    }

    /// Writes the window after a run, `[window, channels]`.
    pub fn window_after(self, run: &Run, states: &CpuStates, out: &mut [f32]) {
        let before = self.before(run, states);
        let oldest = run.rows.end as isize - self.window as isize;
        for (at, out) in (oldest..).zip(out.chunks_exact_mut(self.channels.max(1))) {
            out.copy_from_slice(ConvRows::row(self, before, run.first, at));
        }
    }
}

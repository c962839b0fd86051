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

use crate::fused::Fused;
use crate::math::{self, LANES};
use crate::vector::Vector;

/// Number of vectors of state columns whose sums are held in registers together.
const VECTORS: usize = 4;

/// Number of rows from which columns of DeltaNet are copied to a tile, which stays in the first-level cache while
/// all rows are processed (docs/perf/047).
const PACKED_ROWS: usize = 4;

/// Maximum number of rows of a tile.
const PACKED_KEYS: usize = 256;

/// Number of vectors in a row of a tile.
const PACKED_VECTORS: usize = 2;

/// Number of columns of a tile.
const PACKED: usize = PACKED_VECTORS * LANES;

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

    /// Returns the inputs of a row, with the elements of its value from `col` on.
    fn token(&self, row: usize, col: usize) -> Token<'a> {
        Token {
            rule: self.rule,
            query: self.part(row, 0),
            key: self.part(row, 1),
            value: &self.part(row, 2)[col..],
            factors: self.factors[row * self.heads.0 + self.heads.1],
        }
    }
}

/// Applies rows to a state, in order. The first row starts from `from` if given, or else from the contents of
/// `state`.
///
/// # Panics
/// Panics if a slice is too short.
#[inline(always)]
pub fn pass_rows<V: Vector>(
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
    if head.rule == StateRule::Delta && rows >= PACKED_ROWS && keys <= PACKED_KEYS {
        let mut tile = Tile([0.0; PACKED_KEYS * PACKED]);
        while cols - col >= PACKED {
            pass_packed::<V>(head, col, from, state, &mut tile, out);
            col += PACKED;
        }
    }
    while cols - col >= LANES {
        let columns = Columns { first: col, stride: cols };
        // SAFETY: the states have `keys` rows of `cols` columns, and the outputs `cols` columns. As many as
        // the vectors have follow `col`.
        unsafe {
            if cols - col >= VECTORS * LANES {
                pass_columns::<V, VECTORS>(head, col, columns, from, state, out);
                col += VECTORS * LANES;
            } else {
                pass_columns::<V, 1>(head, col, columns, from, state, out);
                col += LANES;
            }
        }
    }
    if col < cols {
        for (row, out) in out.chunks_exact_mut(cols).enumerate() {
            let columns = Columns { first: col, stride: cols };
            let from = from.filter(|_| row == 0);
            scalar(head.token(row, col), columns, from, state, &mut out[col..]);
        }
    }
}

/// Columns of a state, next to each other. Rows of a whole state may be a power of two apart, so that a few
/// columns of them have few places in the first-level cache.
#[repr(align(64))]
struct Tile([f32; PACKED_KEYS * PACKED]); // [key_head_dim, PACKED]

/// Applies rows to [`PACKED`] columns of a state in a tile.
#[inline(always)]
fn pass_packed<V: Vector>(
    head: StateHead,
    col: usize,
    from: Option<&[f32]>,
    state: &mut [f32],
    tile: &mut Tile,
    out: &mut [f32],
) {
    let tile = &mut tile.0[..head.key_head_dim * PACKED];
    let width = head.value_head_dim;
    // Default: the first row starts from the contents of `state`.
    let before = from.unwrap_or(state);
    for (tile, before) in tile.chunks_exact_mut(PACKED).zip(before.chunks_exact(width)) {
        tile.copy_from_slice(&before[col..][..PACKED]);
    }
    let columns = Columns { first: 0, stride: PACKED };
    // SAFETY: the tile has a row of `PACKED` columns for each key, and `PACKED` columns of the outputs follow
    // `col`.
    unsafe { pass_columns::<V, PACKED_VECTORS>(head, col, columns, None, tile, out) }
    for (tile, state) in tile.chunks_exact(PACKED).zip(state.chunks_exact_mut(width)) {
        state[col..][..PACKED].copy_from_slice(tile);
    }
}

/// Inputs of one row for the columns from one on.
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

impl Columns {
    fn place(self, row: usize, vector: usize) -> usize {
        row * self.stride + self.first + vector * LANES
    }
}

/// Applies rows to `COUNT` vectors of columns, which are the columns from `col` on of values and outputs.
///
/// # Safety
/// These columns must exist in states and outputs, and states must have as many rows as keys have elements.
#[inline(always)]
unsafe fn pass_columns<V: Vector, const COUNT: usize>(
    head: StateHead,
    col: usize,
    columns: Columns,
    from: Option<&[f32]>,
    state: &mut [f32],
    out: &mut [f32],
) {
    let to = state.as_mut_ptr();
    // Default: the first row starts from the contents of `state`.
    let mut from = from.map_or(to.cast_const(), <[f32]>::as_ptr);
    let (cols, delta) = (head.value_head_dim, head.rule == StateRule::Delta);
    let rows = out.len() / cols;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut seen = [V::splat(0.0); COUNT];
        if delta && rows > 0 {
            for (row, key) in head.part(0, 1).iter().enumerate() {
                let key = V::splat(*key);
                for (vector, seen) in seen.iter_mut().enumerate() {
                    *seen = key.fma(V::load(from.add(columns.place(row, vector))), *seen);
                }
            }
        }
        for row in 0..rows {
            let (token, states) = (head.token(row, col), States { from, to, columns });
            let out = out[row * cols + col..].as_mut_ptr();
            if delta && row + 1 < rows {
                let next = head.part(row + 1, 1);
                seen = pass_token::<V, COUNT, true>(token, next, seen, states, out);
            } else {
                pass_token::<V, COUNT, false>(token, token.key, seen, states, out);
            }
            from = to;
        }
    }
}

/// State before and after a token.
#[derive(Clone, Copy)]
struct States {
    from: *const f32,
    to: *mut f32,
    columns: Columns,
}

/// Applies one row to `COUNT` vectors of columns, for which its key has found `seen`. With `NEXT`, returns what
/// the key of the next row finds in the new state, which is thus read once for both rows.
///
/// # Safety
/// States, value and output must have as many columns, and states as many rows as the keys.
#[inline(always)]
unsafe fn pass_token<V: Vector, const COUNT: usize, const NEXT: bool>(
    token: Token,
    next_key: &[f32],
    seen: [V; COUNT],
    states: States,
    out: *mut f32,
) -> [V; COUNT] {
    let [decay, beta] = token.factors;
    let States { from, to, columns } = states;
    // SAFETY: guaranteed by the caller.
    unsafe {
        let zero = V::splat(0.0);
        let mut deltas = seen;
        for (vector, delta) in deltas.iter_mut().enumerate() {
            let mut value = V::load(token.value.as_ptr().add(vector * LANES));
            if token.rule == StateRule::Delta {
                value = V::splat(-decay).fma(*delta, value);
            }
            *delta = value.mul(V::splat(beta));
        }
        let (mut sums, mut next_seen) = ([zero; COUNT], [zero; COUNT]);
        let decay = V::splat(decay);
        for (row, (key, query)) in token.key.iter().zip(token.query).enumerate() {
            let (key, query) = (V::splat(*key), V::splat(*query));
            for (vector, (sum, delta)) in sums.iter_mut().zip(deltas).enumerate() {
                let place = columns.place(row, vector);
                let new = key.fma(delta, decay.mul(V::load(from.add(place))));
                new.store(to.add(place));
                *sum = query.fma(new, *sum);
                if NEXT {
                    let next_key = V::splat(*next_key.as_ptr().add(row));
                    next_seen[vector] = next_key.fma(new, next_seen[vector]);
                }
            }
        }
        for (vector, sum) in sums.into_iter().enumerate() {
            sum.store(out.add(vector * LANES));
        }
        next_seen
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

/// Type of [`state_factors`] as compiled for an instruction set.
pub type Factors = unsafe fn(FactorInputs, &mut [[f32; 2]]);

/// Type of [`convolve`] as compiled for an instruction set.
pub type Convolve = unsafe fn(&[&[f32]], &[f32], Option<&[f32]>, &mut [f32]);

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

/// Inputs of the factors of one row.
#[derive(Clone, Copy, Debug)]
pub struct FactorInputs<'a> {
    /// `-exp(A_log)` of each head.
    pub rate: &'a [f32], // [heads]
    /// Bias of the time steps.
    pub time_bias: &'a [f32], // [heads]
    /// Time steps before the bias and softplus; alpha of DeltaNet.
    pub times: &'a [f32], // [heads]
    /// Beta before the sigmoid, for DeltaNet.
    pub betas: Option<&'a [f32]>, // [heads]
}

/// Computes decay, and beta or the time step, of each head of one row.
#[inline(always)]
pub fn state_factors(inputs: FactorInputs, out: &mut [[f32; 2]]) {
    let FactorInputs { rate, time_bias, times, betas } = inputs;
    for (head, out) in out.iter_mut().enumerate() {
        *out = match betas {
            Some(betas) => factors(rate[head], time_bias[head], times[head], betas[head]),
            None => step_factors(rate[head], time_bias[head], times[head]),
        };
    }
}

/// Returns decay and beta of one row and head: the factor of the state, and the fraction of a value that is
/// written. `rate` is `-exp(A_log)`.
#[inline(always)]
pub fn factors(rate: f32, time_bias: f32, alpha: f32, beta: f32) -> [f32; 2] {
    [math::exp(rate * math::softplus(alpha + time_bias)), 1.0 / (1.0 + math::exp(-beta))]
}

/// Returns decay and time step of one row and head of Mamba-2.
#[inline(always)]
pub fn step_factors(rate: f32, time_bias: f32, time: f32) -> [f32; 2] {
    let step = math::softplus(time + time_bias);
    [math::exp(rate * step), step]
}

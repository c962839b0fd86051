//! Least-squares refit of tables to the codes that use them, minimizing the output error.

use super::strided;
use super::{
    GROUP, InputCalibration, NestedCodec, NestedError, NestedTables, QuantizedMatrix, STEPS,
    TILE_ROWS,
};
use crate::Level;

/// Number of four-bit prefixes; prefixes of two and three bits are unions of them.
const PREFIXES: usize = 16;

/// Ridge term relative to the mean diagonal; it stabilizes entries that few weights use.
const RIDGE: f64 = 1e-3;

/// Normal equations of a codec's tables, summed over matrices coded with it.
///
/// A matrix with fixed codes and scales is linear in its table entries, so its squared output error is
/// quadratic in them. The best entries solve a small linear system per level. Sums of several threads can be
/// joined with [`Self::absorb`].
#[derive(Clone, Debug)]
pub struct TableRefit {
    tables: Vec<Equations>,
}

/// Sums over the rows of one table. With `q_p` the row's scales at positions with prefix `p` and 0 elsewhere,
/// `products[p][r]` is `q_p H q_r` and `right[p]` is `w H q_p`.
#[derive(Clone, Debug, Default)]
struct Equations {
    products: [[f64; PREFIXES]; PREFIXES],
    right: [f64; PREFIXES],
}

impl TableRefit {
    /// Creates empty sums for the tables of a codec.
    pub fn new(codec: &NestedCodec) -> Self {
        Self { tables: vec![Equations::default(); codec.tables.len()] }
    }

    /// Adds a matrix `[matrix.rows, matrix.cols]` that was coded with the codec.
    ///
    /// # Errors
    /// [`NestedError`] if lengths do not match.
    pub fn add(
        &mut self,
        weights: &[f32],
        matrix: &QuantizedMatrix,
        calibrated: &InputCalibration<'_>,
    ) -> Result<(), NestedError> {
        let grid = matrix.check()?;
        let (cols, stride) = (matrix.cols, calibrated.damped.stride());
        for (what, expected, found) in [
            ("second moments of a matrix's columns", cols, calibrated.damped.dim()),
            ("weights", matrix.rows * cols, weights.len()),
        ] {
            if expected != found {
                return Err(NestedError::Length { what, expected, found });
            }
        }
        let mut sums = vec![0.0; PREFIXES * stride];
        for (row, weights) in weights.chunks_exact(cols).enumerate() {
            let (tile, tables) = (row / TILE_ROWS, self.tables.len());
            let table = matrix.tile_tables[tile];
            let equations = self.tables.get_mut(usize::from(table));
            let equations = equations.ok_or(NestedError::TableIndex { tile, table, tables })?;
            let scale = matrix.row_scales[row].to_f32();
            let steps = &matrix.steps[row * grid.groups..][..grid.groups];
            let codes = &matrix.codes[row * grid.groups * GROUP..][..cols];
            let scale = |col: usize| scale * STEPS[usize::from(steps[col / GROUP])];
            sums.fill(0.0);
            for (col, code) in codes.iter().enumerate() {
                let moments = &calibrated.damped.values()[col * stride..][..stride];
                let sums = &mut sums[usize::from(code >> 4) * stride..][..stride];
                let factor = scale(col);
                for (sum, moment) in sums.iter_mut().zip(moments) {
                    *sum += factor * moment;
                }
            }
            for (prefix, sums) in sums.chunks_exact(stride).enumerate() {
                for (col, code) in codes.iter().enumerate() {
                    let product = f64::from(scale(col) * sums[col]);
                    equations.products[prefix][usize::from(code >> 4)] += product;
                    equations.right[prefix] += f64::from(weights[col] * sums[col]);
                }
            }
        }
        Ok(())
    }

    /// Adds the sums of another refit of the same codec.
    pub fn absorb(&mut self, other: &Self) {
        for (equations, other) in self.tables.iter_mut().zip(&other.tables) {
            for prefix in 0..PREFIXES {
                equations.right[prefix] += other.right[prefix];
                for (sum, value) in
                    equations.products[prefix].iter_mut().zip(&other.products[prefix])
                {
                    *sum += value;
                }
            }
        }
    }

    /// Replaces the codec's tables with the best entries; a table without weights is unchanged.
    pub fn finish(&self, codec: &mut NestedCodec) {
        self.replace(codec, Entries::Any);
    }

    /// Replaces the codec's tables with the best whose entries at levels 2 and 3 are multiples of 4, or 2 more than
    /// such.
    pub fn finish_strided(&self, codec: &mut NestedCodec) {
        self.replace(codec, Entries::Strided);
    }

    fn replace(&self, codec: &mut NestedCodec, entries: Entries) {
        for (tables, equations) in codec.tables.iter_mut().zip(&self.tables) {
            *tables = NestedTables {
                t2: equations.entries(Level::L2, tables.t2, entries),
                t3: equations.entries(Level::L3, tables.t3, entries),
                t4: equations.entries(Level::L4, tables.t4, Entries::Any),
            };
        }
    }
}

/// Values that entries may have.
#[derive(Clone, Copy)]
enum Entries {
    Any,
    Strided,
}

impl Equations {
    /// Solves for the entries of one level; entries with few weights stay near `before`.
    fn entries<const N: usize>(&self, level: Level, before: [i8; N], values: Entries) -> [i8; N] {
        let shift = 4 - level.bits().min(4);
        let mut left = [[0.0; N]; N];
        let mut right = [0.0; N];
        for (prefix, products) in self.products.iter().enumerate() {
            right[prefix >> shift] += self.right[prefix];
            for (other, product) in products.iter().enumerate() {
                left[prefix >> shift][other >> shift] += product;
            }
        }
        let trace: f64 = (0..N).map(|at| left[at][at]).sum();
        let ridge = RIDGE * trace / N as f64;
        if ridge.is_nan() || ridge <= 0.0 {
            return before;
        }
        for at in 0..N {
            left[at][at] += ridge;
            right[at] += ridge * f64::from(before[at]) / 127.0;
        }
        match (solve(left, right), values) {
            (Some(entries), Entries::Any) => {
                entries.map(|entry| (entry * 127.0).round().clamp(-127.0, 127.0) as i8)
            }
            (Some(entries), Entries::Strided) => {
                let (right, start) = (right.map(|sum| sum * 127.0), entries.map(|e| e * 127.0));
                strided::fitted(&left, &right, start)
            }
            (None, _) => before,
        }
    }
}

/// Solves a positive definite system by elimination; returns `None` if a pivot is not positive.
fn solve<const N: usize>(mut left: [[f64; N]; N], mut right: [f64; N]) -> Option<[f64; N]> {
    for pivot in 0..N {
        let row = left[pivot];
        if row[pivot].is_nan() || row[pivot] <= 0.0 {
            return None;
        }
        for below in pivot + 1..N {
            let factor = left[below][pivot] / row[pivot];
            for (value, above) in left[below].iter_mut().zip(&row).skip(pivot) {
                *value -= factor * above;
            }
            right[below] -= factor * right[pivot];
        }
    }
    for at in (0..N).rev() {
        let known: f64 = (at + 1..N).map(|other| left[at][other] * right[other]).sum();
        right[at] = (right[at] - known) / left[at][at];
    }
    right.iter().all(|value| value.is_finite()).then_some(right)
}

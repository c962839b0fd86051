//! Second moments of a matrix's inputs, which translate errors of weights into errors of outputs.

use super::NestedError;
use crate::memory::try_zeroed;

/// Name of second moments in error messages.
pub(super) const MOMENTS: &str = "second moments of activations";

/// Sum of `x xᵀ` over the input rows `x` of a matrix.
///
/// An error `E` of the matrix, `[rows, dim]`, causes the squared output error `tr(E H Eᵀ)` over those inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct SecondMoments {
    dim: usize,
    values: Vec<f32>, // [dim, dim], symmetric
    count: u64,
}

impl SecondMoments {
    /// Creates moments of zero inputs.
    ///
    /// # Errors
    /// [`NestedError::Shape`] if `dim` is zero or its square overflows.
    pub fn new(dim: usize) -> Result<Self, NestedError> {
        Ok(Self { dim, values: try_zeroed(MOMENTS, square(dim)?)?, count: 0 })
    }

    /// Creates moments from precomputed sums over `count` inputs. Only the upper triangle of `values`, `[dim,
    /// dim]`, is read.
    ///
    /// # Errors
    /// [`NestedError`] if the length is wrong, a value is not finite, or a diagonal value is negative.
    pub fn from_upper(dim: usize, mut values: Vec<f32>, count: u64) -> Result<Self, NestedError> {
        let expected = square(dim)?;
        if values.len() != expected {
            return Err(length("second moments", expected, values.len()));
        }
        for row in 0..dim {
            for col in row..dim {
                let value = values[row * dim + col];
                if !value.is_finite() || (row == col && value < 0.0) {
                    return Err(NestedError::Moment { row, col, value });
                }
                values[col * dim + row] = value;
            }
        }
        Ok(Self { dim, values, count })
    }

    /// Adds `x xᵀ` for each row of `inputs`, `[count, dim]`.
    ///
    /// This is a reference implementation: row by row, in f32. Callers with many rows sum blocks of them with
    /// a matrix product and use [`Self::from_upper`].
    ///
    /// # Errors
    /// [`NestedError`] if the length is not a multiple of `dim` or a number is not finite; nothing is added
    /// in that case.
    pub fn add_rows(&mut self, inputs: &[f32]) -> Result<(), NestedError> {
        if !inputs.len().is_multiple_of(self.dim) {
            return Err(length("inputs", inputs.len().next_multiple_of(self.dim), inputs.len()));
        }
        if let Some(at) = inputs.iter().position(|input| !input.is_finite()) {
            let (row, col, value) = (at / self.dim, at % self.dim, inputs[at]);
            return Err(NestedError::NotFinite { row, col, value });
        }
        for input in inputs.chunks_exact(self.dim) {
            for (sums, left) in self.values.chunks_exact_mut(self.dim).zip(input) {
                for (sum, right) in sums.iter_mut().zip(input) {
                    *sum += left * right;
                }
            }
            self.count = self.count.saturating_add(1);
        }
        Ok(())
    }

    /// Adds the moments of further inputs of the same matrix.
    ///
    /// # Errors
    /// [`NestedError::Length`] if the dimensions differ.
    pub fn merge(&mut self, other: &Self) -> Result<(), NestedError> {
        if other.dim != self.dim {
            return Err(length("second moments to merge", self.dim, other.dim));
        }
        for (sum, value) in self.values.iter_mut().zip(&other.values) {
            *sum += value;
        }
        self.count = self.count.saturating_add(other.count);
        Ok(())
    }

    /// Mixes routed and uniform moments in the ratio `share` to `1 - share`. Both are first scaled to a mean
    /// diagonal of 1. Moments without inputs are left out.
    ///
    /// An expert sees too few inputs to rely on its routed moments alone.
    ///
    /// # Errors
    /// [`NestedError::Length`] if the dimensions differ.
    pub fn blend(routed: &Self, uniform: &Self, share: f32) -> Result<Self, NestedError> {
        if routed.dim != uniform.dim {
            return Err(length("second moments to blend", routed.dim, uniform.dim));
        }
        let share = match (routed.mean_diagonal() > 0.0, uniform.mean_diagonal() > 0.0) {
            (true, true) => share.clamp(0.0, 1.0),
            (true, false) => 1.0,
            (false, _) => 0.0,
        };
        let left = share * inverse(routed.mean_diagonal());
        let right = (1.0 - share) * inverse(uniform.mean_diagonal());
        let both = routed.values.iter().zip(&uniform.values);
        Ok(Self {
            dim: routed.dim,
            values: both.map(|(a, b)| left * a + right * b).collect(),
            count: routed.count.saturating_add(uniform.count),
        })
    }

    /// Returns the input dimension of the matrix.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the moments, `[dim, dim]`, symmetric.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the number of inputs summed.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the sum of squares of each input, `[dim]`: the importance of the matrix's columns.
    pub fn diagonal(&self) -> Vec<f32> {
        self.values.iter().step_by(self.dim + 1).copied().collect()
    }

    /// Returns the mean of [`Self::diagonal`].
    pub fn mean_diagonal(&self) -> f32 {
        let sum: f64 =
            self.values.iter().step_by(self.dim + 1).map(|value| f64::from(*value)).sum();
        (sum / self.dim as f64) as f32
    }
}

/// Returns 1 over a mean diagonal, or 0 if it is zero.
pub(super) fn inverse(mean: f32) -> f32 {
    if mean > 0.0 { 1.0 / mean } else { 0.0 }
}

fn square(dim: usize) -> Result<usize, NestedError> {
    let shape = NestedError::Shape { rows: dim, cols: dim };
    dim.checked_mul(dim).filter(|values| *values > 0).ok_or(shape)
}

fn length(what: &'static str, expected: usize, found: usize) -> NestedError {
    NestedError::Length { what, expected, found }
}

//! The factor of damped second moments by which later columns answer for the errors of earlier ones.

use super::moments::inverse;
use super::{NestedError, SecondMoments};

/// Times that the damping is raised tenfold when the moments cannot be factored.
const RETRIES: u32 = 4;

/// The smallest pivot, relative to a mean diagonal of 1, that counts as positive.
const PIVOT_MIN: f32 = 1e-6;

/// Damped second moments `H` and their factor: `H = (I + U) D (I + U)ᵀ`, `U` strictly upper.
///
/// With the errors `e` of the columns before it, column `k` is rounded from the target
/// `w_k + Σ e_j U[j, k]`, and `e H eᵀ` is `Σ D_k (target_k - value_k)²` (LDLQ of "QuIP", which is
/// GPTQ's rule). Shared by all matrices with the same inputs.
#[derive(Clone, Debug)]
pub struct FeedbackFactor {
    dim: usize,
    damped: Vec<f32>, // [dim, dim], mean diagonal 1 before damping
    upper: Vec<f32>,  // [dim, dim], row j holds U[j, ..]; diagonal and below are zero
}

impl FeedbackFactor {
    /// Factors the moments, scaled to a mean diagonal of 1, plus `damping` on the diagonal.
    ///
    /// Moments that are not positive definite are damped more; moments of nothing count as the
    /// identity.
    ///
    /// # Errors
    /// [`NestedError::Damping`] unless `damping` is finite and not negative;
    /// [`NestedError::NotPositive`] if much more damping does not help either.
    pub fn new(moments: &SecondMoments, damping: f32) -> Result<Self, NestedError> {
        if !(damping.is_finite() && damping >= 0.0) {
            return Err(NestedError::Damping { damping });
        }
        let dim = moments.dim();
        let mean = moments.mean_diagonal();
        let mut scaled: Vec<f32> = moments.values().iter().map(|v| v * inverse(mean)).collect();
        let mut added = 0.0;
        let mut wanted = if mean > 0.0 { damping } else { 1.0 };
        for _ in 0..=RETRIES {
            for value in scaled.iter_mut().step_by(dim + 1) {
                *value += wanted - added;
            }
            added = wanted;
            match factor(&scaled, dim) {
                Some(upper) => return Ok(Self { dim, damped: scaled, upper }),
                None => wanted = (wanted * 10.0).max(1e-3),
            }
        }
        Err(NestedError::NotPositive { dim, damping: added })
    }

    /// Inputs of the matrix.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// The damped moments, `[dim, dim]`.
    pub fn damped(&self) -> &[f32] {
        &self.damped
    }

    /// `U`, `[dim, dim]`, zero on and below its diagonal.
    pub fn upper(&self) -> &[f32] {
        &self.upper
    }
}

/// The strictly upper factor, or none if a pivot is not positive.
fn factor(moments: &[f32], dim: usize) -> Option<Vec<f32>> {
    let mut upper = vec![0.0; dim * dim];
    let mut pivots = vec![0.0; dim];
    let mut scaled = vec![0.0; dim];
    for col in (0..dim).rev() {
        let tail = col + 1..dim;
        let row = &upper[col * dim..][..dim];
        for k in tail.clone() {
            scaled[k] = row[k] * pivots[k];
        }
        let pivot = moments[col * dim + col] - dot(&row[tail.clone()], &scaled[tail.clone()]);
        if pivot.is_nan() || pivot <= PIVOT_MIN {
            return None;
        }
        pivots[col] = pivot;
        for above in 0..col {
            let row = &mut upper[above * dim..][..dim];
            let sum = dot(&row[tail.clone()], &scaled[tail.clone()]);
            row[col] = (moments[above * dim + col] - sum) / pivot;
        }
    }
    upper.iter().all(|value| value.is_finite()).then_some(upper)
}

/// A dot product with sixteen partial sums: the same bits on every machine.
pub(super) fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (left, left_rest) = left.as_chunks::<16>();
    let (right, right_rest) = right.as_chunks::<16>();
    for (left, right) in left.iter().zip(right) {
        for lane in 0..16 {
            sums[lane] += left[lane] * right[lane];
        }
    }
    for ((sum, left), right) in sums.iter_mut().zip(left_rest).zip(right_rest) {
        *sum += left * right;
    }
    sums.iter().sum()
}

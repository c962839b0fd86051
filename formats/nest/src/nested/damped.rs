//! Damped second moments, and the factor that error feedback uses to compensate earlier columns' errors in
//! later columns.

use super::moments::{MOMENTS, inverse};
use super::{GROUP, NestedError, SecondMoments};
use crate::memory::try_zeroed;

/// Maximum number of tenfold increases of the damping when the moments cannot be factored.
const RETRIES: u32 = 4;

/// Smallest pivot that counts as positive, relative to a mean diagonal of 1.
const PIVOT_MIN: f32 = 1e-6;

/// Damped second moments `H` of a matrix's inputs, scaled to a mean diagonal of 1 before damping.
///
/// All matrices with the same inputs share them. Descent needs only the moments. Feedback also needs the
/// factor, which costs `dim³ / 3` operations and is computed only by [`Self::factored`].
#[derive(Clone, Debug)]
pub struct DampedMoments {
    dim: usize,
    stride: usize,
    values: Vec<f32>, // [stride, stride]; padding is zero
    lower: Vec<f32>,  // [stride, stride], row k holds U[.., k], zero elsewhere; or empty
}

impl DampedMoments {
    /// Adds `damping` to the diagonal of the scaled moments; moments without inputs count as the identity.
    ///
    /// Columns with zero moments get more damping, so that no diagonal element is zero.
    ///
    /// # Errors
    /// [`NestedError::Damping`] unless `damping` is finite and not negative.
    pub fn new(moments: &SecondMoments, damping: f32) -> Result<Self, NestedError> {
        let positive = |damped: &Self| {
            let diagonal = damped.values.iter().step_by(damped.stride + 1).take(damped.dim);
            diagonal.copied().all(|value| value > PIVOT_MIN).then(Vec::new)
        };
        Self::damp(moments, damping, &positive)
    }

    /// Computes the damped moments with the factor of feedback: `H = (I + U) D (I + U)ᵀ`, `U` strictly upper.
    ///
    /// Column `k` is rounded from the target `w_k + Σ e_j U[j, k]`, where `e` are the errors of earlier
    /// columns. Then `e H eᵀ` is `Σ D_k (target_k - value_k)²` (LDLQ of "QuIP", equivalent to GPTQ's rule).
    /// Moments that are not positive definite get more damping.
    ///
    /// # Errors
    /// The errors of [`Self::new`], and [`NestedError::NotPositive`] if increased damping does not help.
    pub fn factored(moments: &SecondMoments, damping: f32) -> Result<Self, NestedError> {
        let factor = |damped: &Self| factor(&damped.values, damped.dim, damped.stride);
        Self::damp(moments, damping, &factor)
    }

    /// Raises the damping until `lower` returns a result.
    fn damp(
        moments: &SecondMoments,
        damping: f32,
        lower: &dyn Fn(&Self) -> Option<Vec<f32>>,
    ) -> Result<Self, NestedError> {
        if !(damping.is_finite() && damping >= 0.0) {
            return Err(NestedError::Damping { damping });
        }
        let dim = moments.dim();
        let shape = NestedError::Shape { rows: dim, cols: dim };
        let stride = dim.checked_next_multiple_of(GROUP).ok_or(shape.clone())?;
        let mut values = try_zeroed(MOMENTS, stride.checked_mul(stride).ok_or(shape)?)?;
        let (mean, rows) = (moments.mean_diagonal(), moments.values().chunks_exact(dim));
        for (values, row) in values.chunks_exact_mut(stride).zip(rows) {
            for (damped, value) in values.iter_mut().zip(row) {
                *damped = value * inverse(mean);
            }
        }
        let mut damped = Self { dim, stride, values, lower: Vec::new() };
        let (mut added, mut wanted) = (0.0, if mean > 0.0 { damping } else { 1.0 });
        for _ in 0..=RETRIES {
            for value in damped.values.iter_mut().step_by(stride + 1).take(dim) {
                *value += wanted - added;
            }
            added = wanted;
            if let Some(lower) = lower(&damped) {
                damped.lower = lower;
                return Ok(damped);
            }
            wanted = (wanted * 10.0).max(1e-3);
        }
        Err(NestedError::NotPositive { dim, damping: added })
    }

    /// Returns the input dimension of the matrix.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the input dimension padded to whole groups: the row length of `values` and `lower`.
    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Returns the damped moments, `[stride, stride]`.
    pub(super) fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns `Uᵀ`, `[stride, stride]`, zero on and above its diagonal; `None` if it was not computed.
    pub(super) fn lower(&self) -> Option<&[f32]> {
        (!self.lower.is_empty()).then_some(&self.lower)
    }
}

/// Returns the strictly upper factor, transposed, or `None` if a pivot is not positive.
fn factor(moments: &[f32], dim: usize, stride: usize) -> Option<Vec<f32>> {
    let mut upper = vec![0.0; stride * stride];
    let mut pivots = vec![0.0; dim];
    let mut scaled = vec![0.0; dim];
    for col in (0..dim).rev() {
        let tail = col + 1..dim;
        let row = &upper[col * stride..][..dim];
        for k in tail.clone() {
            scaled[k] = row[k] * pivots[k];
        }
        let pivot = moments[col * stride + col] - dot(&row[tail.clone()], &scaled[tail.clone()]);
        if pivot.is_nan() || pivot <= PIVOT_MIN {
            return None;
        }
        pivots[col] = pivot;
        for above in 0..col {
            let row = &mut upper[above * stride..][..dim];
            let sum = dot(&row[tail.clone()], &scaled[tail.clone()]);
            row[col] = (moments[above * stride + col] - sum) / pivot;
        }
    }
    for row in 0..dim {
        for col in row + 1..dim {
            upper[col * stride + row] = std::mem::take(&mut upper[row * stride + col]);
        }
    }
    upper.iter().all(|value| value.is_finite()).then_some(upper)
}

/// Returns a dot product with sixteen partial sums, which has the same bits on all machines.
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

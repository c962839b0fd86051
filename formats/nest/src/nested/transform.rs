//! Hadamard rotation of a matrix's inputs, in groups of 32.
//!
//! `y = W x = (W R) (R x)` for an orthonormal, symmetric `R`. The rotated weights `W R` are coded, and the
//! engine rotates `x` when it quantizes it. `R` consists of blocks of 32, so the rotation takes 5 additions
//! per input and stays within the group that shares a scale. It equalizes inputs of very different
//! magnitudes, such as the hidden activations of SwiGLU. Error feedback benefits: its error grows with the
//! arithmetic mean of the diagonal of the factored second moments, while the geometric mean is fixed. After
//! QuaRot (arXiv 2404.00456) and QuIP# (arXiv 2402.04396).

use super::moments::MOMENTS;
use super::{GROUP, NestedError, SecondMoments};
use crate::memory::{OutOfMemory, try_to_vec, try_with_capacity};

/// Transform applied to the inputs of a matrix before the product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InputTransform {
    /// Identity: inputs are unchanged.
    #[default]
    None,
    /// [`hadamard`] of each group of 32; the number of inputs must be a multiple of 32.
    Hadamard,
}

impl InputTransform {
    /// Encodes the transform as a byte of a codec.
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Hadamard => 1,
        }
    }

    /// Decodes a byte of a codec, or returns `None` if it is invalid.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::None),
            1 => Some(Self::Hadamard),
            _ => None,
        }
    }

    /// Applies the transform to the columns of a matrix `[rows, cols]`, matching transformed inputs.
    ///
    /// # Errors
    /// [`NestedError::Shape`] if the matrix has an incomplete row or the transform does not support the
    /// number of columns.
    pub fn transform_weights(self, weights: &mut [f32], cols: usize) -> Result<(), NestedError> {
        if self == Self::None {
            return Ok(());
        }
        if !cols.is_multiple_of(GROUP) || cols == 0 || !weights.len().is_multiple_of(cols) {
            // Default: without columns there are no rows.
            let rows = weights.len().checked_div(cols).unwrap_or(0);
            return Err(NestedError::Shape { rows, cols });
        }
        let (groups, _) = weights.as_chunks_mut::<GROUP>();
        groups.iter_mut().for_each(hadamard);
        Ok(())
    }

    /// Returns the second moments of transformed inputs.
    ///
    /// # Errors
    /// [`NestedError::Shape`] if the transform does not support the number of inputs.
    pub fn transform_moments(self, moments: &SecondMoments) -> Result<SecondMoments, NestedError> {
        let dim = moments.dim();
        let mut values = try_to_vec(MOMENTS, moments.values())?;
        self.transform_weights(&mut values, dim)?;
        // The moments are symmetric, so rows of the transpose are columns.
        let mut turned = transposed(&values, dim)?;
        self.transform_weights(&mut turned, dim)?;
        SecondMoments::from_upper(dim, turned, moments.count())
    }
}

/// Applies the Walsh–Hadamard transform of 32 numbers, scaled to be its own inverse.
///
/// Computes sums and differences at distances 1, 2, 4, 8 and 16, then multiplies once by 2^(-5/2). The order
/// is part of the numeric contract.
#[inline(always)]
pub fn hadamard(group: &mut [f32; GROUP]) {
    butterflies::<1>(group);
    butterflies::<2>(group);
    butterflies::<4>(group);
    butterflies::<8>(group);
    butterflies::<16>(group);
    for value in group {
        *value *= SCALE;
    }
}

/// 2^(-5/2), rounded to the nearest f32.
const SCALE: f32 = f32::from_bits(0x3e35_04f3);

#[inline(always)]
fn butterflies<const DISTANCE: usize>(group: &mut [f32; GROUP]) {
    let before = *group;
    for (index, value) in group.iter_mut().enumerate() {
        let other = before[index ^ DISTANCE];
        *value = if index & DISTANCE == 0 { before[index] + other } else { other - before[index] };
    }
}

fn transposed(values: &[f32], dim: usize) -> Result<Vec<f32>, OutOfMemory> {
    let mut turned = try_with_capacity(MOMENTS, dim * dim)?;
    turned.extend((0..dim * dim).map(|index| values[index % dim * dim + index / dim]));
    Ok(turned)
}

//! Unpacking of scaled integers from their planes into row order.

use super::scaled_pack::Run;
use super::{CodecRef, NestedError, NestedView, ScaledRows};
use crate::Invariant;
use crate::memory::{OutOfMemory, try_with_capacity, try_zeroed};

/// Name of scaled integers in row order in error messages.
const ROWS: &str = "scaled integers of a matrix";

/// Reorders the numbers of `rows` rows from a layout to row order.
fn unpack(run: Run, rows: usize, numbers: &[u8]) -> Result<Vec<u8>, OutOfMemory> {
    if numbers.is_empty() {
        return Ok(Vec::new());
    }
    let mut out = try_with_capacity(ROWS, rows * run.of_row * run.bytes)?;
    for row in 0..rows {
        for number in 0..run.of_row {
            let at = run.index(row, number) * run.bytes;
            out.extend_from_slice(&numbers[at..at + run.bytes]);
        }
    }
    Ok(out)
}

impl NestedView<'_> {
    /// Returns the scaled integers of a matrix at the highest level that its planes support.
    ///
    /// # Errors
    /// [`NestedError::Codec`] if the matrix has another codec; [`NestedError::Memory`] if memory runs out.
    pub fn scaled_rows(&self) -> Result<ScaledRows, NestedError> {
        let CodecRef::Scaled(codec) = self.codec() else {
            let (what, expected) = ("codec", "scaled integers");
            return Err(NestedError::Codec { what, found: 1, expected });
        };
        let parts = self.scaled_parts().invariant("parts are those of the codec")?;
        let (rows, cols, p2) = (self.rows(), self.cols(), self.planes().p2);
        let mut codes = try_zeroed(ROWS, rows * cols)?;
        for (row, codes) in codes.chunks_exact_mut(cols).enumerate() {
            self.unpack_row_codes(self.level(), row, codes)?;
        }
        let layout = self.layout();
        let spans = self.groups().div_ceil(usize::from(codec.form.span));
        let scale = Run { layout, of_row: spans, bytes: codec.form.scale.bytes() };
        let of_row = self.groups() * codec.form.sub_blocks();
        let sub = Run { layout, of_row, bytes: 1 };
        let part = |run, range: &std::ops::Range<usize>| unpack(run, rows, &p2[range.clone()]);
        Ok(ScaledRows {
            rows,
            cols,
            codes,
            scales: part(scale, &parts.scales)?,
            minima: part(scale, &parts.minima)?,
            sub_scales: part(sub, &parts.sub_scales)?,
            sub_minima: part(sub, &parts.sub_minima)?,
        })
    }
}

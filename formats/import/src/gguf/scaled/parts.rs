//! Destinations of transcoded blocks.

use nestling_formats::nested::{Minima, ScaledForm, ScaledRows};

/// Mutable parts of a [`ScaledRows`], the destination of transcoding: all rows, or a range of whole rows.
#[derive(Debug)]
pub struct ScaledRun<'a> {
    /// Codes.
    pub codes: &'a mut [u8],
    /// Scales.
    pub scales: &'a mut [u8],
    /// Minima.
    pub minima: &'a mut [u8],
    /// Sub-scales.
    pub sub_scales: &'a mut [u8],
    /// Quantized minima.
    pub sub_minima: &'a mut [u8],
}

impl<'a> ScaledRun<'a> {
    /// Returns the parts of a matrix starting at `row`.
    pub fn from_row(matrix: &'a mut ScaledRows, row: usize) -> Self {
        let rows = matrix.rows.max(1);
        let from = |part: &'a mut Vec<u8>| {
            let start = part.len() / rows * row;
            &mut part[start..]
        };
        Self {
            codes: from(&mut matrix.codes),
            scales: from(&mut matrix.scales),
            minima: from(&mut matrix.minima),
            sub_scales: from(&mut matrix.sub_scales),
            sub_minima: from(&mut matrix.sub_minima),
        }
    }
}

/// Size in bytes of each part, for the columns of a block or of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PartSizes {
    pub scales: usize,
    pub minima: usize,
    pub sub_scales: usize,
    pub sub_minima: usize,
}

impl PartSizes {
    pub const fn new(form: &ScaledForm, columns: usize) -> Self {
        let scales = columns.div_ceil(32 * form.span as usize) * form.scale.bytes();
        let subs = columns / form.sub_block as usize;
        let has_minima = !matches!(form.minima, Minima::None);
        Self {
            scales,
            minima: if has_minima { scales } else { 0 },
            sub_scales: subs * form.sub_scale.bytes(),
            sub_minima: if form.has_sub_minima() { subs } else { 0 },
        }
    }
}

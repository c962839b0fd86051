//! Layout of a matrix's base plane (P2), for both codecs.

use std::ops::Range;

use nestling_formats::nested::{Layout, PlaneForm, ScaledParts, base_parts};

/// Number of parts of plane P2: the codes and the four parts before them.
pub const BASE_PARTS: usize = 5;

/// Returns the byte ranges of the parts of plane P2, codes last. For the nested codec they are row scales,
/// tile tables, steps, high bits of steps, codes. For scaled integers they are scales, minima, sub-scales,
/// sub-minima, codes. Returns `None` if the matrix is empty or too large.
pub fn base_ranges(
    form: &PlaneForm,
    layout: Layout,
    rows: usize,
    cols: usize,
) -> Option<[Range<usize>; BASE_PARTS]> {
    match form {
        PlaneForm::Nested => {
            let parts = base_parts(layout, rows, cols)?;
            let (scales, tables) = (parts.row_scales, parts.tile_tables);
            Some([scales, tables, parts.steps, parts.step_high, parts.codes])
        }
        PlaneForm::Scaled(form) => {
            let parts = ScaledParts::new(form, layout, rows, cols)?;
            let (scales, minima) = (parts.scales, parts.minima);
            Some([scales, minima, parts.sub_scales, parts.sub_minima, parts.codes])
        }
    }
}
